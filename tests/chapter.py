"""The course chapter's own naive version, in content blocks: the first wrong version of each check.

It is wrong on purpose: every line looks right, and all of it works as long as nothing is killed.
"""

import json
import os

LOST = "结果未知：上次运行在此中断"  # what the chapter tells a call that was interrupted


def append_jsonl(path, record):
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


def read_jsonl(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def repair(history):
    last = history[-1] if history else {"role": "", "content": ""}
    calls = last["content"] if last["role"] == "assistant" else []
    lost = [{"type": "tool_result", "tool_use_id": block["id"], "content": LOST}
            for block in calls if isinstance(block, dict) and block["type"] == "tool_use"]
    return history + ([{"role": "user", "content": lost}] if lost else [])


def load_session(path):
    return repair(read_jsonl(path)) if os.path.exists(path) else []


def run_agent(path, prompt, ask_model, run_tool):
    history, old = [{"role": "user", "content": prompt}], load_session(path)
    while history[-1]["role"] == "user":
        reply = ask_model(old + history)
        history.append({"role": "assistant", "content": reply})
        results = [{"type": "tool_result", "tool_use_id": block["id"], "content": run_tool(block)}
                   for block in reply if block["type"] == "tool_use"]
        history += [{"role": "user", "content": results}] if results else []
    for message in history:  # saved after the run: a kill before this line loses all of it
        append_jsonl(path, message)

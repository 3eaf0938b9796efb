"""m07_resume: the solutions, and answers that are wrong in a way that has a name."""

from pathlib import Path

TESTS = "tests/test_notebooks_m07.py"
CHECKS = {"load_session": (TESTS, "test_load"), "write_receipt": (TESTS, "test_receipt")}

LOAD = '''
import os
import tinyharness

def load_session(path):
    """The messages of a session, ready to send; [] if there is no file. It only reads."""
    records = []
    if os.path.exists(path):
        with open(path, "rb") as file:
            for line in file:
                found, problem = tinyharness.parse_line(line)
                records.extend(found)
    return tinyharness.repair(records)
'''
RECEIPT = '''
import tinyharness

def write_receipt(session):
    """What was found in a session, as text; it looks, and changes nothing."""
    read, skipped = session.records, session.skipped
    lines = [f"{len(read)} records read, {len(skipped)} lines skipped"]
    lines += [f"skipped line {number}: {problem}" for number, problem in skipped]
    for call in tinyharness.open_calls(read):
        lines.append(f"call {call.name}: {tinyharness.judge_call(call, tinyharness.hash_file)}")
    return "\\n".join(lines)
'''
CHAPTER = Path(__file__).parents[1].joinpath("chapter.py").read_text(encoding="utf-8")
CHAPTER_RECEIPT = '''
def write_receipt(session):
    lines = [f"{len(session.records)} records read, {len(session.skipped)} lines skipped"]
    lines += [f"skipped line {number}: {problem}" for number, problem in session.skipped]
    last = session.records[-1]
    for call in last.get("tool_calls", []):
        lines.append(f"call {call['function']['name']}: 结果未知：上次运行在此中断")
    return "\\n".join(lines)
'''
LAST_MESSAGE = '''
import tinyharness

def load_session(path):
    keys = ("role", "content", "tool_calls", "tool_call_id")
    messages = [{key: record[key] for key in keys if key in record}
                for record in tinyharness.read_jsonl(path) if "role" in record]
    lost = messages[-1].get("tool_calls", []) if messages else []
    return messages + [{"role": "tool", "tool_call_id": call["id"], "content": "结果未知"}
                       for call in lost]
'''


def change(source, *pairs):
    """A solution with some of its lines replaced; each old text must be there once."""
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


REPAIR = "    return tinyharness.repair(records)\n"
FOUND = "                records.extend(found)\n"
EACH_LINE = "            for line in file:\n"
SKIPPED = '    lines += [f"skipped line {number}: {problem}" for number, problem in skipped]\n'
EACH = "    for call in tinyharness.open_calls(read):\n"
VERDICT = "{tinyharness.judge_call(call, tinyharness.hash_file)}"
AGAIN = '''        import json
        tinyharness.TOOLS[call.name](session, **json.loads(call.arguments))
'''

SOLUTION = {"load_session": LOAD, "write_receipt": RECEIPT}
WRONG = {
    "load_session": {  # the mistake: (the cell, words that the check must say)
        "the chapter's own": (CHAPTER, "one torn line or a record of another kind makes all unreadable"),
        "the chapter's idea: the last message only": (
            LAST_MESSAGE, "looking at the last message only is not enough"),
        "it sends whole records": (
            change(LOAD, (REPAIR, '    return [each for each in records if "role" in each]\n')),
            "a provider refuses the history"),
        "it stops at the first damaged line": (
            change(LOAD, (FOUND, "                if problem:\n                    break\n" + FOUND)),
            "a torn line costs more than itself"),
        "it makes the file that is missing": (
            change(LOAD, ("    records = []\n", '    open(path, "a").close()\n    records = []\n')),
            "loading does not make it"),
        "a file that is missing is an error": (
            change(LOAD, ("    if os.path.exists(path):\n", "    if True:\n")),
            "a file that is not there is an empty session, and no error: FileNotFoundError"),
        "it throws away what stands on a damaged line": (
            change(LOAD, (FOUND, "                if not problem:\n    " + FOUND)),
            "a torn record, and a whole one on one line, and a whole record is thrown away"),
        "it takes one record of each line": (
            change(LOAD, ("records.extend(found)", "records.extend(found[:1])")),
            "two records on one line, and a whole record is thrown away"),
        "the lines are text": (
            change(LOAD, ('open(path, "rb")', 'open(path, encoding="utf-8", errors="replace")')),
            "load_session ends in AttributeError: 'str' object has no attribute 'decode' (m07.py, line "),
        "splitlines() of the bytes": (
            change(LOAD, (EACH_LINE, "            for line in file.read().splitlines():\n")), "a record is cut in two"),
        "splitlines() of the text": (
            change(LOAD, (EACH_LINE, "            for line in map(str.encode, file.read().decode().splitlines()):\n")),
            "a record is cut in two"),
        "it writes the repair down": (
            change(LOAD, (REPAIR, "    messages = tinyharness.repair(records)\n"
                          "    for message in messages[-1:]:\n"
                          "        tinyharness.append_jsonl(path, message)\n"
                          "    return messages\n")),
            "loading writes to the file"),
        "it says that the call was not executed": (
            change(LOAD, (REPAIR, "    messages = tinyharness.repair(records)\n"
                          "    for each in messages:\n"
                          '        if each["role"] == "tool" and "no result" in each["content"]:\n'
                          '            each["content"] = "not executed"\n'
                          "    return messages\n")),
            "the log cannot know"),
        "it drops the calls and their results": (
            change(LOAD, (REPAIR, "    return [each for each in tinyharness.repair(records)\n"
                          '            if each["role"] != "tool" and "tool_calls" not in each]\n')),
            "a real result is lost or replaced"),
    },
    "write_receipt": {
        "the chapter's idea: the last message only": (
            CHAPTER_RECEIPT, "looking at the last message is not enough"),
        "it counts the messages only": (
            change(RECEIPT, ("{len(read)} records", "{sum('role' in each for each in read)} records")),
            "events among them"),
        "it hides what was skipped": (change(RECEIPT, (SKIPPED, "")), "the receipt hides that line"),
        "it returns a list": (
            change(RECEIPT, ('"\\n".join(lines)', "lines")), "a receipt is text that a person reads: a str, and no list"),
        "it names the first open call only": (
            change(RECEIPT, (EACH, "    for call in tinyharness.open_calls(read)[:1]:\n")), "of one message are open: name both"),
        "it names each call, also those that have a result": (
            change(RECEIPT, (EACH, "    calls = [call for _, _, calls in tinyharness.group_calls(read)\n"
                             "             for call in calls]\n    for call in calls:\n")),
            "this call has its result"),
        "it says that the call was not executed": (
            change(RECEIPT, (VERDICT, "not executed")), "the log cannot know"),
        "it judges from the log alone": (
            change(RECEIPT, (VERDICT, "{tinyharness.judge_call(call)}")),
            "look at the file, not only at the log"),
        "it writes the verdicts down": (
            change(RECEIPT, ('    return "', '    tinyharness.settle_calls(session)\n    return "')),
            "it only looks"),
        "it puts a verdict into the file": (
            change(RECEIPT, ('    return "', '    tinyharness.append_jsonl(session.path, {"role": "tool", '
                             '"content": lines[-1], "tool_call_id": "c1"})\n    return "')),
            "the receipt wrote to the file"),
        "it runs the open call again": (
            change(RECEIPT, (EACH, EACH + AGAIN)), "opening a session runs nothing by itself"),
    },
}

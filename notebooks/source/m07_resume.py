# %% [markdown] id="title"
# # 7 · Resume (恢复): close the lid, open it again
#
# An agent is at work, and its process dies in the middle of a tool. Whoever opens the session next has nothing but
# its file: one JSON record a line, each written as soon as it was true (milestone 3). `repair` makes a valid history
# of it (milestone 4), and a `started` record says which tool had begun (milestone 5). Here somebody opens that file.
#
# When you are through with this page, you can
#
# - go on with a session that was killed, and killed again while it was being resumed,
# - say why opening a session only looks: nothing is written, nothing runs,
# - say why a second process must be refused, although every append is a whole line,
# - tick off the course's self-check list by running its four points.
#
# This is §7 of `tinyharness.py`. All of it runs offline: the model is a script that plays one task.
#
# The next cell makes a folder for this page, and shows the lines that **open a session**. First the lock, then the
# records. Who cannot have the lock gets no session, only one line that says who wrote last. Nobody has to clean up
# after a crash, for the system drops the lock of a process that dies.

# %% id="setup"
import inspect
import os
import shutil
import subprocess
import sys
import time

import course
import tinyharness

folder = course.fresh("m07_resume")
print(inspect.getsource(tinyharness.Session.__enter__))

# %% [markdown] id="program-why"
# ## A real program, a real kill
#
# We run `python tinyharness.py` as you would in a terminal, as a process of its own. Its task: repair a date parser
# until the test passes. We make that test slow: it waits for a file named `go`, ten seconds at most. So there is
# time to hit the agent *while* its `bash` tool runs, with SIGKILL, which no program can catch. (`--rehearse`: the scripted
# model plays. `--yes`: nobody is asked before a tool runs. To see it once more, run the cells from the first kill on again.)
#
# **Predict**: which record will be the last one in the file?

# %% id="program"
desk = folder / "desk"
tinyharness.make_demo(desk)
slow = """import os, pathlib, time
pathlib.Path("running").write_text(str(os.getpid()))
end = time.time() + 10
while not pathlib.Path("go").exists() and time.time() < end:
    time.sleep(0.02)
"""
(desk / "test_parse_date.py").write_text(slow + tinyharness.TEST)

def start(*arguments):
    """Start `python tinyharness.py` in this page's folder, with nobody at its keyboard."""
    command = [sys.executable, course.ROOT / "tinyharness.py", "--rehearse", "--yes", *arguments]
    return subprocess.Popen(command, cwd=folder, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

# %% id="first-kill"
def kill_in_tool(*arguments):
    """Start an agent, wait until its bash tool runs the test, and kill it; the test lives on."""
    for name in ("running", "go"):
        (desk / name).unlink(missing_ok=True)
    agent, running = start(*arguments), desk / "running"
    while not (running.exists() and running.read_text()):
        assert agent.poll() is None, "The agent ended by itself: it is done. Begin at the first kill again."
        time.sleep(0.01)
    agent.kill()
    assert agent.wait() == -9
    os.kill(int(running.read_text()), 0)  # no signal, only a question: an error if the test is dead
    print("The agent was killed by SIGKILL. The test that it had started is still running.")

kill_in_tool("--workspace", "desk", "--sessions", "sessions", tinyharness.TASK)
log = max((folder / "sessions").glob("*.jsonl"))  # a session's name begins with its date
display(course.columns(log, memory=["the test's output"], lost="process"), course.picture(log))

# %% [markdown] id="quit-why"
# ## Resume, and quit
#
# The last record is `started`. The log knows that the test began, and no more, so `outcome unknown` (结果未知) is the
# honest verdict: the test was in fact still running.
#
# `--resume` takes a path, prints a **receipt** of what it found, and waits for you. Nobody types here, so it ends. We
# do it twice. **Predict**: how many bytes of the file will have changed?

# %% id="quit"
path = f"sessions/{log.name}"
before = log.read_bytes(), log.stat().st_mtime_ns
first, second = [start("--resume", path).communicate()[0] for _ in range(2)]
print(first)
assert second == first and (log.read_bytes(), log.stat().st_mtime_ns) == before
print("The file is byte for byte as before; not even its date is new.")

# %% [markdown] id="second-kill-why"
# ## Go on, and die again
#
# None. Only with a word to say, here "continue", does the session go on. Then it writes who goes on, and the verdict
# on the old call, *before* your word: what the model is told is on record. And we kill it again, in the same tool.

# %% id="second-kill"
kill_in_tool("--resume", path, "continue")
assert log.read_bytes().startswith(before[0])
course.picture(log)

# %% [markdown] id="two-why"
# ## Two at once
#
# Two terminals, one thought: both resume this session at the same moment. Nobody knows which one wins, but only one
# does. The other one gets one clear line. Then we let the test go, and the winner ends its work.
#
# "An append is atomic, so no lock is needed", says the chapter. But whole lines are not yet a conversation. In the second
# cell each line is whole, and two programs take turns (the cell plays both). The strict server, which answers as strict
# providers do, refuses it. Repaired it is accepted, and the model reads two people's wishes as one conversation.

# %% id="two"
(desk / "go").unlink(missing_ok=True)
pair = [start("--resume", path, "continue") for _ in range(2)]
while all(each.poll() is None for each in pair):
    time.sleep(0.01)
loser, winner = sorted(pair, key=lambda each: each.poll() is None)
print("ONE:", loser.communicate()[0])
(desk / "go").touch()
print("THE OTHER:", winner.communicate()[0].partition("\nto go on:")[0])
assert (loser.returncode, winner.returncode) == (2, 0), "It was done before. Begin at the first kill again."

# %% id="braid"
braid = folder / "braid.jsonl"
braid.unlink(missing_ok=True)
function = {"name": "bash", "arguments": '{"command": "ls"}'}
for record in ({"role": "user", "content": "A: tidy up, but keep my notes"},
               {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
               {"role": "user", "content": "B: delete all that is old"},
               {"role": "tool", "tool_call_id": "c1", "content": "notes.txt"}):
    tinyharness.append_jsonl(braid, record)
print("as written:", course.ask_strict(tinyharness.read_jsonl(braid)))
print("repaired:", course.ask_strict(tinyharness.load_session(braid)))
course.picture(braid)

# %% [markdown] id="kill-warning"
# ## Now the kernel itself
#
# ⚡ **The next cell kills this kernel**, when a real agent's edit is in the file and its result is not yet in the log. Jupyter tells
# you that the kernel died, and starts a new one. (VS Code asks first: choose *Restart*.) Then select the cell below
# it, and choose *Run Selected Cell and All Below*. That cell starts from nothing but the files. What the crash left stays there as it is, and we go
# on with copies of it: so you can run that cell and all below it as often as you like, tomorrow too.

# %% id="kill" tags=["crash"]
crash = folder / "crash"
shutil.rmtree(crash, ignore_errors=True)
tinyharness.make_demo(crash / "workspace")
tools = course.deadly(tinyharness.TOOLS, "edit_file", "after")
with tinyharness.Session(crash / "session.jsonl", crash / "workspace", "rehearsal") as session:
    tinyharness.run_turn(session, tinyharness.TASK, tinyharness.rehearsal_model, tools)

# %% id="restart"
import itertools
import json
import shutil

import course
import tinyharness

folder = course.reopen("m07_resume")
crash = folder / "crash"
if not (crash / "kept").exists():
    shutil.copytree(crash / "workspace", crash / "kept")
shutil.copytree(crash / "kept", crash / "workspace", dirs_exist_ok=True)
log = shutil.copy(crash / "session.jsonl", crash / "resumed.jsonl")
[call] = tinyharness.open_calls(tinyharness.read_jsonl(log))
assert call.name == "edit_file" and call.started
assert "+ 1" in (crash / "workspace" / "parse_date.py").read_text()
course.columns(log, memory=["edit_file's result"], lost="process")

# %% [markdown] id="load-why"
# ## Exercise 1: `load_session`
#
# The edit is in the file; the word that it is done went down with the kernel. What is left is a new process, and the log.
# Write the function that turns a log into messages that a provider accepts. The parts exist:
#
# - `tinyharness.parse_line(line)` takes one line, as *bytes*, and returns `(records, problem)` (milestone 3). Both can be there: where a newline
#   was lost, a whole record stands behind a torn one, on one line. A line ends at `b"\n"`, and nowhere else.
# - `tinyharness.repair(records)` returns the messages (milestone 4)
#
# The cell is saved to `notebooks/my/m07.py` when you run it, so it brings its own imports. Red lines say what is wrong, one for
# each check that fails. The same from a shell, for both exercises: `python -m pytest tests/test_notebooks_m07.py --impl notebooks/my/m07.py`.
#
# <details><summary>Hint</summary>
#
# No file is an empty session. Open it to read, as bytes. Collect the records of *all* lines, whatever is wrong with
# one of them, and repair them together. Write nothing. Still stuck? `print(inspect.getsource(tinyharness.load_session))`, after `import inspect`.
#
# </details>

# %% id="load"
%%exercise load_session
import tinyharness

def load_session(path):
    """The messages of a session, ready to send; [] if there is no file. It only reads."""
    raise NotImplementedError

# %% id="load-check"
course.check("load_session")

# %% [markdown] id="receipt-why"
# ## Exercise 2: the receipt
#
# Before anybody goes on, a person should read what was found. `session.records` holds what was read, `session.skipped` the
# pairs `(line number, problem)`. Write a text of these lines: the counts, each skipped line, each call without a result.
#
#     5 records read, 1 lines skipped
#     skipped line 3: torn or damaged JSON
#     call bash: outcome unknown: it may have run ...
#
# The words are graded exactly as they stand here, "1 lines" too: so a program can find them. (Three dots stand for the rest of a verdict.)
#
# `tinyharness.open_calls(records)` finds the calls; `tinyharness.judge_call(call, tinyharness.hash_file)` looks at the log, and at the file if
# there is one, and gives the verdict.
#
# <details><summary>Hint</summary>
#
# Three kinds of lines, joined with newlines. If you feel like answering an open call here, or running it: don't. A receipt only looks.
#
# </details>

# %% id="receipt"
%%exercise write_receipt
import tinyharness

def write_receipt(session):
    """What was found in a session, as text; it looks, and changes nothing."""
    raise NotImplementedError

# %% id="receipt-check"
course.check("write_receipt")

# %% [markdown] id="list"
# ## The self-check list
#
# The course ends with four points. We run each of them. (Your functions play, or the script's, where yours are not written yet.)
#
# **1 · The history is written in real time.** The model in the next cell looks at the file each time it is asked: does
# the file alone give the very messages that it was sent?
#
# **2 · `--resume` goes on.** The session that died with the kernel is opened, told "continue", and does the rest. In the
# second cell: no old byte changed, and the edit that was in place was not made twice.

# %% id="point-1"
def try_mine(my_function, *arguments):
    """Call your function; the script's one if yours is not written yet."""
    try:
        return my_function(*arguments)
    except NotImplementedError:
        return getattr(tinyharness, my_function.__name__)(*arguments)

def watching_model(messages, tools):
    same = tinyharness.load_session(log) == messages[1:]  # [0] is the system prompt, in no file
    print(f"asked with {len(messages)} messages; the file alone gives the same: {same}")
    return tinyharness.rehearsal_model(messages, tools)

before = log.read_bytes()
with tinyharness.Session(log) as session:
    print(try_mine(write_receipt, session))
    tinyharness.run_turn(session, "continue", watching_model)

# %% id="point-2"
source = (crash / "workspace" / "parse_date.py").read_text()
assert log.read_bytes().startswith(before) and source.count("+ 1") == 1
assert tinyharness.describe_state(tinyharness.read_jsonl(log)) == "done"
course.picture(log)

# %% [markdown] id="point-3-why"
# **3 · A dangling call (悬空 tool_use) is handled.** Not in one place: everywhere. Take the log that was killed twice, without the verdicts,
# as a harness leaves it that repairs only what it sends. Cut it behind *each* line, as if a kill had come there, and
# load what is left. Beside it, the chapter's idea: look at the last message.

# %% id="point-3"
def chapter_load(path):
    keys = ("role", "content", "tool_calls", "tool_call_id")
    said = [{key: each[key] for key in keys if key in each}
            for each in tinyharness.read_jsonl(path) if "role" in each]
    return said + [{"role": "tool", "tool_call_id": call["id"], "content": "结果未知"}
                   for call in said[-1].get("tool_calls", [])]

twice = max((folder / "sessions").glob("*.jsonl"))
cut = folder / "cut.jsonl"
lines = [line for line in twice.read_bytes().splitlines(True) if b'"verdict"' not in line]
for load in (chapter_load, load_session):
    answers = []
    for end in range(2, len(lines) + 1):
        cut.write_bytes(b"".join(lines[:end]))
        answers.append(course.ask_strict(try_mine(load, cut))[:3])
    print(load.__name__, [f"{len(list(same))} × {answer}" for answer, same in itertools.groupby(answers)])

# %% [markdown] id="point-4-why"
# The chapter's way holds until somebody speaks after the crash. Then the dangling call is no longer in the last message, and from there on
# *every* request is refused: nobody can go on, although not a byte is missing.
#
# **4 · Why append, and not one big JSON?** Count the bytes that each way hands to the system for the same messages.
# What is more than needed is called *write amplification* (写放大).

# %% id="point-4"
print("messages   appended   one big JSON   factor")
for count in (50, 100, 200):
    (folder / "lines.jsonl").unlink(missing_ok=True)
    messages, rewritten = [], 0
    for number in range(count):
        messages.append({"role": "user", "content": f"{number:03d} 修复 🐞"})
        tinyharness.append_jsonl(folder / "lines.jsonl", messages[-1])
        rewritten += (folder / "big.json").write_bytes(json.dumps(messages, ensure_ascii=False).encode())
    appended = (folder / "lines.jsonl").stat().st_size
    print(f"{count:8} {appended:10} {rewritten:14} {rewritten / appended:8.1f}")

# %% [markdown] id="recap"
# **A question to answer yourself.** What does one big JSON cost as a session grows? And is the cost the worst of it?
#
# <details><summary>Answer</summary>
#
# Twice the messages, four times the bytes: message number *n* writes *n* messages again, so the factor is about half
# their number. That is the price. The risk is worse: while the file is rewritten, the old copy is gone and the new
# one not yet there, so a kill can take *everything*; during an append it takes one line at most. (A temporary
# file and a rename cure the risk, not the price.) And bytes that never change can be compared and trusted: this is why the
# cells above could say "starts with what was there before".
#
# </details>
#
# ## How others do it
#
# From their public sources, for you to compare:
#
# - **Codex** opens a session's one rollout file again to append to it
#   ([recorder.rs](https://github.com/openai/codex/blob/main/codex-rs/rollout/src/recorder.rs), formerly in `codex-rs/core/src/rollout`). A user who had
#   it open in two apps found two histories merged in it ([issue 33241](https://github.com/openai/codex/issues/33241)).
# - **OpenHands** writes one file for each event, beside a small base state that it overwrites ([its guide](https://docs.openhands.dev/sdk/guides/convo-persistence)).
# - **jcode** keeps a snapshot, a journal, and a folder `active_pids`
#   ([storage_paths.rs](https://github.com/1jehuang/jcode/blob/ea459d6c4fb2cf96e64104e251534784b1a4a6d4/src/session/storage_paths.rs)).
# - **pi** repairs what it sends, not the file
#   ([transform-messages.ts](https://github.com/earendil-works/pi/blob/main/packages/ai/src/api/transform-messages.ts)); **dsh** appends its verdicts, as we do
#   ([packages/core/session/src/repair.ts](https://github.com/deepseek-ai/deepseek-harness/blob/HEAD/packages/core/session/src/repair.ts)).
#
# ## In three lines
#
# - Resuming is a fold: a file in, messages out. The process that died is not needed for it.
# - Opening looks. Only going on writes, and only you make it go on.
# - One process at a time; the lock ends with its process.
#
# With a key set, the same in a terminal: `python tinyharness.py "fix the tests"`, close the lid, then `python tinyharness.py --resume last`.
#
# **Open question:** of a hundred sessions, which ones are done, and which ones crashed? Nothing new has to be stored to know it. → §8, `describe_state`

# %% id="end"
assert rewritten > 90 * appended
for path in (log, twice):
    records = tinyharness.read_jsonl(path)
    assert course.ask_strict(tinyharness.load_session(path)) == "200 ok"
    assert tinyharness.open_calls(records) == [] and tinyharness.describe_state(records) == "done"
    print("done; it was told:", [record["verdict"] for record in records if "verdict" in record])

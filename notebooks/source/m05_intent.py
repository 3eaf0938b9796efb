# %% [markdown] id="title"
# # 5 · Intent: did it run?
#
# The last stage (`m04_repair`) gave an answer to each call that has none, a *dangling call* (悬空 tool_use). It did
# not say where the words of that answer come from. They matter: a model believes what it reads.
#
# At the end of this page you can say of an interrupted call what is known, and nothing more; and you have written the
# function that says it. The code is §5 of `tinyharness.py`. All of it runs offline, and two things will be killed:
# child processes, and once this kernel.

# %% id="setup"
import inspect
import json
import shutil
import time

import course
import tinyharness

folder = course.fresh("m05_intent")

# %% [markdown] id="pay-text"
# ## A tool that nobody can look behind
#
# Here is a payment in two steps: first your money is taken, and a second later the shop gets it. Both are lines in a
# ledger. `ask` is what a model says when it wants a tool. We send both to child processes as text, for a child can
# be killed as often as we like.

# %% id="pay"
def pay(session, euros: int) -> str:
    """Pay the shop."""
    with open(f"{session.workspace}/ledger.txt", "a", buffering=1) as ledger:
        print(f"taken from you: {euros}", file=ledger)
        time.sleep(1)  # the bank takes its time
        print(f"given to the shop: {euros}", file=ledger)
    return f"given to the shop: {euros}"

def ask(name, **arguments):
    """A model's reply that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": name, "type": "function", "function": function}]}

# %% id="turn"
shop = f"""import course, json, sys, time, tinyharness
{inspect.getsource(pay)}
{inspect.getsource(ask)}
tools = dict(tinyharness.TOOLS)
tinyharness.tool(tools)(pay)
"""
turn = shop + """
world, moment, name, arguments = sys.argv[1:]
with tinyharness.Session(f"{world}/session.jsonl", world) as session:
    tinyharness.run_turn(session, "Please do it.", lambda *_: ask(name, **json.loads(arguments)),
                         course.deadly(tools, name, moment),
                         approve=lambda *_: moment == "early" and course.kill_kernel())
"""

# %% [markdown] id="worlds-text"
# ## Three worlds
#
# `course.deadly` lets a tool kill its process before, during or after its effect. The turn around it is the real one.
#
# **Predict:** what is in the ledger each time? And in which of the three will the *log* be different?

# %% id="worlds"
def kill(world, moment, name, **arguments):
    """Take a turn with one call in a child that dies; return how it ended."""
    shutil.rmtree(folder / world, ignore_errors=True)
    (folder / world).mkdir()
    (folder / world / "ledger.txt").touch()
    return course.in_child(turn, world, moment, name, json.dumps(arguments))

for moment in ("before", "during", "after"):
    print(f"{moment}: {kill(moment, moment, 'pay', euros=7)}")
    print((folder / moment / "ledger.txt").read_text() or "(nothing in the ledger)\n")

# %% id="logs"
def story(world):
    """What the log tells, without the times, and without the first line, which names the folder."""
    records = tinyharness.read_jsonl(folder / world / "session.jsonl")
    return [{**record, "ts": 0} for record in records[1:]]

print("three equal logs:", story("before") == story("during") == story("after"))
log = folder / "after" / "session.jsonl"
display(course.picture(log))
course.columns(log, memory=["result: given to the shop"], lost="process")

# %% [markdown] id="wrong-text"
# Three worlds, one log. The result that would tell them apart was in the process, and died with it, even where
# the tool had done all of its work.
#
# ## Paid twice
#
# A repair has to write *something* where the result is missing. "Not executed" looks natural: there is no result, so it
# did not run. Below, a repair says so to a careful model: it does not repeat what it knows to be done, and it looks into
# the ledger when it reads that the outcome is unknown.

# %% id="careful"
def careful_model(messages, tools):
    """Believes the last result that it reads."""
    told = [each["content"] for each in messages if each["role"] == "tool"][-1]
    if "given" in told:
        return {"content": "It is paid."}
    if "taken" in told:
        return {"content": "Half of it is done. I do not repeat it: please call the bank."}
    return ask("read_file", path="ledger.txt") if "unknown" in told else ask("pay", euros=7)

resume = shop + inspect.getsource(careful_model) + """
world, *words = sys.argv[1:]
if words:  # a repair that says the same of every open call
    tinyharness.judge_call = lambda call, probe=None: words[0]
with tinyharness.Session(f"{world}/session.jsonl", world) as session:
    tinyharness.run_turn(session, "continue", careful_model, tools)
"""

# %% id="twice"
for world in ("before", "after"):
    copy = f"{world}-wrong"
    shutil.copytree(folder / world, folder / copy, dirs_exist_ok=True)
    print(f"killed {world} the effect: {course.in_child(resume, copy, 'not executed')}")
    print((folder / copy / "ledger.txt").read_text())

# %% [markdown] id="once-text"
# In one world the words were true, by luck; in the other the money went twice. The model made no mistake: it believed
# what it read.
#
# Now the same logs with the words of `tinyharness`: *outcome unknown*, the chapter's 结果未知.

# %% id="once"
for world in ("before", "during", "after"):
    copy = f"{world}-right"
    shutil.copytree(folder / world, folder / copy, dirs_exist_ok=True)
    print(f"killed {world} the effect: {course.in_child(resume, copy)}")
    print((folder / copy / "ledger.txt").read_text())

# %% [markdown] id="started-text"
# Your money was taken once in each world. The price is a look at the ledger, and in the middle world a telephone call:
# no log can repair half a payment.
#
# ## When the log does know
#
# If everything were unknown, the model would have to look behind every call. So before each effect a `started` record
# goes on disk. The next child dies earlier than that: while somebody is asked whether the payment is allowed (the
# `approve` of `turn`).

# %% id="early"
print(kill("early", "early", "pay", euros=7))
print(inspect.getsource(tinyharness.make_intent))
course.picture(folder / "early" / "session.jsonl")

# %% [markdown] id="probe-text"
# No `started`: it certainly never ran, so the verdict is *not started*. But that takes a program that always writes
# `started`. A log by another program lacks it too, and there its absence proves nothing: outcome unknown.
#
# ## A tool that can be looked at
#
# `write_file` leaves something to look at. Its `started` record holds (see above) what a *probe* saw in the file before,
# and what it would see after. A repair can let the probe look again, and compare.
#
# **Predict:** three kills again. How many different verdicts?
#
# Then the cell looks at two plans in three ways: is the file there, its size, and the SHA-256 of its content.

# %% id="write"
def look(world):
    [call] = tinyharness.open_calls(tinyharness.read_jsonl(folder / world / "session.jsonl"))
    return tinyharness.judge_call(call, tinyharness.hash_file)

for moment in ("before", "during", "after"):
    kill(f"write-{moment}", moment, "write_file", path="plan.txt", content="the new plan\n")
    print(f"killed {moment} the effect: {look(f'write-{moment}')}")
(folder / "write-during" / "plan.txt").write_text("the plan of somebody else\n")
print(f"and then somebody came: {look('write-during')}")

plan = folder / "plan.txt"
for text in ("wait for Anna\n", "pay 700 euros\n"):
    plan.write_text(text)
    print(text.strip(), "->", plan.exists(), plan.stat().st_size, tinyharness.hash_file(plan)[:12])

# %% [markdown] id="crash-text"
# Killed in the middle counts as *not applied*: the new bytes were in a temporary file and not yet in place. What somebody
# does between the crash and the resume is seen too. But the probe must look at the content: whether there is a file, and
# how large it is, are the same for two very different plans.
#
# ## The tool that outlives its kernel
#
# Now it is this kernel's turn. **The next cell kills it**, in the middle of a `bash` tool that writes 25 lines into a
# diary, and then "end". JupyterLab says that the kernel died, and restarts it (in VS Code, click *Restart*). Then go on
# with the cell after it: *Run Selected Cell and All Below*.
#
# **Predict:** where will the diary end?

# %% id="crash" tags=["crash"]
command = 'for n in $(seq 25); do echo "line $n" >> diary.txt; sleep 0.1; done; echo end >> diary.txt'
tools = course.deadly(tinyharness.TOOLS, "bash", "during")
with tinyharness.Session(folder / "session.jsonl", folder / "workspace") as session:
    tinyharness.run_turn(session, "Write a diary.", lambda *_: ask("bash", command=command), tools)

# %% id="restart"
import time

import course
import tinyharness

folder = course.reopen("m05_intent")
diary = folder / "workspace" / "diary.txt"
with tinyharness.Session(folder / "session.jsonl") as session:
    print(tinyharness.write_receipt(session))
    assert [call.name for call in tinyharness.open_calls(session.records)] == ["bash"]

# %% id="outlived"
for _ in range(100):
    if diary.read_text().endswith("end\n"):
        break
    time.sleep(0.1)
died = (folder / "crash.json").stat().st_mtime + course.PAUSE
print("lines in the diary:", diary.read_text().count("line"))
print("went on after the kernel was dead:", diary.stat().st_mtime > died)

# %% [markdown] id="exercise-probe-text"
# The log has one open call. The command did not end with the kernel: nobody told it to. (`kill_kernel` notes the time
# before it kills; the diary's last line is younger.) For a while, "not executed" was worse than wrong: it *was being*
# executed. That is why the verdict says "or may still run".
#
# ## Exercise 1: the probe
#
# Write `hash_file(path)`: SHA-256, in hex digits, of what the file holds. That there is no file is an answer too: "no
# file". It only reads. Run the cell, then the check, as often as you like. From a shell, in the folder of the project, for both exercises
# of this page: `python -m pytest tests/test_notebooks_m05.py --impl notebooks/my/m05.py`.
#
# <details><summary>Hint</summary>
#
# `pathlib.Path(path).read_bytes()` gives the bytes; without a file it raises `FileNotFoundError`.
# `hashlib.sha256(data).hexdigest()` gives the digits.
#
# </details>

# %% id="exercise-probe"
%%exercise hash_file
import hashlib
import pathlib

def hash_file(path):
    """SHA-256 of what a file holds, or "no file"; it only reads."""
    raise NotImplementedError

# %% id="check-probe"
course.check("hash_file")

# %% [markdown] id="exercise-verdict-text"
# ## Exercise 2: the verdict
#
# Write `judge_call(call, probe=None)`. `call.started` is the `started` record, `{}` if there is none; `call.tracked`
# says whether the program that wrote this call always writes one. `probe` is a function such as yours, or `None`: do not look.
#
# | `call.started` | verdict |
# |---|---|
# | `{}`, and the call is tracked | `NOT_STARTED` |
# | `{}`, and it is not | `UNKNOWN` |
# | has `path`, `before`, `after`, and there is a probe | `APPLIED`, `NOT_APPLIED` or `DIFFERS`; applied if both fit |
# | the same without a probe | `UNKNOWN` |
# | `read_only` is true | `INTERRUPTED` |
# | anything else | `UNKNOWN` |
#
# <details><summary>Hint</summary>
#
# `"before" in call.started` tells whether the file can be looked at; then compare `probe(call.started["path"])` with
# `call.started["after"]` first.
#
# </details>
#
# Under its check, your verdict judges five crashes of this page, with your probe; the first one is this kernel's. `write-during` is to be
# *differs*, although its call was not applied: after that crash this page wrote somebody else's plan into the file.

# %% id="exercise-verdict"
%%exercise judge_call
from tinyharness import APPLIED, DIFFERS, INTERRUPTED, NOT_APPLIED, NOT_STARTED, UNKNOWN

def judge_call(call, probe=None):
    """The verdict on a call without a result: what is known, and nothing more."""
    raise NotImplementedError

# %% id="check-verdict"
course.check("judge_call")

for world in (".", "early", "write-before", "write-during", "write-after"):
    [call] = tinyharness.open_calls(tinyharness.read_jsonl(folder / world / "session.jsonl"))
    try:
        print(f"{call.name} ({world}): {judge_call(call, hash_file)}")
    except Exception as problem:
        print(f"{call.name} ({world}): {type(problem).__name__}")

# %% id="real"
# If a key is set, a real model reads these words, and may look at the diary.
course.real_turn(f"The call that wrote diary.txt was interrupted; {tinyharness.UNKNOWN}. What do you do?")

# %% [markdown] id="others"
# ## How real systems do it
#
# From their public sources. Read each with three worlds in mind: in which is it true?
#
# - **dsh** (DeepSeek) keeps two verdicts, `TOOL_NOT_STARTED` and `TOOL_OUTCOME_UNKNOWN`
#   ([packages/core/session/src/repair.ts](https://github.com/deepseek-ai/deepseek-harness/blob/HEAD/packages/core/session/src/repair.ts)).
# - **Codex** sends "aborted" for a call without output
#   ([normalize.rs](https://github.com/openai/codex/blob/main/codex-rs/core/src/context_manager/normalize.rs)).
# - **pi** sends "No result provided", in the request only
#   ([transform-messages.ts](https://github.com/earendil-works/pi/blob/main/packages/ai/src/api/transform-messages.ts)).
# - **OpenHands** (one file per event) appends an error that ends in "did not complete" ([event_service.py][openhands]).
#
# [openhands]: https://github.com/OpenHands/software-agent-sdk/blob/main/openhands-agent-server/openhands/agent_server/event_service.py
#
# ## In three lines
#
# - A log without a result fits three worlds; "not executed" is true in one of them.
# - `started` on disk before the effect: without it, it never ran; with it, look if you can, else say "unknown".
# - A verdict claims what is known: the careful model then pays once.
#
# These crashes came from outside. How do *you* stop a turn, without breaking it? That is `m06_control`.

# %% id="end"
paid = {world: (folder / world / "ledger.txt").read_text().count("taken")
        for world in ("before-right", "during-right", "after-right", "after-wrong")}
assert paid == {"before-right": 1, "during-right": 1, "after-right": 1, "after-wrong": 2}
assert diary.read_text().endswith("end\n")
[call] = tinyharness.open_calls(tinyharness.read_jsonl(folder / "session.jsonl"))
assert tinyharness.judge_call(call, tinyharness.hash_file) == tinyharness.UNKNOWN

# %% [markdown] id="title"
# # 6 · Control: how do you stop it without breaking it?
#
# You press Ctrl-C because the agent goes the wrong way. It stops. Then you type the next prompt, and the provider answers
# `400`: the session is broken, although nothing has crashed.
#
# After this page you can stop an agent at any moment, or say something to it while it works, and its history stays valid.
# This is §6 of `tinyharness.py`. It needs one function of the section before it: §5 of the script has `settle_calls`, which writes a *verdict* for
# each call that has no result. The next cell shows it. Its second argument, `cause`, says why there is none; left out, it speaks of a crash.

# %% id="setup"
import inspect
import json
import types

import course
import tinyharness

folder = course.fresh("m06_control")
workspace = folder / "workspace"
place = types.SimpleNamespace(workspace=workspace)
print(inspect.getsource(tinyharness.settle_calls))

# %% [markdown] id="about-batch"
# ## A batch of three
#
# A model may ask for several calls in one reply: a *batch*. Our model is a small function, so that we know what it asks for.
# The second command of the batch presses Ctrl-C for you: `$PPID` is the process that started it, this kernel, and `INT` is
# the signal that Ctrl-C sends, and the ■ button above this page too. So the interrupt comes while call 2 runs, each time.

# %% id="model"
def model_of(*commands):
    """A model that asks for all these commands in one reply, and afterwards is content."""
    def model(messages, tools):
        if any("tool_calls" in message for message in messages):
            return {"role": "assistant", "content": "All calls have a result."}
        said = [{"name": "bash", "arguments": json.dumps({"command": each})} for each in commands]
        calls = [{"id": f"call{number}", "type": "function", "function": function}
                 for number, function in enumerate(said, 1)]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    return model

stopping = model_of("echo done", "sleep 0.3; kill -INT $PPID; sleep 2; touch late.txt", "touch never.txt")

# %% [markdown] id="about-naive"
# ## The obvious way to stop
#
# Here is a loop as most people write it first. The last two lines are the whole of its control. The tool is the real `bash`.
#
# **Predict:** call 1 is done, call 2 runs, call 3 has not begun. Ctrl-C comes, and then you type `continue`. How many results
# does the history hold, and what does a strict provider say to it?

# %% id="naive"
def naive_turn(messages, model, listen=list):
    calls = True
    try:
        while calls:
            reply = model(messages, [])
            messages.append(reply)
            calls = reply.get("tool_calls", [])
            for call in calls:
                output = tinyharness.bash(place, **json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
                messages += [{"role": "user", "content": line} for line in listen()]
    except KeyboardInterrupt:
        print("stopped")

# %% id="naive-stop"
messages = [{"role": "user", "content": "Run all three."}]
naive_turn(messages, stopping)
messages.append({"role": "user", "content": "continue"})
print([message["role"] for message in messages])
print(course.ask_strict(messages))
course.columns(folder / "naive.jsonl", memory=messages)

# %% [markdown] id="about-truths"
# Three calls, one result: the stop worked, and it broke the session. (And all of it is only in memory. You know that one.)
#
# ## Three results, and each is a different truth
#
# A valid history needs a result for each call. To make them up is easy; to make them *true* is the work. Now the same batch and the
# same interrupt in the script's loop:

# %% id="stop"
log = folder / "session.jsonl"
log.unlink(missing_ok=True)
try:
    with tinyharness.Session(log, workspace) as session:
        tinyharness.run_turn(session, "Run all three.", stopping)
except KeyboardInterrupt:
    print("stopped")
course.picture(log)

# %% [markdown] id="about-stop"
# Read it from the call downwards. Call 1 keeps its real result. Call 2 has a `started` record and no result: *outcome unknown* (结果未知).
# Call 3 has no `started`: it never ran. No "cancelled" for all three: that word is wrong for 1, and nobody knows it of 2.
#
# The command itself is dead too, with its whole process group: `late.txt` never appears (the last cell of this page looks).
# The last line says how the turn ended. These are records in the file; nothing has to be repaired when it is read:

# %% id="valid"
records = tinyharness.read_jsonl(log)
answers = [record["tool_call_id"] for record in records if record.get("role") == "tool"]
print(answers, records[-1]["state"])
assert answers == ["call1", "call2", "call3"] and not tinyharness.open_calls(records)
print(course.ask_strict(tinyharness.repair([*records, {"role": "user", "content": "continue"}])))

# %% [markdown] id="about-typed"
# ## A line typed while it works
#
# Often you do not want to stop it, only to tell it something: *steering*. But while a tool runs, a call is open. The naive loop writes the
# line behind the result that came last; the script keeps it until the next *safe place*, where no call is open: behind the last result of the
# batch, before the next request. **Predict** both orders, and both answers of the provider.

# %% id="typed"
quiet, typed = model_of("echo one", "echo two"), ["Look at the tests first."]
naive = [{"role": "user", "content": "Run both."}]
naive_turn(naive, quiet, lambda: [typed.pop()] if typed else [])
print("naive: ", [message["role"] for message in naive])
print(course.ask_strict(naive))

typed = ["Look at the tests first."]
(folder / "typed.jsonl").unlink(missing_ok=True)
with tinyharness.Session(folder / "typed.jsonl", workspace) as session:
    tinyharness.run_turn(session, "Run both.", quiet, listen=lambda: [typed.pop()] if typed else [])
    print("script:", [message["role"] for message in tinyharness.repair(session.records)])
    print(course.ask_strict(session.messages()))

# %% [markdown] id="kill-warning"
# The naive line stood between a call and its result. Behind the batch it costs nothing, for the next request is the first that could carry it.
#
# ## Killed in the middle of the stop
#
# A stop takes time: a verdict for call 2, one for call 3, the last line. What if the process dies between them? **The next cell kills this kernel**,
# right behind the first verdict: your notebook will say that the kernel died, and start it again. (VS Code asks first: say *Restart*.) Then select
# the cell below it, and use *Run Selected Cell and All Below*.
#
# **Predict:** which calls have a result in the file?

# %% id="kill" tags=["crash"]
(folder / "killed.jsonl").unlink(missing_ok=True)
with tinyharness.Session(folder / "killed.jsonl", workspace) as session:
    def append_and_die(record):
        tinyharness.Session.append(session, record)
        if "verdict" in record:
            course.kill_kernel()
    session.append = append_and_die
    tinyharness.run_turn(session, "Run all three.", stopping)

# %% id="restart"
import shutil

import course
import tinyharness

folder = course.reopen("m06_control")
# A copy, so that this cell and all below it can be run as often as you like.
log = shutil.copy(folder / "killed.jsonl", folder / "resumed.jsonl")
records = tinyharness.read_jsonl(log)
left = [record for record in records if "verdict" in record], tinyharness.open_calls(records)
assert [len(each) for each in left] == [1, 1], "one verdict, and one call still open"
course.columns(log, lost="process")

# %% [markdown] id="about-killed"
# Half a stop: one verdict, one open call, no last line. It does not matter. A stop is nothing but a crash that still had time to write,
# and both are settled by the same function. So the next turn begins with what the dead one could not finish:

# %% id="finish"
def repeat_results(messages, tools):
    """A model that says what it was told about the calls."""
    told = [message["content"] for message in messages if message["role"] == "tool"]
    return {"role": "assistant", "content": "\n".join(told)}

with tinyharness.Session(log) as session:
    tinyharness.run_turn(session, "What became of the calls?", repeat_results)
course.picture(log)

# %% [markdown] id="exercise-1"
# ## Your turn: stop it
#
# Write `control_turn`, around which the loop is built: `with control_turn(session): ...`. Read the docstring slowly; each sentence of it is a check. One
# of them takes the disk away for a moment: "in any case" means then too.
#
# A verdict says why a result is missing, and the two reasons are different: after a crash `tinyharness.settle_calls(session)`, after Ctrl-C
# `tinyharness.settle_calls(session, "interrupted by the user while it ran")`. From a shell, for both exercises of this page:
# `python -m pytest tests/test_notebooks_m06.py --impl notebooks/my/m06.py`.
#
# <details><summary>A hint</summary>
#
# `try`, `yield`, `except KeyboardInterrupt`, `finally`. The turn runs at the `yield`. Keep the state in a variable that
# starts as `"error"`: only who gets further may change it. Why read the file again? Ctrl-C may come when a
# record is on disk and not yet in `session.records`.
#
# </details>

# %% id="control-turn"
%%exercise control_turn
import contextlib

import tinyharness


@contextlib.contextmanager
def control_turn(session):
    """Open a turn, and close it however it ends.

    Before: a session with `in_turn` set raises a RuntimeError that names steer and abort; else it is set.
    Calls that a crash left open are settled: tinyharness.settle_calls(session).
    After Ctrl-C: read the records from session.path again, settle the open calls, this time with
    settle_calls(session, "interrupted by the user while it ran"), store what was typed
    (session.add_prompts([])), and let the interrupt travel on.
    In any case: `in_turn` is False, and the last record is {"event": "turn", "state": ...},
    where the state is "done", after Ctrl-C "aborted", and after any other error "error".
    """
    raise NotImplementedError

# %% id="check-1"
course.check("control_turn")

# %% [markdown] id="exercise-2"
# ## Your turn: steer it
#
# The inner part of the loop: answer a batch, and find the safe place for what was typed meanwhile.
#
# <details><summary>A hint</summary>
#
# `session.add_prompts(lines)` stores what was steered before, then these lines, and says whether there were any. What you have
# taken out of `listen()` and hold in a variable is lost when Ctrl-C comes: so take it where you store it.
#
# </details>

# %% id="run-batch"
%%exercise run_batch
def run_batch(session, calls, run, listen):
    """Answer each call with run(call), and store what was typed meanwhile.

    A result is the record {"role": "tool", "tool_call_id": call.id, "content": ...}, stored with
    session.append before the next call runs. `listen()` returns the lines typed since it was last
    asked. `calls` may be empty: then the model has just said its last words.
    Return whether the model must be asked again: after a call, or for a line.
    """
    raise NotImplementedError

# %% id="check-2"
course.check("run_batch")

# %% [markdown] id="about-yours"
# ## Both of yours in one loop
#
# The killed log has the batch of our model in it. So the log can play the model, and stop this kernel once more: this time in your hands. And a
# line is steered while the model still answers. **Predict:** where will it stand?

# %% id="my-turn"
def my_turn(session, prompt, model):
    def run(call):
        return tinyharness.run_call(session, call, tinyharness.TOOLS, None)
    with control_turn(session):
        more = session.add_prompts([prompt])
        while more:
            session.append(model(session.messages(), []))
            more = run_batch(session, tinyharness.open_calls(session.records[-1:]), run, list)

# %% id="yours"
replies = [record for record in tinyharness.read_jsonl(log) if record.get("role") == "assistant"]
(folder / "mine.jsonl").unlink(missing_ok=True)

def recorded_model(messages, tools):
    session.steer("Stop, that is enough.")
    return replies.pop(0)

try:
    with tinyharness.Session(folder / "mine.jsonl", folder / "workspace") as session:
        my_turn(session, "Once more.", recorded_model)
except KeyboardInterrupt:
    print("stopped")
except NotImplementedError:
    print("not written yet")
course.picture(folder / "mine.jsonl")

# %% id="source"
import inspect

# And the script's own stop, to compare:
print(inspect.getsource(tinyharness.control_turn))

# %% [markdown] id="real"
# ## How real systems do it
#
# - **Codex**: Esc in the middle of a call once left the `400` of this page ([issue 394](https://github.com/openai/codex/issues/394)); results were
#   collected, and lost at Ctrl-C ([5543](https://github.com/openai/codex/pull/5543)); a model that was not told of the stop repeated its work,
#   so a `<turn_aborted>` message tells it now ([9043](https://github.com/openai/codex/pull/9043)).
# - **pi**: a steered line once skipped the rest of the batch, with a made-up result for each call; since 0.58.4 it waits until the batch is done
#   (changelog of `packages/agent`). Results were stored when the whole batch was done, so that a stop could lose one that the user saw
#   ([issue 7053](https://github.com/earendil-works/pi/issues/7053)).
#
# With a real model, and a key set: `python tinyharness.py --yes "list all files, slowly"` in a terminal, Ctrl-C, and then `--resume last`.
#
# ## In three lines
#
# 1. Each call of an interrupted batch gets a result, and each result says only what is known: done, unknown, never ran.
# 2. A typed line waits for the next safe place; no place between a call and its result is safe.
# 3. A stop is a crash that had time to write: one function settles both.
#
# Open: the lid is closed, and tomorrow *another process* opens the file. Who may write to it? What does it say first? That is milestone 7.

# %% id="end"
records = tinyharness.read_jsonl(log)
assert not tinyharness.open_calls(records) and records[-1]["state"] == "done"
assert sum("verdict" in record for record in records) == 2
late = [name for name in ("late.txt", "never.txt") if (folder / "workspace" / name).exists()]
assert late == [], "the stopped command and the call that never began have left nothing"
print(course.ask_strict(tinyharness.load_session(log)))

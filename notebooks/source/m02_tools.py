# %% [markdown] id="title"
# # 2 · Tools: what becomes of the model's wish?
#
# In milestone 1 a loop carried the model's calls to the tools, and everything went well. What if the tool does not
# exist, or fails, or hangs, or you press Ctrl-C?
#
# When you are through with this page, you can
# - say what becomes of a call in each of these cases (§2 of `tinyharness.py`, and `run_call` of §1),
# - explain why one missing result ends a whole session,
# - and you have written `run_tool`, which gives **every** call **exactly one** result.
#
# Run the cells from top to bottom. Once, this page will kill its own kernel; it says so above that cell.

# %% id="setup"
import inspect
import json

import course
import tinyharness

folder = course.fresh("m02_tools")
workspace = folder / "workspace"

# %% [markdown] id="tool-text"
# ## Two sides of a call
#
# On our side a tool is a plain function in a table. The model never sees its code. It reads a description, which is
# made from the name, the docstring and the parameters that have a type. Here are both.

# %% id="tool"
print(inspect.getsource(tinyharness.read_file))
for key, value in tinyharness.describe_tool(tinyharness.read_file)["function"].items():
    print(f"{key}: {value}")

# %% [markdown] id="wish-text"
# On the model's side a call is a *wish*, written down: an id, a name, and arguments, which are a text that should hold
# JSON. Making it come true, or not, is our work. One reply may hold many wishes; here are six, and the first one printed.
#
# **Predict** before you run the second of these cells: which of the six ends the program? What will the model read for each?

# %% id="wishes"
def wish(number, name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call{number}", "type": "function", "function": function}

calls = [wish(1, "read_file", {"path": "parse_date.py"}),
         wish(2, "edit_file", {"path": "parse_date.py", "old": "no such text", "new": ""}),
         wish(3, "read_file", {"file": "parse_date.py"}),
         wish(4, "teleport", {"to": "Beijing"}),
         wish(5, "bash", {"command": "sleep 9", "timeout": 0.2}),
         wish(6, "write_file", {"path": "parse_date.py", "content": ""})]
reply = {"role": "assistant", "content": None, "tool_calls": calls}
print(json.dumps(calls[0]))

# %% id="six"
def scripted_model(messages, tools):
    return {"role": "assistant", "content": "Enough."} if messages[-1]["role"] == "tool" else reply

def no_writing(name, arguments):
    return "the user wants no file changed" if name == "write_file" else None

(folder / "six.jsonl").unlink(missing_ok=True)
with tinyharness.Session(folder / "six.jsonl", workspace) as session:
    tinyharness.run_turn(session, "Try six things.", scripted_model, approve=no_writing)

# %% [markdown] id="fates"
# None of them ended the program. Success, an exception, bad arguments, an unknown tool, a timeout and a refusal:
# six fates, and for the model each is only a text to read. Its last word shows that the turn went on to its end.
#
# The seventh fate is you, pressing Ctrl-C. This tool does that for you.

# %% id="abort"
tools = dict(tinyharness.TOOLS)

@tinyharness.tool(tools)
def press_ctrl_c(session):
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt

reply = {"role": "assistant", "content": None, "tool_calls": [wish(7, "press_ctrl_c", {})]}
with tinyharness.Session(folder / "seven.jsonl", workspace) as session:
    try:
        tinyharness.run_turn(session, "Stop.", scripted_model, tools)
    except KeyboardInterrupt:
        print("The turn has ended. The model will read:")
print(tinyharness.load_session(folder / "seven.jsonl")[-1]["content"])

# %% [markdown] id="naive-text"
# The turn ended, *and* the call has its result. It does not say "cancelled": the tool had begun, and nobody knows
# how far it came. **Outcome unknown** (结果未知) is all that can be said.
#
# ## Break it: a result goes missing
#
# The chapter's way is shorter: look the tool up, call it, append what comes back. It works as long as nothing goes
# wrong. We give it the same six wishes.

# %% id="naive"
def naive_run_tool(session, call, tools):
    arguments = json.loads(call["function"]["arguments"])
    output = tools[call["function"]["name"]](session, **arguments)
    session.append({"role": "tool", "tool_call_id": call["id"], "content": output})

(folder / "naive.jsonl").unlink(missing_ok=True)
with tinyharness.Session(folder / "naive.jsonl", workspace) as session:
    session.append({"role": "user", "content": "Try six things."})
    session.append({"role": "assistant", "content": None, "tool_calls": calls})
    try:
        for call in calls:
            naive_run_tool(session, call, tinyharness.TOOLS)
    except Exception as error:
        print("The loop ended:", error)
print("Calls without a result:", [call.id for call in tinyharness.open_calls(session.records)])

# %% [markdown] id="poison-text"
# One call has its result, five are **dangling calls** (悬空 tool_use). You could start the program again and say
# something nice. But a provider gets the whole history with each request. Ours here is a small HTTP server on this
# machine, which refuses what strict providers refuse. **Predict**: what does it say on the next day, and the day after?

# %% id="poison"
def as_it_is(path):
    kept = [record for record in tinyharness.read_jsonl(path) if "role" in record]
    return [{key: value for key, value in record.items() if key not in ("ts", "tracked")} for record in kept]

history = as_it_is(folder / "naive.jsonl")
for day in ("Monday", "Tuesday"):
    history.append({"role": "user", "content": f"Good morning, it is {day}."})
    print(day, course.ask_strict(history), end="\n\n")
print("six results:", course.ask_strict(as_it_is(folder / "six.jsonl")))

# %% [markdown] id="bash-text"
# The hole stays in the history, so each later request is refused as well: the session is dead, because one text was
# not found. With six results for six calls the server is content.
#
# A tool that never ends gives no result either. So `bash` always ends: there is no input to wait for, a child in the
# background does not hold it up, the time is limited, and of a flood only head and tail are kept.

# %% id="bash"
with tinyharness.Session(folder / "six.jsonl") as session:
    for command in ("cat", "sleep 60 & echo hi", "sleep 60", "kill -9 $$", "seq 100000"):
        text = tinyharness.bash(session, command, timeout=0.5)
        print(f"{command:20}{len(text):6} characters, {text.splitlines()[-1].split(';')[0]}")

# %% [markdown] id="kill-text"
# ## The real kill
#
# There is an eighth fate, and no code can answer it: the process is gone.
#
# ⚡ **The next cell kills this kernel**, in the tool `bash` of a real turn. Jupyter tells you that the kernel died, and
# starts a new one. (VS Code asks first: choose *Restart*.) Then select the cell below it, and choose *Run Selected
# Cell and All Below*. All variables will be gone.

# %% id="kill" tags=["crash"]
(folder / "killed.jsonl").unlink(missing_ok=True)
deadly = course.deadly(tinyharness.TOOLS, "bash", "during")
with tinyharness.Session(folder / "killed.jsonl", workspace, "rehearsal") as session:
    tinyharness.run_turn(session, tinyharness.TASK, tinyharness.rehearsal_model, deadly)

# %% id="restart"
import course
import tinyharness

folder = course.reopen("m02_tools")
workspace = folder / "workspace"
log = folder / "killed.jsonl"
left_open = tinyharness.open_calls(tinyharness.read_jsonl(log))
assert [call.name for call in left_open] == ["bash"]
course.picture(log)

# %% [markdown] id="torn-text"
# `read_file` has its result. The call of `bash` was on disk when the kernel died, and its result never came: the same
# hole as before. Only whoever opens the file later can mend it. `load_session` does, and milestone 4 shows how.

# %% id="torn"
def as_it_is(path):
    kept = [record for record in tinyharness.read_jsonl(path) if "role" in record]
    return [{key: value for key, value in record.items() if key not in ("ts", "tracked")} for record in kept]

print("as it is:    ", course.ask_strict(as_it_is(log)))
print("load_session:", course.ask_strict(tinyharness.load_session(log)))

# %% [markdown] id="exercise-text"
# ## Your turn: `run_tool`
#
# After a kill there is only repair. In a process that lives, no hole needs to be: every call that the loop sees gets
# exactly one result. Write that. `run_tool` *appends* the result, with `session.append`; what it returns
# is not used.
#
# This is the only cell to edit. It is saved to `notebooks/my/m02.py` when you run it, so it outlives the kernel.
# New kernel? Run the cell below the crash first.
#
# | fate | the model reads |
# |---|---|
# | success | what the tool returned, as text (`act` is given and runs it) |
# | exception, timeout, unknown tool, bad arguments | the error in words, so that it can do better; also for half a line of JSON, and for `sys.exit` in a tool |
# | refusal | that the call was refused, and why; `approve(name, arguments)` gives the reason, or None; no tool that is `read_only` is asked for |
# | abort | that the outcome is unknown; *and* the interrupt goes on, or nobody could stop the agent |
#
# <details><summary>Hint 1: exactly one</summary>
# Append in one place only. A block <code>finally:</code> runs whatever happens above it, and then lets the interrupt
# travel on. The text can wait in a variable.
# </details>
# <details><summary>Hint 2: the abort</summary>
# Give that variable its text for the abort before anything runs; <code>tinyharness.UNKNOWN</code> holds honest words.
# Whatever else happens writes over it. What does <code>except Exception</code> not catch?
# </details>

# %% id="exercise"
%%exercise run_tool
import json
import tinyharness

def act(session, chosen, arguments):
    """Given: run a tool. One that only plans returns a path and bytes, to be put in place."""
    done = chosen(session, **arguments)
    return tinyharness.replace_file(*done) if chosen.plans else done

def run_tool(session, call, tools, approve=None):
    """Answer one call of the model: append exactly one result, whatever happens."""
    name, said = call["function"]["name"], call["function"]["arguments"]
    result = ...
    # At the end, once: {"role": "tool", "tool_call_id": call["id"], "content": result}
    raise NotImplementedError

# %% id="check"
course.check("run_tool")

# %% [markdown] id="yours-text"
# Red lines say what is wrong, one for each check that fails. From a shell:
# `python -m pytest tests/test_notebooks_m02.py --impl notebooks/my/m02.py`.
#
# Now your function answers the six wishes: the kernel has forgotten them, the file has not. When it is written,
# the server says `200 ok`, and no repair was needed.

# %% id="yours"
six = tinyharness.load_session(folder / "six.jsonl")
(folder / "mine.jsonl").unlink(missing_ok=True)
with tinyharness.Session(folder / "mine.jsonl", workspace) as session:
    for message in six[:2]:
        session.append(message)
    try:
        for call in six[1]["tool_calls"]:
            run_tool(session, call, tinyharness.TOOLS, lambda name, _: name == "write_file" and "not today")
    except NotImplementedError:
        print("run_tool is not written yet: six calls, and no result.")
print(course.ask_strict(as_it_is(folder / "mine.jsonl")))

# %% [markdown] id="script-text"
# The script cuts the work in two. `run_call` makes the text, the loop appends it. The abort is answered one level higher,
# where the turn ends, because there it can answer the *other* calls of the batch too, whose turn never came
# (milestone 6). And it writes `started` before the effect. Without that, nobody could tell after a kill whether the
# tool had begun: milestone 5.

# %% id="script"
import inspect

print(inspect.getsource(tinyharness.run_call))

# %% id="real"
course.real_turn("Read parse_date.py, then delete it with bash. What did you read as results?")

# %% [markdown] id="systems"
# ## How real systems do it
#
# - **pi** answers an unknown tool and bad arguments with an error result, as we do
#   ([agent-loop.ts](https://github.com/badlogic/pi-mono/blob/main/packages/agent/src/agent-loop.ts)). Its users have met the
#   other case too: [a dangling call was left, and each later request was a 400](https://github.com/earendil-works/pi/issues/4189).
# - **Codex** looks for calls without output before it asks, and puts in the word "aborted"
#   ([normalize.rs](https://github.com/openai/codex/blob/main/codex-rs/core/src/context_manager/normalize.rs)).
# - **mini-swe-agent** turns any exception of a command into text; at a timeout it kills the whole process group first
#   ([local.py](https://github.com/SWE-agent/mini-swe-agent/blob/main/src/minisweagent/environments/local.py)).
#
# ## In three lines
#
# - A call is a wish in text. Our code runs it, refuses it or fails at it, and always answers.
# - Exactly one result for each call: with none the provider refuses the session, now and on every later day.
# - An abort is answered with what is known, and then it goes on.
#
# **Open question.** Each of these results went to disk at once, as one more line at the end of the file. Why lines,
# and not one tidy JSON file? That is milestone 3, `m03_log`.

# %% id="end"
assert sum(message["role"] == "tool" for message in six) == 6
assert len(tinyharness.open_calls(tinyharness.read_jsonl(folder / "naive.jsonl"))) == 5
assert course.ask_strict(tinyharness.load_session(log)) == "200 ok"
print("Done: six calls and six results, five calls without one, and one that a kill left open.")

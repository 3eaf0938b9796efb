# %% [markdown] id="title"
# # 1 · The loop: what is an agent, really?
#
# A model can only talk. Still, people say that "the agent repaired the file". Who did?
#
# After this page you can
# - write the loop that turns a talking model into an agent (§1 of `tinyharness.py`),
# - say what such an agent remembers, and where,
# - explain why it forgets everything when its process dies, unless each step is on disk first.
#
# These pages follow a course chapter on session persistence: **the chapter**. Its own code is kept in `tests/chapter.py`.
#
# Run the cells from top to bottom. The first makes a folder with a wrong date parser and its test. The **rehearsal model** is a script that
# plays this one task; everything around it is real.

# %% id="setup"
import inspect
import json

import course
import tinyharness

folder = course.fresh("m01_loop")
model, tools = tinyharness.rehearsal_model, tinyharness.TOOLS
messages = [{"role": "user", "content": tinyharness.TASK}]

# %% [markdown] id="wish-words"
# ## You are the loop
#
# We send the messages. What comes back is a message too. Look closely: has the model read the file?

# %% id="wish"
reply = model(messages, [])
print(json.dumps(reply, indent=1))

# %% [markdown] id="hand-words"
# It has not. It *wishes* that somebody reads it: the name of a tool, and arguments (a **tool call**). Nothing happens unless we do it, so do it by hand:
# run the tool, and put the call and its result behind the other messages.

# %% id="hand"
call = tinyharness.open_calls([reply])[0]
with tinyharness.Session(folder / "by_hand.jsonl", folder / "workspace") as session:
    result = tinyharness.run_call(session, call, tools, None)
messages += [reply, {"role": "tool", "tool_call_id": call.id, "content": result}]
print(result)

# %% [markdown] id="again-words"
# Then ask again, with all that was said so far. The model goes one step further.

# %% id="again"
function = model(messages, [])["tool_calls"][0]["function"]
print(function["name"], function["arguments"])
assert model(messages, []) == model(messages, [])

# %% [markdown] id="memory-words"
# The last line asks twice with one list, and gets the same answer. **The model remembers nothing.** What looks like its memory is the list that
# you send. That is why a session can be resumed at all.
#
# Send, run, append, until a reply holds no call: this is the whole loop, as the script has it.

# %% id="function"
print(inspect.getsource(tinyharness.run_turn))

# %% [markdown] id="predict-words"
# **Predict**: the parser has two faults, and the test stops at the first one. How many times will the model be asked?

# %% id="run"
def counted(messages, tools):
    asked.append(len(messages))
    return model(messages, tools)


asked = []
with tinyharness.Session(folder / "whole.jsonl", folder / "workspace") as session:
    tinyharness.run_turn(session, tinyharness.TASK, counted, tools)
print(f"asked {len(asked)} times, with {asked} messages")
course.picture(folder / "whole.jsonl")

# %% [markdown] id="run-after"
# Seven times: read, test, edit, test, edit, test, and a last reply that holds no call, which ends the turn. Each request is two messages
# longer than the one before. (The first message is the system prompt.)
#
# In the picture each call is joined with its result; each line is a line of a file. Does it have to be?
#
# ## Memory is not storage
#
# `NaiveSession` is the same session with one difference: `append` puts a record into a Python list, and nowhere else.

# %% id="naive"
class NaiveSession(tinyharness.Session):
    def append(self, record):
        self.records.append(record)


folder = course.fresh("m01_loop")
with NaiveSession(folder / "naive.jsonl", folder / "workspace") as session:
    tinyharness.run_turn(session, tinyharness.TASK, model, tools, show=str)
    print(len(session.records), "records in memory;", tinyharness.describe_state(session.records))

# %% [markdown] id="kill-words"
# ⚡ **The next cell kills this kernel**, right behind the first edit of a real turn. Jupyter tells you that the kernel died, and starts a new one. (VS Code asks first: choose *Restart*.)
# Then select the cell below it, and choose *Run Selected Cell and All Below*.
# (To kill it once more, begin at the top.)
#
# **Predict**: what will still be there? The list of records? The edited file? A trace of who edited it?

# %% id="kill" tags=["crash"]
folder = course.fresh("m01_loop")
deadly = course.deadly(tools, "edit_file", "after")
with NaiveSession(folder / "naive.jsonl", folder / "workspace") as session:
    tinyharness.run_turn(session, tinyharness.TASK, model, deadly)

# %% id="restart"
import course
import tinyharness

folder = course.reopen("m01_loop")
model, tools = tinyharness.rehearsal_model, tinyharness.TOOLS
print("the records:", "still here" if "session" in globals() else "gone, with the process that held them")
print("the log:", (folder / "naive.jsonl").stat().st_size, "bytes")
edited = (folder / "workspace" / "parse_date.py").read_text() != tinyharness.BROKEN
print("the file:", "edited" if edited else "as before")
assert edited and "session" not in globals() and not tinyharness.read_jsonl(folder / "naive.jsonl")

# %% [markdown] id="restart-after"
# The worst of both: the **effect** is in the world, and its **story** is nowhere. A new agent cannot know that a file was changed, nor why.
#
# ## Saved at once, or saved at the end?
#
# The chapter's first version does have a file, and does save the session: when the run is over. Let us kill it, in a child process, while it waits for
# the model's first, second, third and fourth answer, and count what is on disk; then the same with `run_turn`.

# %% id="chapter-child"
chapter_child = """
import sys, course, chapter
def ask_model(history):
    if len(history) >= 2 * int(sys.argv[2]) - 1:
        course.kill_kernel()
    return [{"type": "tool_use", "id": f"c{len(history)}", "name": "look", "input": {}}]
chapter.run_agent(sys.argv[1], "tidy up", ask_model, lambda call: "all is tidy")
"""

# %% id="script-child"
script_child = """
import sys, course, tinyharness
def ask_model(messages, tools):
    if len(messages) >= 2 * int(sys.argv[2]):
        course.kill_kernel()
    function = {"name": "read_file", "arguments": '{"path": "parse_date.py"}'}
    call = {"id": f"c{len(messages)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
with tinyharness.Session(sys.argv[1], "workspace") as session:
    tinyharness.run_turn(session, "tidy up", ask_model, tinyharness.TOOLS, show=str)
"""

# %% id="sweep"
left = {"chapter": [], "run_turn": []}
for name, source in (("chapter", chapter_child), ("run_turn", script_child)):
    for step in (1, 2, 3, 4):
        (folder / f"{name}{step}.jsonl").unlink(missing_ok=True)
        ended = course.in_child(source, f"{name}{step}.jsonl", step)
        left[name].append(len(tinyharness.load_session(folder / f"{name}{step}.jsonl")))
    print(f"{name:8} {ended}; messages left: {left[name]}")
assert left == {"chapter": [0, 0, 0, 0], "run_turn": [1, 3, 5, 7]}

# %% [markdown] id="sweep-after"
# The chapter's version does not save badly. It saves *late*. `run_turn` never has more to
# lose than the step it is in, because each record is on disk (落盘) before the next step begins. There are three such places: the **prompt** before the request, the **reply** before its tools, each **result** before the next step.
#
# ## Your turn: write the loop
#
# This is the only cell to edit. It is saved to `notebooks/my/m01.py` when you run it, so it must bring its own imports. New kernel? Run the cell below the
# crash first. You may use
#
# - `session.add_prompts([prompt])`: puts what was typed on disk, and says whether there was anything
# - `tinyharness.repair(session.records, "You work in " + session.workspace)`: the messages, ready to send
# - `tinyharness.describe_tool(tool)`: what the model must know of a tool; the request takes a list of them
# - `session.append(record)`: on disk when it returns
# - `tinyharness.open_calls(session.records[-1:])`: the calls of the last record
# - `tinyharness.run_call(session, call, tools, approve)`: the text that answers a call, whatever happens (milestone 2)
# - `listen()`: lines that were typed meanwhile; ask after each step, when its calls have their results; go on if there are any
#
# <details><summary>Hint</summary>
#
# 1. A blank prompt returns `""` and changes nothing. Else append the prompt.
# 2. As long as there is something to answer: build the messages, ask the model, append `{**reply, "role": "assistant"}`.
# 3. For each call: run it, append `{"role": "tool", "tool_call_id": call.id, "content": result}` *before the next one runs*.
# 4. Go on if `session.add_prompts(listen())` is true, or if there were calls. At the end show the last words, and return them.
#
# </details>

# %% id="exercise"
%%exercise run_turn
import tinyharness


def run_turn(session, prompt, model, tools=None, approve=None, show=print, listen=list):
    """Run one turn, each step on disk before the next one, and return the model's last words."""
    raise NotImplementedError

# %% id="check"
course.check("run_turn")

# %% [markdown] id="mine-words"
# A red line for each check that fails. From a shell: `python -m pytest tests/test_m01_loop.py --impl notebooks/my/m01.py`.
#
# When it is green, kill it, as above.

# %% id="mine"
mine_child = script_child.replace("tinyharness.run_turn", "course.mine().run_turn")
endings, counts = set(), []
for step in (1, 2, 3, 4):
    (folder / f"mine{step}.jsonl").unlink(missing_ok=True)
    endings.add(course.in_child(mine_child, f"mine{step}.jsonl", step).splitlines()[-1])
    counts.append(len(tinyharness.load_session(folder / f"mine{step}.jsonl")))
print(f"{'; '.join(endings)}: {counts} messages left")

# %% id="real"
course.real_turn("Read parse_date.py and say in one sentence what it does.")

# %% [markdown] id="others-words"
# ## How others do it
#
# The loop is the same everywhere; mini-swe-agent shows it on one screen. What differs is where its messages live: Codex appends to a rollout file, OpenHands
# writes one file per event, jcode keeps a snapshot and a journal.
#
# ## In three lines
#
# - An agent is a loop: messages go to the model, its calls to the tools, their results to the model.
# - The model remembers nothing; the list of messages is all there is, and memory is not storage.
# - Each step is on disk before the next one begins: then a kill costs one step, and not the session.
#
# **Open question:** `run_call` gave a text for each call, "whatever happens". What if the tool does not exist, or fails, or hangs, or its arguments are half a
# line of JSON? What would the provider say to a call without a result? → `m02_tools`

# %% id="end"
assert left == {"chapter": [0, 0, 0, 0], "run_turn": [1, 3, 5, 7]}
for step in (1, 2, 3, 4):
    assert course.ask_strict(tinyharness.load_session(folder / f"run_turn{step}.jsonl")) == "200 ok"
print("What run_turn left can be sent to a strict provider, wherever it was killed.")

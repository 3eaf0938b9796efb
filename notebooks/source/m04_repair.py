# %% [markdown] id="title"
# # 4 · Repair: the call is there and the result is not. What may we say?
#
# Milestone 3 left a log that can be *read*, wherever the program was killed. That is not yet a history that can be *sent*.
#
# When you are through with this page, you can
# - say why one lost result makes a provider refuse the whole session,
# - write `repair` (§4 of `tinyharness.py`): records in, messages out that can be sent,
# - choose words for a lost result that are true, whatever happened.
#
# Run the cells from top to bottom. Once, this page will kill its own kernel; it says so above that cell.

# %% id="setup"
import course
import tinyharness

folder = course.fresh("m04_repair")
log = folder / "session.jsonl"

# %% [markdown] id="rule-words"
# ## The rule
#
# A model that wishes for a tool sends a **call** with an id. The **result** is a message of its own, with the same id. `ask_strict` sends messages to a small server on this machine,
# as strict as all strict providers together. With the result, without it, and with a message in between:

# %% id="rule"
call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
asked = [{"role": "user", "content": "run the test"},
         {"role": "assistant", "content": None, "tool_calls": [call]}]
answer = {"role": "tool", "tool_call_id": "c1", "content": "passed"}
print(course.ask_strict([*asked, answer]))
print(course.ask_strict(asked))
print(course.ask_strict([*asked, {"role": "user", "content": "well?"}, answer]))

# %% [markdown] id="kill-words"
# So: **one result for each call, right behind the message that made the calls**, before anything else.
#
# ## Break it
#
# ⚡ **The next cell kills this kernel**, while a real turn runs its second tool. Jupyter tells you that the kernel died, and starts a new one. (VS Code asks first: choose *Restart*.)
# Then select the cell below it, and choose *Run Selected Cell and All Below*.
#
# **Predict**: what will be the last thing in the file?

# %% id="kill" tags=["crash"]
folder = course.fresh("m04_repair")
tools = course.deadly(tinyharness.TOOLS, "bash", "during")
with tinyharness.Session(log, folder / "workspace", "rehearsal") as session:
    tinyharness.run_turn(session, tinyharness.TASK, tinyharness.rehearsal_model, tools)

# %% id="restart"
import inspect
import json
import shutil

import course
import chapter
import tinyharness

folder = course.reopen("m04_repair")
log = folder / "session.jsonl"
records, found = tinyharness.read_jsonl(log), log.read_bytes()
print(len(records), "records;", tinyharness.describe_state(records))
assert [call.name for call in tinyharness.open_calls(records)] == ["bash"]
course.picture(log)

# %% [markdown] id="lost-words"
# All of this came from the file. One call is joined with its result; the other, `bash`, is a **dangling call** (悬空 tool_use). Its result, if there was one, was in the memory of the process, and not on disk (落盘).
#
# `plain` takes from the log what a provider may see. Can the session go on?

# %% id="raw"
def plain(records):
    messages = [each for each in records if "role" in each]
    keys = ("role", "content", "tool_calls", "tool_call_id")
    return [{key: each[key] for key in keys if key in each} for each in messages]


go_on = {"role": "user", "content": "continue"}
print(course.ask_strict(plain(records)))
print(course.ask_strict([*plain(records), go_on]))
course.columns(log, lost="process")

# %% [markdown] id="chapter-words"
# 400, and 400 again with a question behind it: the session is stuck, although not one line of it is damaged.
#
# ## The chapter's repair: look at the last message
#
# If the last message has calls, give each a made-up result (结果未知, outcome unknown). The chapter's code is for content blocks; `chapter_repair` is the same idea for our records.

# %% id="chapter"
def chapter_repair(history):
    calls = history[-1].get("tool_calls", [])
    lost = {"role": "tool", "content": chapter.LOST}
    return history + [{**lost, "tool_call_id": call["id"]} for call in calls]


print(inspect.getsource(chapter.repair))
print(course.ask_strict(chapter_repair(plain(records))))

# %% [markdown] id="second-words"
# It works, and its words are well chosen. Two small steps further it does not. The made-up result is in the request, and not in the file. So go on, close the lid, and **resume again**.
# Here runs the chapter's own program, on a file with a dangling call; the model only looks whether it is told what became of it.

# %% id="second"
def chapter_model(history):
    print("told what became of the call:", "tool_result" in str(history))
    return [{"type": "text", "text": "I go on."}]


path = folder / "chapter.jsonl"
path.unlink(missing_ok=True)
call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
chapter.append_jsonl(path, {"role": "assistant", "content": [call]})
chapter.run_agent(path, "continue", chapter_model, None)
chapter.run_agent(path, "continue", chapter_model, None)
later = [*plain(records), go_on, {"role": "assistant", "content": "I go on."}]
print(course.ask_strict(chapter_repair(later)))

# %% [markdown] id="batch-words"
# The call is still dangling, but now it is in the *middle*, and there it stays. (The last line sends our own log in that state.)
#
# ## Three calls in one reply
#
# A model may make several calls at once: a **batch**. This one reads a file, sends a mail (here: a line in a file), and makes a note. A child process plays it,
# and is killed right behind the mail, before that result is on disk.

# %% id="batch"
wishes = (("read_file", {"path": "parse_date.py"}),
          ("bash", {"command": "echo '小明, dinner at eight?' >> mail.txt"}),
          ("write_file", {"path": "notes.txt", "content": "The mail is sent."}))
batch = []
for call_id, (name, arguments) in zip(("c1", "c2", "c3"), wishes):
    function = {"name": name, "arguments": json.dumps(arguments)}
    batch.append({"id": call_id, "type": "function", "function": function})

# %% id="child"
for name in ("parallel.jsonl", "workspace/mail.txt"):
    (folder / name).unlink(missing_ok=True)

print(course.in_child("""
import json, sys, course, tinyharness
def model(messages, tools):
    return {"role": "assistant", "content": None, "tool_calls": json.loads(sys.argv[1])}
tools = course.deadly(tinyharness.TOOLS, "bash", "after")
with tinyharness.Session("parallel.jsonl", "workspace") as session:
    tinyharness.run_turn(session, "Ask 小明 to dinner.", model, tools)
""", json.dumps(batch)))
course.picture(folder / "parallel.jsonl")

# %% [markdown] id="world-words"
# **Predict** what the chapter's repair does here. What is the last message?
#
# And the two calls without a result: what did each of them really do?

# %% id="world"
parallel = tinyharness.read_jsonl(folder / "parallel.jsonl")
print("as it is: ", course.ask_strict(plain(parallel)))
print("chapter's:", course.ask_strict(chapter_repair(plain(parallel))))
print("bash, mail.txt:       ", (folder / "workspace" / "mail.txt").read_text().strip())
is_there = (folder / "workspace" / "notes.txt").exists()
print("write_file, notes.txt:", "there" if is_there else "no such file")

# %% [markdown] id="exercise-words"
# The last message is the result of `c1`, so the chapter's repair saw nothing to do.
#
# The mail is out, the note was never begun, and among the messages both look the same. "Not executed" would be false for one of them, and whoever believes it may send the mail again. "Done" would be false for the other.
# True of both is **outcome unknown: it may have run fully, partly or not at all**. It is also useful: it tells the model to look before it repeats. (The picture knows more, from the `started` records: milestone 5.)
#
# ## Your turn: write `repair`
#
# It runs no tool and writes no file. This is the only cell to edit; running it saves it to `notebooks/my/m04.py`. (`prompt` is the system prompt; you need not use it.)
#
# 1. Behind each message with calls stands one result for each call. They pair by **id**, wherever in the log the result is.
# 2. A call without a result gets a made-up one (a **synthetic** result), with true words. The check looks for `outcome unknown` or `结果未知` in them, and refuses words that claim more.
# 3. The first real result counts. A second one is not sent, nor one that no call asked for.
# 4. A record with the key `verdict` is a synthetic result that an earlier resume wrote down. It is used until a real one comes. Only the key tells: a tool may print any words.
# 5. A message that has neither text nor calls is not sent. Blank text (`"\n\t"`) is no text.
#
# `tinyharness.read_message(record)` reads a message, in the chapter's blocks too: its text, its calls as pairs (id, function), its results as pairs (id, text).
# Of a tool message it gives the text too: a record with the role `tool` becomes no message of its own.
# What you build looks as in the cell of *The rule*; the content of an assistant message without text is `None`.
#
# <details><summary>Hint</summary>
#
# Do not search for results. When you meet a call, put its synthetic result behind it *at once*, and remember that message under the call's id. A result that comes later
# finds it there, and replaces its `content`. A real result takes it out of the table (`pop`), a synthetic one leaves it in (`get`).
#
# </details>
#
# New kernel? Run the cell below the crash first.

# %% id="exercise"
%%exercise repair
import tinyharness

UNKNOWN = "?"  # the words for a call without a result: what do you really know?


def make_call(call_id, function):
    """A call as a provider wants it (ready, nothing to do here)."""
    arguments = tinyharness.arguments_text(function.get("arguments"))
    function = {"name": function.get("name"), "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def repair(records, prompt=""):
    """Turn records into messages that can be sent: one result for each call, behind its batch."""
    messages = []
    for record in records:
        if "role" in record:  # what has no role is an event, and no message
            text, calls, results = tinyharness.read_message(record)
            raise NotImplementedError
    return messages

# %% id="check"
course.check("repair")

# %% [markdown] id="mine-words"
# A red line says what is to be learned, then a short history that shows it (`c1=one` is a result, `c1~one` a synthetic one), what was wanted, and what you gave.
#
# When it is green, let your repair mend what broke on this page.

# %% id="mine"
def ask_mine(records):
    try:
        return course.ask_strict(repair(records))
    except NotImplementedError:
        return "repair is not written yet"


print("the crash:        ", ask_mine(records))
print("the batch:        ", ask_mine(parallel))
print("the second resume:", ask_mine(later))

# %% [markdown] id="script-words"
# **One evening more?** The check asks for the core, the whole file of tests for more. In a shell, in the folder of the project:
#
# `python -m pytest tests/test_m04_repair.py --impl notebooks/my/m04.py`
#
# With the hint's repair more than half of it is red: one kind of history can fail several tests.
#
# <details><summary>The kinds</summary>
#
# - ids that are missing or used again, and a fresh id that never changes
# - an empty result (`(no output)`), and a second system message
# - records with damage in any field (an id that is a list)
# - results in the order of the log, and so a valid history letter for letter. The hint's repair cannot do this: it fixes the place of a result before the result comes. Collect the calls with their results first, and write the messages at the end, as the script does.
#
# </details>
#
# ## The script's repair
#
# The pairing is in `group_calls`, which others need too; `repair` writes the messages.

# %% id="function"
print(inspect.getsource(tinyharness.repair))

# %% [markdown] id="go-on-words"
# Resume a copy of the crashed session. Before anything new, the script appends what the model is told to the log, with the key `verdict`: the next resume finds a whole history.
# Watch what the model does first. It read that the outcome is unknown, so it looks again.

# %% id="go-on"
shutil.copy(log, folder / "resumed.jsonl")
with tinyharness.Session(folder / "resumed.jsonl") as session:
    tinyharness.run_turn(session, "continue", tinyharness.rehearsal_model)
resumed = tinyharness.read_jsonl(folder / "resumed.jsonl")
print("as it is:", course.ask_strict(plain(resumed)))
course.picture(folder / "resumed.jsonl")

# %% id="real"
shutil.copy(folder / "parallel.jsonl", folder / "real.jsonl")
course.real_turn("Is the mail to 小明 out? Say what you know, and how you know it.")

# %% [markdown] id="others-words"
# ## How others do it
#
# From their public code. Does one of them claim more than the log knows?
#
# - **Codex** puts `aborted` behind each call without an output, whenever it builds a request ([normalize.rs](https://github.com/openai/codex/blob/main/codex-rs/core/src/context_manager/normalize.rs)).
# - **pi** puts in an error, `No result provided`, in the request only ([transform-messages.ts](https://github.com/earendil-works/pi/blob/main/packages/ai/src/api/transform-messages.ts)).
# - **dsh** tells *not started* from *outcome unknown*, and appends that to its log ([packages/core/session/src/repair.ts](https://github.com/deepseek-ai/deepseek-harness/blob/HEAD/packages/core/session/src/repair.ts)).
#
# ## In three lines
#
# - One lost result stops the whole session: each call needs one result, right behind its batch.
# - A dangling call can be anywhere, so pair by id, and never look at the last message only.
# - The words claim only what is known: outcome unknown, never "not executed".
#
# **Open question:** the mail is out, the note was not begun, and we call both unknown. Could a line *before* each effect tell more? → `m05_intent`

# %% id="end"
for each in (records, parallel, later):
    assert course.ask_strict(plain(each)).startswith("400 ")
    assert course.ask_strict(tinyharness.repair(each)) == "200 ok"
assert (folder / "workspace" / "mail.txt").exists() and not is_there
assert course.ask_strict(plain(resumed)) == "200 ok" and tinyharness.describe_state(resumed) == "done"
assert log.read_bytes() == found
print("All three can be sent once they are repaired, and no repair has changed a byte of the log.")

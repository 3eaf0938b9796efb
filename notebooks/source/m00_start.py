# %% [markdown] id="title"
# # 0 · Start: run it, kill it, go on
#
# Five minutes. An agent repairs a small program. In the middle of its work we kill it, the way a power cut or a closed window would, and then
# somebody who knows nothing but a file goes on where it stopped.
#
# Run the cells one after another, with Shift+Enter, and read what stands between them. You need no key and no network.

# %% id="setup"
import course
import tinyharness

folder = course.fresh("m00_start")
log = folder / "session.jsonl"
model = tinyharness.rehearsal_model

# %% [markdown] id="run-words"
# ## Run it
#
# `tinyharness` is the agent: one Python file. The model that it asks is a **rehearsal model**, a script that plays a single task, the same way each time. All
# else is real: the files, the commands, and soon the crash. The task: a date parser has two faults, and a test that finds them.

# %% id="run"
with tinyharness.Session(log, folder / "workspace", "rehearsal") as session:
    tinyharness.run_turn(session, tinyharness.TASK, model)

# %% [markdown] id="file-words"
# ## Look at the file
#
# While it worked, the agent wrote down what happened, a line for each step. That file *is* the session (会话); there is no other copy, and
# no database. Each line is one JSON object, a **record**. Here are the prompt, the model's wish to read a file, and the note that this began:

# %% id="file"
lines = log.read_text(encoding="utf-8").splitlines()
print(len(lines), "records; the second, the third and the fourth:")
print(*(line[:110] for line in lines[1:4]), sep="\n")

# %% [markdown] id="kill-words"
# ## Kill it
#
# ⚡ **The next cell kills this kernel**, the Python process behind this page. It begins the same task again, and dies right behind its first edit: the file
# is changed, and nobody has told the model yet.
#
# Jupyter will say that the kernel died, and start a new one: close that message. (VS Code asks first: choose *Restart*.) Then click the cell
# below the crash, and choose *Run › Run Selected Cell and All Below*.
#
# **Predict:** will the new process know that the edit was made? From where?

# %% id="kill" tags=["crash"]
folder = course.fresh("m00_start")
tools = course.deadly(tinyharness.TOOLS, "edit_file", "after")
with tinyharness.Session(folder / "session.jsonl", folder / "workspace", "rehearsal") as session:
    tinyharness.run_turn(session, tinyharness.TASK, model, tools)

# %% id="restart"
import shutil

import course
import tinyharness

folder = course.reopen("m00_start")
if not (folder / "kept").exists():  # what the crash left stays as it is, and we go on with copies of it:
    shutil.copytree(folder / "workspace", folder / "kept")
shutil.copytree(folder / "kept", folder / "workspace", dirs_exist_ok=True)
log = shutil.copy(folder / "session.jsonl", folder / "resumed.jsonl")
model = tinyharness.rehearsal_model
with tinyharness.Session(log) as session:
    print(tinyharness.write_receipt(session).partition("\n")[2])
assert tinyharness.describe_state(tinyharness.read_jsonl(log)) == "interrupted in tool edit_file"

# %% [markdown] id="restart-words"
# All variables are gone; this process started from nothing. What you read is its **receipt**: ten records were on disk, and one call has no result. Such a call is
# **dangling** (悬空). What may we say about it? The log knows that it began, the file in the workspace holds exactly the bytes that were asked for: so it was *applied*.
# That is a verdict, and not a guess. (We go on with copies, so you can run that cell, and all below it, as often as you like.)
#
# Nothing went on by itself. You decide, by saying something:

# %% id="continue"
with tinyharness.Session(log) as session:
    tinyharness.run_turn(session, "continue", model)

# %% id="picture"
course.picture(log)

# %% [markdown] id="picture-words"
# This is the whole story, and each line of it is a line of the file. Above the zigzag is the process that was killed, below it the one
# that went on. The arrows join each call with its result; the call that was cut off is joined with its verdict. The model read that,
# looked at the file again, and did not make the first edit a second time.

# %% id="once"
source = (folder / "workspace" / "parse_date.py").read_text()
print(source)
print("'+ 1' is there", source.count("+ 1"), "time, 'lower' is there", source.count("lower"), "time")

# %% id="real"
course.real_turn("Read parse_date.py, and say in one sentence what it does.")

# %% [markdown] id="recap"
# ## In three lines
#
# - A session is one file, to which a line is added for each step, before the next step begins.
# - A crash costs the step that it hits. For a call without a result, the log and the world decide what may be said.
# - Nothing runs by itself after a crash.
#
# From here on you build this, a piece in each notebook: `m01_loop`, `m02_tools`, `m03_log`, `m04_repair`, `m05_intent`, `m06_control`, `m07_resume`. Each one breaks
# something first, and has a cell in which you write the missing function, and a check that says what is wrong with it.
#
# **Open question:** the model cannot even read a file, it only talks. Who did all this? → `m01_loop`

# %% id="end"
assert source.count("+ 1") == source.count("lower") == 1
assert tinyharness.describe_state(tinyharness.read_jsonl(log)) == "done"
print("strict provider:", course.ask_strict(tinyharness.load_session(log)))

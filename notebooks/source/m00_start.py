# %% [markdown] id="title"
# # Start: run it, kill it, go on
#
# Five minutes.

# %% id="setup"
import course
import tinyharness

folder = course.fresh("m00_start")
log = folder / "session.jsonl"

# %% [markdown] id="kill-warning"
# The next cell kills this kernel, for real.

# %% id="kill" tags=["crash"]
tools = course.deadly(tinyharness.TOOLS, "edit_file", "after")
with tinyharness.Session(log, folder / "workspace", "rehearsal") as session:
    tinyharness.run_turn(session, tinyharness.TASK, tinyharness.rehearsal_model, tools)

# %% id="restart"
import course
import tinyharness

folder = course.reopen("m00_start")
log = folder / "session.jsonl"
with tinyharness.Session(log) as session:
    print(tinyharness.write_receipt(session))
    tinyharness.run_turn(session, "continue", tinyharness.rehearsal_model)

# %% id="end"
print(course.ask_strict(tinyharness.load_session(log)))
assert tinyharness.describe_state(tinyharness.read_jsonl(log)) == "done"

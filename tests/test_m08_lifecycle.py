"""Claim: an id says when a session began, and its records alone say what became of it."""

import fcntl
import os
import platform
import re
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from crash_tools import load_module
from strict_server import StrictServer
from test_m07_resume import (BEGUN, BLOCK, GOOD, ONE, OPENED, TWO, answer, ask, say, write_session)
from test_models import (SCRIPT, break_script, call_tool, find_log, folder, make_env, read_log,
                         run_forked, run_script)

PROMPT, WAITS = say("修复 🐞"), "waiting for an answer"
MAKER = """import sys, tinyharness
for _ in range(10): print(tinyharness.new_session_path(sys.argv[1]))"""
EAST = {"TZ": "CST-8"}  # where the clock is ahead of UTC, so that the two cannot be mixed up


def read_clock():
    """The time of day there, in whole seconds."""
    return datetime.now(timezone(timedelta(hours=8))).replace(microsecond=0, tzinfo=None)


def check_ids(script, folder):
    began, command = read_clock(), [sys.executable, "-c", MAKER, folder / "新" / "sessions"]
    place = {"cwd": folder, "env": make_env(folder, PYTHONPATH=str(Path(script).parent), **EAST)}
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **place) for _ in "两个"]
    made = [maker.communicate(timeout=60)[0].splitlines() for maker in makers]
    paths = [Path(path) for each in made for path in each]
    assert len(paths) == 20 == len(set(paths)), "two sessions were given one file"
    for path in paths:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d{6}_[a-z]+\.jsonl", path.name), f"no id: {path}"
        moment = datetime.strptime(path.name[:17], "%Y-%m-%d_%H%M%S")
        assert began <= moment <= read_clock(), "the id does not say when the session began"
        modes = [oct(each.stat().st_mode)[-3:] for each in (path.parent, path)]
        assert modes == ["700", "600"] and not path.stat().st_size, f"others can read it: {modes}"
    for each in made:
        by_moment = sorted(each, key=lambda path: path.rpartition("_")[0])
        assert by_moment == each, "a later session does not sort behind an earlier one"


def check_opening(script, folder):
    began, elsewhere = read_clock(), folder / "别处"
    elsewhere.mkdir()
    for options in [], ["--resume", "last", "--workspace", elsewhere]:
        assert run_script(folder, *options, "你好", script=script, **EAST).returncode == 0
    said = {number: record for number, record in enumerate(read_log(folder)) if "build" in record}
    assert list(said) == [0, 4], f"not once, before all else that a process writes: {list(said)}"
    for opening, kind, cwd in zip(said.values(), ("session", "resumed"), (folder, elsewhere)):
        where = {"cwd": str(cwd), "platform": sys.platform, "python": platform.python_version()}
        what = {"event": kind, "id": find_log(folder).stem, "format": 1, "model": "rehearsal"}
        unsaid = {**where, **what}.items() - opening.items()
        assert not unsaid, f"it does not say {unsaid}"
        moment, zone = opening["created"].rsplit(" ", 1)
        assert began <= datetime.fromisoformat(moment) <= read_clock() and zone == "+0800"
    assert len({opening["pid"] for opening in said.values()}) == 2


def check_build(script, folder):
    other, resume = folder / "另一个" / "tinyharness.py", ("--resume", "last")
    other.parent.mkdir()
    other.write_text(Path(script).read_text(encoding="utf-8") + "# 改\n", encoding="utf-8")
    run_script(folder, "你好", script=script)
    assert "of build" not in run_script(folder, *resume, script=script).stderr, "it is the same"
    there = run_script(folder, *resume, "你好", script=other).stderr
    old, new = [record["build"] for record in read_log(folder) if "build" in record]
    assert new != old, "two builds have one name"
    assert f"of build {old}, this is {new}" in there, "another build resumes, and none is told"
    back = run_script(folder, *resume, "你好", script=script).stderr
    assert f"of build {new}, this is {old}" in back, "the way back is not told"


def check_holder(script, folder):
    module, again = load_module(script), {**OPENED, "event": "resumed", "pid": 22, "created": "今天"}
    for records, who in ([OPENED, PROMPT, again, GOOD], "22, since 今天"), ([PROMPT], "unknown"):
        said = module.describe_holder(write_session(folder / "a", *records))
        assert f"last writer: pid {who}" in said, f"not who wrote last: {said}"


FOUND = {  # what is asked for: the end of the path, or of the refusal
    "otter": "/otter.jsonl", "otter-": "/otter-2.jsonl", "last": "/lynx.jsonl", "lynx": "lynx",
    "ott": "fits otter, otter-2", "folder": "none", "broken": "none", "獭": "none", "a/b": "none",
}


def check_find(script, folder):
    module, sessions = load_module(script), folder / "sessions"
    for age, name in enumerate(("lynx.jsonl", "otter-2.jsonl", "otter.jsonl", "2026_獭.jsonl")):
        os.utime(write_session(sessions / name, OPENED), (9**9 - age, 9**9 - age))
    write_session(folder / "lynx", OPENED)
    (sessions / "folder.jsonl").mkdir()
    (sessions / "broken.jsonl").symlink_to("没有")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for target, want in FOUND.items():
            try:
                found = module.find_session("sessions", target)
            except (module.SessionError, OSError) as error:
                found = str(error)
            assert found.endswith(want), f"{target} opens {found}"


DONE, ABORTED, FAILED = ({"event": "turn", "state": state, "reason": "拒绝"}
                         for state in ("done", "aborted", "error"))
ASKED, TOLD, BATCH = [OPENED, PROMPT, ask(ONE), BEGUN], answer("c1", "一"), ask(ONE, TWO)
BLOCKS, TRACKED = say([BLOCK], "assistant"), {**ask(ONE), "tracked": True}
IN_BASH, BEFORE_BASH = "interrupted in tool bash", "interrupted before tool bash"
RESULT = say([{"type": "tool_result", "tool_use_id": "c1", "content": "一"}])
STATES = {  # kind: (records, state)
    "nothing": ([], "empty"),
    "opened": ([OPENED], "empty"),
    "done": ([OPENED, PROMPT, GOOD, DONE], "done"),
    "done without a word": ([OPENED, PROMPT, say("", "assistant"), DONE], "done"),
    "aborted": ([*ASKED, TOLD, ABORTED], f"{WAITS} (aborted)"),
    "failed": ([OPENED, PROMPT, FAILED], f"{WAITS} (error)"),
    "killed in the request": ([OPENED, PROMPT], WAITS),
    "killed before a tool": ([OPENED, PROMPT, TRACKED], BEFORE_BASH),
    "killed in a tool": (ASKED, IN_BASH),
    "killed before the second tool": ([OPENED, PROMPT, BATCH, BEGUN, TOLD], BEFORE_BASH),
    "killed behind a result": ([*ASKED, TOLD], WAITS),
    "killed behind the answer": ([OPENED, PROMPT, GOOD], "done"),
    "killed in a later turn": ([PROMPT, GOOD, DONE, *ASKED], IN_BASH),
    "killed after an abort": ([OPENED, PROMPT, ABORTED, PROMPT], WAITS),
    "gone on after an abort": ([PROMPT, ABORTED, PROMPT, GOOD, DONE], "done"),
    "the chapter's, in a tool": ([PROMPT, BLOCKS], IN_BASH),
    "the chapter's, behind a result": ([PROMPT, BLOCKS, RESULT], WAITS),
    "the chapter's, done": ([PROMPT, BLOCKS, RESULT, say([{"text": "好"}], "assistant")], "done"),
}


def check_states(script, folder):
    module = load_module(script)
    for kind, (records, want) in STATES.items():
        session = module.Session(write_session(folder / f"{kind}.jsonl", *records))
        state = module.describe_state(records)
        assert state == want, f"what was {kind} is called {state}"
        for said in module.check_session(session), module.show_session(session):
            assert re.findall("state: (.*)", said) == [want], f"{kind}: {said}"


def read_list(module, sessions, text=""):
    """The list as {id: cells}, in its order."""
    rows = module.list_sessions(module.Session(sessions / "-"), text).splitlines()
    return {name: cells for name, *cells in (re.split(r" *\| *", row) for row in rows)}


def check_list(script, folder):
    module, sessions = load_module(script), folder / "sessions"
    long = [OPENED, say("长" * 3_000), *[answer("c1", "字" * 9_000)] * 3]
    big = ask(call_tool("write_file", "c1", path="a", content="大" * 9_000))
    bash = {**BEGUN, "tool": "bash"}
    read = [answer("c1", "长" * 9_000), say("好" * 700, "assistant"), PROMPT]
    late = [ask(TWO), {**BEGUN, "tool_call_id": "c2"}, answer("c2", "二" * 900)]
    kinds = {**STATES, "long": ([*long, PROMPT], WAITS), "big": ([*long, big, bash], IN_BASH),
             "a result out of sight": ([OPENED, PROMPT, ask(ONE), BEGUN, *read], WAITS),
             "an answer in the head": ([OPENED, PROMPT, GOOD, PROMPT, *late], WAITS),
             "a result alone in sight": ([OPENED, PROMPT, big, answer("c1", "二" * 500)], WAITS)}
    for kind, (records, _) in kinds.items():
        write_session(sessions / f"{kind}.jsonl", *records)
    rows = read_list(module, sessions)
    order = sorted(kinds, key="{}.jsonl".format, reverse=True)
    assert [*rows] == order, "not each session once, the newest id first"
    for kind, (records, state) in kinds.items():
        ended = records and records[-1].get("event") == "turn"
        want = records[-1]["state"] if ended else state
        want = want if ended or state in ("done", "empty") else f"crashed, {state}"
        age, status, title, count, place = rows[kind]
        assert status == want, f"{kind} is listed as {status}"
        asked = [record["content"] for record in records if record.get("role") == "user"]
        assert title == "".join(asked[:1])[:60], f"{kind} has the title {title}"
        assert age == "0.0 h" and place == ("".join(r["cwd"] for r in records if "cwd" in r)), age
        said = sum("role" in record for record in records)
        short = (sessions / f"{kind}.jsonl").stat().st_size <= module.END_BYTES
        assert count == f"{said} messages" if short else count[0] == "~", f"{kind}: {count}"
    (sessions / "tight.jsonl").write_text('{"role":"user","content":"紧"}\n{"event": "started"}\n')
    status, title, count = read_list(module, sessions)["tight"][1:4]
    assert status == "crashed, interrupted in tool None" and (title, count) == ("紧", "1 messages")


DAMAGES = {  # kind: the bytes of a file that is to be listed, and marked
    "torn": b'{"role": "user", "content": "a"}\n{"role": "user", "con', "text": b"README\n",
    "NUL": b"\0" * 5_000, "binary": bytes(range(256)) * 30, "no message": b'{"a": 1}\n',
    "half": '{"role": "user", "content": "长'.encode()[:-1], "deep": b"[" * 90_000,
}


def check_damage_is_listed(script, folder):
    module, sessions = load_module(script), folder / "sessions"
    write_session(sessions / "sound.jsonl", OPENED, PROMPT, GOOD, DONE)
    for kind, data in DAMAGES.items():
        (sessions / f"{kind}.jsonl").write_bytes(data)
    if sys.platform == "linux":  # a file that cannot be read, for root too
        (sessions / "unreadable.jsonl").symlink_to("/proc/self/mem")
    (sessions / "pipe.jsonl").symlink_to("pipe")
    os.mkfifo(sessions / "pipe")
    forged = say("a\nb.jsonl\r\n\x1b[2Jc")
    write_session(sessions / "forged.jsonl", {**OPENED, "cwd": "x\ny"}, forged, GOOD, DONE)
    rows = read_list(module, sessions)
    marked = {kind for kind, cells in rows.items() if re.search("damaged|unread", " ".join(cells))}
    assert marked == {*DAMAGES} | ({"unreadable"} & {*rows}), f"marked as damaged: {marked}"
    assert len(rows) == len(marked) + 2 and len(rows["forged"]) == 5, f"a forged row: {rows}"


HOLD = "import os, tinyharness; tinyharness.Session('held.jsonl').__enter__(); print(flush=True); input()"


def check_held(script, folder):
    module, sessions = load_module(script), folder / "sessions"
    for name in "held", "free":
        write_session(sessions / f"{name}.jsonl", OPENED, PROMPT, GOOD, DONE)
    place = {"cwd": sessions, "env": make_env(folder, PYTHONPATH=str(Path(script).parent))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **place}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as holder:
        holder.stdout.readline()
        status = {name: cells[1] for name, cells in read_list(module, sessions).items()}
        assert status == {"held": "active", "free": "done"}, f"listed as {status}"
        holder.kill()
    assert read_list(module, sessions)["held"][1] == "done", "a killed process holds a session"


LOOP = """import fcntl, sys, tinyharness
file = open(sys.argv[1], "rb")
print(flush=True)
while tinyharness.take_lock(file, shared=True) is not None: fcntl.flock(file, fcntl.LOCK_UN)"""


def check_a_look_is_in_nobodys_way(script, folder):
    module, path = load_module(script), write_session(folder / "a.jsonl", OPENED, PROMPT, GOOD, DONE)
    place = {"cwd": folder, "env": make_env(folder, PYTHONPATH=str(Path(script).parent))}
    place["stdout"] = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LOOP, path], **place) as looker:
        looker.stdout.readline()
        try:
            for number in range(200):
                with module.Session(path):
                    pass
        except module.SessionError as error:
            raise AssertionError(f"open {number} was refused because of a look: {error}") from None
        finally:
            looker.kill()


def check_a_foreign_lock_is_no_hang(script, folder):
    path = write_session(folder / "a.jsonl", OPENED, PROMPT, GOOD, DONE)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        command = [sys.executable, script, "--resume", path, "你好"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except subprocess.TimeoutExpired:
            raise AssertionError("the resume did not come to an end") from None
    assert done.returncode == 2 and "held by another process" in done.stderr, done.stderr


def check_only_the_ends_are_read(script, folder):
    module, seconds = load_module(script), []
    for count in 10, 20_000:  # the longer one has 20 MB
        path = write_session(folder / f"{count}.jsonl", OPENED, *[say("长" * 300)] * count, GOOD, DONE)
        looks = []
        for _ in range(9):
            begun = time.perf_counter()
            module.list_session(path)
            looks.append(time.perf_counter() - begun)
        seconds.append(min(looks))
    assert seconds[1] < 5 * seconds[0], f"2,000 times as long takes {seconds[1] / seconds[0]:.0f} times"


def check_marks(script, folder):
    own, sessions = folder / "own", folder / "own" / ".tinyharness" / "sessions"
    own.mkdir()
    (own / "tinyharness.py").write_text(Path(script).read_text(encoding="utf-8"), encoding="utf-8")
    run_script(own, "你好", script=own / "tinyharness.py")
    run_script(own, "--canary", "蓝", "你好", script=script)
    run_script(own, "--resume", "last", "再见", script=script)
    module = load_module(script)
    status = {cells[1] for cells in read_list(module, sessions).values()}
    assert status == {"done, works on itself", "done, canary 蓝"}, f"marked {status}"
    assert len(read_list(module, sessions, "canary 蓝")) == 1, "the list shows more than the canaries"
    listed = run_script(own, "--list", script=script), run_script(own, "--list", "canary 蓝", script=script)
    assert [len(each.stdout.splitlines()) for each in listed] == [2, 1], listed


def check_commit(script, folder):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", folder]
    run_script(folder, "你好", script=script)
    for command in ["init", "-q"], ["commit", "-qm", "一", "--allow-empty"], ["gc", "-q"]:
        subprocess.run([*git, *command], check=True, env=make_env(folder))
    (folder / "里").mkdir()
    run_script(folder, "--workspace", "里", "--resume", "last", "你好", script=script)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    commits = [record["commit"] for record in read_log(folder) if "commit" in record]
    assert commits == ["", head.strip()], f"the commits of the workspace: {commits}"


WAIT = "; while kill -0 $PPID; do :; done"  # until the harness ends, or ends this
ENDINGS = {  # what comes in the middle of a turn: (the model's reply, state)
    "SIGKILL before a tool": (ask(ONE), BEFORE_BASH),
    "SIGKILL": (ask(call_tool("bash", command=f"kill -KILL $PPID{WAIT}")), IN_BASH),
    "SIGTERM": (ask(call_tool("bash", command=f"kill -TERM $PPID{WAIT}")), f"{WAITS} (aborted)"),
}
DIE = "def make_intent(*_): os.kill(os.getpid(), signal.SIGKILL)"


def check_endings(script, folder):
    for number, (kind, (reply, want)) in enumerate(ENDINGS.items()):
        with StrictServer([reply]) as server:
            run_forked(folder, "--yes", "--sessions", f"{number}", "做 🐞", server=server,
                       script=script, hook=DIE if "before" in kind else "")
        seen = run_forked(folder, "--sessions", f"{number}", "--check", "last", script=script)
        assert f"state: {want}\n" in seen.stdout, f"after {kind}: {seen.stdout}"


def check_looking_changes_nothing(script, folder):
    sessions = folder / "sessions"
    for kind, (records, _) in STATES.items():
        write_session(sessions / f"{kind}.jsonl", *records, tail=b'{"torn' * bool(records))
    def take_stamps():
        return {path: (path.is_file() and path.read_bytes(), path.stat().st_ctime_ns)
                for path in [sessions, *sessions.iterdir()]}  # a new mtime or mode is a new ctime
    before = take_stamps()
    for option in "--list", "--search", "--check", "--show", "--resume":
        looks = f"for name in {[*STATES]}: main(['--sessions', 'sessions', '{option}', name])"
        done = run_forked(folder, "--search", "修复", script=script, hook=looks, OPENAI_API_KEY="x")
        assert take_stamps() == before, f"{option} looked, and wrote"
        assert done.returncode == 0, done.stderr


CLAIMS = [check_ids, check_opening, check_build, check_holder, check_find, check_states,
          check_endings, check_looking_changes_nothing, check_list, check_damage_is_listed,
          check_held, check_a_look_is_in_nobodys_way, check_a_foreign_lock_is_no_hang,
          check_only_the_ends_are_read, check_marks, check_commit]
(IDS, OPENING, BUILD, HOLDER, FIND, STATE, ENDING, LOOK, LIST, DAMAGE, HELD, WAY, SHARED, ENDS, MARK,
 COMMIT) = CLAIMS


@pytest.mark.parametrize("check", CLAIMS)
def test_lifecycle(check, folder):
    check(SCRIPT, folder)


REMOVED = {  # name: (the check that has to see it, words of its complaint, the protection, instead)
    "making the file": (IDS, "given one file", "os.O_CREAT | os.O_EXCL", "os.O_CREAT"),
    "the moment": (IDS, "no id", "%Y-%m-%d_%H%M%S_{", "{os.getpid()}_{"),
    "the time zone": (IDS, "when the session", "(WORDS)}.jsonl\"))", "(WORDS)}.jsonl\", time.gmtime()))"),
    "the mode": (IDS, "others can read", "os.O_EXCL, 0o600", "os.O_EXCL, 0o644"),
    "the mode of the folder": (IDS, "others can read", "folder, mode=0o700, ", "folder, "),
    "who goes on": (OPENING, "does not say .*resumed", '"resumed" if session.records else ', ""),
    "the system": (OPENING, "does not say .*platform", '"platform": sys.platform, ', ""),
    "the Python": (OPENING, "does not say .*python", '"python": sys.version.split()[0], ', ""),
    "the build": (BUILD, "have one name", "HERE.read_bytes()", "b''"),
    "silence": (BUILD, "it is the same", "builds[-1:] if each != BUILD", "builds[-1:]"),
    "the last build": (BUILD, "the way back", "in builds[-1:] if", "in builds[:1] if"),
    "the last writer": (HOLDER, "who wrote last", "or [{}])[-1]", "or [{}])[0]"),
    "a path first": (FIND, "lynx opens", "if os.path.isfile(target):", "if False:"),
    "a whole id": (FIND, "otter opens", "if path.stem == target] or found", "]"),
    "the one used last": (FIND, "last opens", "key=os.path.getmtime", "key=str"),
    "files only": (FIND, "last opens", "filter(os.path.isfile, pathlib", "filter(None, pathlib"),
    "another log": (STATE, "chapter's", " or not call.tracked else \"b", " else \"b"),
    "an open end": (STATE, "aborted is called done", "and not said[-1][2]", ""),
    "a silent end": (STATE, "without a word", 'ended == "done" or ', ""),
    "the ending": (ENDING, "after SIGTERM", '"aborted", "reason"', '"error", "reason"'),
    "the newest first": (LIST, "not each session", "\"*.jsonl\")), reverse=True)", "\"*.jsonl\")))"),
    "the turn's end": (LIST, "is listed as", 'text_of(last.get("state")) or end', "end"),
    "the end alone": (LIST, "out of sight is|in the head is",
                      'describe_state([{"role": "user", "content": guess}, *records])',
                      "describe_state([each for found, _ in opening for each in found])"),
    "a message before the end": (LIST, "alone in sight is", '[{"role": "user", "content": guess}, *records]', "records"),
    "what is in no tool": (LIST, "is listed as crashed, ", 'end if end in ("done", "empty") else ', ""),
    "a call out of sight": (LIST, "big is listed", 'if last.get("event") == "started" else', "if 0 else"),
    "a long title": (LIST, "has the title", "TITLE.search(head + ", "TITLE.search(b'' + "),
    "whole lines": (LIST, "alone in sight is|long is|big is", 'tail.partition(b"\\n")[2]', "tail"),
    "a mark": (DAMAGE, "marked as damaged", '["damaged" for', '["" for'),
    "a file of one line": (DAMAGE, "marked as", "or path.read_bytes() if guess", "if guess"),
    "one row each": (DAMAGE, "a forged row", '" ".join(row.split())', "row"),
    "the lock": (HELD, "listed as", "held = not take_lock(file, shared=True)", "held = False"),
    "a second try": (WAY, "refused because of a look", "for _ in range(10_000)", "for _ in range(1)"),
    "an end of tries": (SHARED, "did not come to an end", "for _ in range(10_000)", "for _ in iter(int, 1)"),
    "the ends alone": (ENDS, "times as long takes", "file.read(END_BYTES)", "file.read()"),
    "itself": (MARK, "marked", '"self": HERE', '"own": HERE'),
    "the canary": (MARK, "marked", ', "canary": session.canary', ""),
    "just those": (MARK, "more than the canaries", " if text in row", ""),
    "the commit": (COMMIT, "commits", ', "commit": subprocess.getoutput(git)', ""),
    "looking": (LOOK, "--check", "seen.records = r", "seen.records = os.utime(seen.path) or r"),
    "a quiet resume": (LOOK, "--resume", "        return self\n", "        self.append({})\n"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_check_sees_that_this_is_removed(name, folder):
    check, words, *change = REMOVED[name]
    with pytest.raises(AssertionError, match=words):
        check(break_script(folder / "broken", change), folder)

"""Claim: a session killed at any moment is resumed, by one process at a time, and goes on."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chapter
import pytest
from strict_server import StrictServer, judge
from test_models import (SCRIPT, break_script, call_tool, find_log, folder, list_stages, make_env,
                         read_log, run_forked, run_script)

import tinyharness


def say(text, role="user", **more):
    return {"role": role, "content": text, **more}


def ask(*calls):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def answer(call_id, text):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


OPENED = {"event": "session", "format": 1, "id": "修", "cwd": "/", "model": "m", "pid": 1,
          "created": "2026-01-01 00:00:00 +0000"}
ONE, TWO = call_tool("bash", "c1", command="echo 一"), call_tool("bash", "c2", command="echo 二")
BEGUN = {"event": "started", "tool_call_id": "c1", "tool": "bash", "read_only": False}
GOOD = say("好 ✅", "assistant")


def write_session(path, *records, tail=b"") -> Path:
    """A session file as a harness leaves it: one record a line, and perhaps a torn line."""
    lines = [json.dumps({**record, "ts": 1}, ensure_ascii=False) + "\n" for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(lines).encode() + tail)
    return path


def take_stamp(path) -> tuple:
    """What must not change where nothing is written: the bytes and the time."""
    return path.read_bytes(), path.stat().st_mtime_ns


@pytest.fixture
def open_folder():
    """A folder that every user can enter and write to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


# ─── the course's list: written in real time ─────────────────────────────────────────────────────

def check_written_in_real_time(script, folder):
    seen, sessions = [], folder / "sessions"
    look = ask(call_tool("bash", command=f"cat {shlex.quote(str(sessions))}/*"))

    def model(messages, tools):
        seen.append([(record.get("role"), record.get("event")) for record in read_log(folder)])
        return GOOD if len(seen) > 1 else look
    with StrictServer(model) as server:
        done = run_forked(folder, "--yes", "--sessions", sessions, "修复 🐞", server=server,
                          script=script)
    assert done.returncode == 0, done.stderr
    assert seen[0][-1:] == [("user", None)], "the user's message is not on disk before the request"
    told = server.requests[1]["messages"][-1]["content"]
    assert '"tool_calls"' in told, "the call is not on disk while its tool runs"
    assert '"started"' in told, "the log does not say that the call began while its tool runs"
    assert seen[1][-1:] == [("tool", None)], "the result is not on disk before the next request"


def test_1_each_step_is_written_in_real_time(folder):
    check_written_in_real_time(SCRIPT, folder)


# ─── the course's list: resume goes on; dangling call handled ────────────────────────────────────

def use(load, path) -> list:
    """What a load_session makes of a file; to raise is wrong, except for the stub's own error."""
    try:
        return load(path)
    except NotImplementedError:
        raise
    except Exception as error:
        raise AssertionError(
            f"one torn line or a record of another kind makes all unreadable: {error!r}") from error


def check_resume_goes_on(load, folder):
    assert use(load, folder / "没有.jsonl") == [] and not (folder / "没有.jsonl").exists(), (
        "a file that is not there is an empty session, and loading does not make it")
    kept = [say("修复 🐞\u2028第二行"), ask(ONE), answer("c1", "一\n[exit code 0]"), GOOD]
    path = write_session(folder / "a.jsonl", OPENED, kept[0], {**kept[1], "reasoning_content": "想"},
                         BEGUN, kept[2], {**GOOD, "finish_reason": "stop"}, {"event": "turn"})
    loaded = use(load, path)
    assert judge(loaded) == [], f"a provider refuses the history: {judge(loaded)}"
    assert loaded == kept, "not the messages that were written, or more than belongs in a request"


BLOCK = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "echo 一"}}
DANGLING = {  # kind: (records, the results that are real)
    "at the end": ([say("做"), ask(ONE), BEGUN], {}),
    "in the middle": ([say("做"), ask(ONE), BEGUN, say("还在吗?"), GOOD], {}),
    "second of a batch": ([say("做"), ask(ONE, TWO), BEGUN, answer("c1", "一")], {"c1": "一"}),
    "first of a batch": ([say("做"), ask(ONE, TWO), answer("c2", "二"), say("继续")], {"c2": "二"}),
    "result behind a message": ([say("做"), ask(ONE), say("嗯"), answer("c1", "一")], {"c1": "一"}),
    "in the chapter's blocks": ([say("做"), say([BLOCK], "assistant")], {}),
}


def check_dangling_call_is_handled(load, folder):
    for kind, (records, real) in DANGLING.items():
        loaded = use(load, write_session(folder / "b.jsonl", OPENED, *records))
        assert judge(loaded) == [], f"dangling call {kind} is not answered: {judge(loaded)}" + (
            "; looking at the last message only is not enough" if kind != "at the end" else "")
        results = {each["tool_call_id"]: each["content"] for each in loaded
                   if each["role"] == "tool"}
        assert real.items() <= results.items(), f"{kind}: a real result is lost or replaced"
        for call_id in results.keys() - real.keys():
            claims = [word for word in ("not executed", "cancel", "succeeded", "取消")
                      if word in results[call_id].lower()]
            assert not claims, f"{kind}: the log cannot know that the call was {claims}"
        texts = [each["content"] for each in loaded if each["role"] == "user"]
        assert texts == [each["content"] for each in records if each.get("role") == "user"], kind


def check_torn_line_costs_only_itself(load, folder):
    torn = json.dumps(say("断"), ensure_ascii=False).encode()[:-4]
    path, last = folder / "c.jsonl", json.dumps(say("二", "assistant")).encode()
    write_session(path, OPENED, say("一"), tail=torn + b"\n" + last + b"\n" + torn)
    texts = [each["content"] for each in use(load, path)]
    assert texts == ["一", "二"], "a torn line costs more than itself"


def check_load_changes_nothing(load, folder):
    path = write_session(folder / "e.jsonl", OPENED, say("做"), ask(ONE), BEGUN, tail=b'{"role": "u')
    os.utime(path, (1, 1))
    before, there, loaded = path.read_bytes(), sorted(os.listdir(folder)), use(load, path)
    assert path.read_bytes() == before, "loading writes to the file; resume-and-quit must not"
    assert path.stat().st_mtime == 1, "loading touches the file; then `last` means another session"
    assert sorted(os.listdir(folder)) == there, "loading leaves other files behind"
    assert use(load, path) == loaded, "loading twice gives two histories"


def test_2_resume_goes_on(impl, folder):
    check_resume_goes_on(impl.load_session, folder)


def test_3_dangling_call_is_handled(impl, folder):
    check_dangling_call_is_handled(impl.load_session, folder)


def test_torn_line_costs_only_itself(impl, folder):
    check_torn_line_costs_only_itself(impl.load_session, folder)


def test_loading_changes_nothing(impl, folder):
    check_load_changes_nothing(impl.load_session, folder)


# ─── the course's list: append against one big JSON ──────────────────────────────────────────────

class OneBigJson:
    """The other way: all messages in one JSON, written again for each new one."""

    def __init__(self, messages=()):
        self.messages = list(messages)

    def add(self, path, record):
        """Write all messages and one more."""
        self.messages.append(record)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.messages, file)


WRITER = """
import sys, test_m07_resume, tinyharness
old = [{"role": "user", "content": "旧 🐞"}] * 3000
write = {"append": tinyharness.append_jsonl, "json": test_m07_resume.OneBigJson(old).add}
for number in range(1, 10**6):
    write[sys.argv[1]](sys.argv[2], {"role": "user", "content": f"{number} 修复 🐞"})
    print(number, flush=True)
"""


def count_written(write, path, messages) -> int:
    """How many bytes this process hands to the system to store so many messages."""
    def read_counter():
        return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])
    before = read_counter()
    for number in range(messages):
        write(path, say(f"{number:04d} 修复 🐞"))
    return read_counter() - before


def kill_writer(way, path, dice) -> int:
    """Kill a process that writes, at a random moment; how many messages it acknowledged."""
    places = os.pathsep.join([str(SCRIPT.parent), str(Path(__file__).parent)])
    with subprocess.Popen([sys.executable, "-c", WRITER, way, path], stdout=subprocess.PIPE,
                          env=make_env(path.parent, PYTHONPATH=places)) as process:
        seen = process.stdout.readline()
        moment = time.perf_counter() + dice.uniform(0, 0.05)
        while time.perf_counter() < moment:
            pass
        process.kill()
        return int((seen + process.stdout.read()).split()[-1])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="only Linux counts written bytes")
def test_4_append_writes_each_byte_once_and_one_big_json_writes_it_again_and_again(folder):
    written = {(way, size): count_written(write, folder / f"{way}{size}", size)
               for size in (100, 200) for way, write in (
                   ("append", tinyharness.append_jsonl), ("json", OneBigJson().add))}
    assert written["append", 100] == (folder / "append100").stat().st_size
    assert written["append", 200] == 2 * written["append", 100]
    assert written["json", 200] > 90 * (folder / "json200").stat().st_size


def check_kill_leaves_what_was_acknowledged(load, folder):
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    for path in (folder / "1.jsonl", folder / "2.jsonl", folder / "3.jsonl"):
        acknowledged = kill_writer("append", path, dice)
        texts = [message["content"] for message in use(load, path)]
        assert texts == [f"{number} 修复 🐞" for number in range(1, len(texts) + 1)], "out of order"
        assert len(texts) >= acknowledged, f"{acknowledged} were acknowledged, {len(texts)} left"


def test_4_a_kill_leaves_each_acknowledged_record_of_a_log(impl, folder):
    check_kill_leaves_what_was_acknowledged(impl.load_session, folder)


def test_4_a_kill_leaves_nothing_of_one_big_json(folder):
    print("seed", seed := random.randrange(10**9))
    path, dice, left = folder / "one.json", random.Random(seed), []
    for _ in range(4):
        kill_writer("json", path, dice)
        left.append(path.read_bytes())
    # Nearly all the time the file is half written, and half a JSON is none.
    assert any(not data.endswith(b"]") for data in left), "four kills, and none hit a rewrite"


# ─── the lock ────────────────────────────────────────────────────────────────────────────────────

HOLDER = """
import os, sys, tinyharness
with tinyharness.Session(sys.argv[1]) as session:
    session.append({"role": "user", "content": "做"})
    print("held", flush=True)
"""
WAITS = "    sys.stdin.read()\n"
RUNS_BASH = "    tinyharness.bash(session, 'echo $$ >pid; exec sleep 600')\n"
FORKS = "    if child := os.fork():\n        print(child, file=open('pid', 'w'))\n" + WAITS


class Holder:
    """A process that holds a session until it is killed."""

    def __init__(self, script, folder, action):
        self.folder, self.path = folder, folder / "held.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER + action, self.path], cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=make_env(folder, PYTHONPATH=str(Path(script).parent)))

    def __enter__(self):
        assert self.process.stdout.readline() == "held\n"
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def find_child(self) -> int:
        """The id of the child, once it runs."""
        path, deadline = self.folder / "pid", time.monotonic() + 30
        while not (path.exists() and path.read_text().endswith("\n")):
            assert time.monotonic() < deadline, "the child did not start"
        return int(path.read_text())


def check_second_process_is_refused(script, folder):
    with Holder(script, folder, WAITS) as holder, StrictServer([GOOD]) as server:
        before, since = take_stamp(holder.path), tinyharness.read_jsonl(holder.path)[0]["created"]
        done = run_script(folder, "--resume", holder.path, "我也要", server=server, script=script)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr or "let in"
        for word in (str(holder.process.pid), since, "copy", str(holder.path)):
            assert word in done.stderr, f"{word} is not in {done.stderr}"
        assert take_stamp(holder.path) == before, "it was refused, and wrote all the same"
        assert server.requests == [], "it was refused, and asked the model all the same"
        shutil.copy(holder.path, folder / "copy.jsonl")
        done = run_forked(folder, "--resume", "copy.jsonl", "我也要", server=server, script=script)
        assert done.returncode == 0 and "好" in done.stdout, done.stderr
        assert take_stamp(holder.path) == before, "the copy is not independent"
        assert [each["content"] for each in server.requests[0]["messages"][1:]] == ["做", "我也要"]


def check_kill_frees_the_lock(script, folder, action):
    with Holder(script, folder, action) as holder:
        child = holder.find_child()
        try:
            holder.process.kill()
            holder.process.wait()
            os.kill(child, 0)  # it lives on: otherwise this proves nothing
            done = run_script(folder, "--resume", holder.path, script=script)
        finally:
            os.kill(child, signal.SIGKILL)
    assert done.returncode == 0, f"the child keeps the lock: {done.stderr}"


def test_second_process_is_refused_with_one_line_and_a_copy_is_independent(folder):
    check_second_process_is_refused(SCRIPT, folder)


@pytest.mark.parametrize("action", [RUNS_BASH, FORKS], ids=["bash", "fork without exec"])
def test_killed_holder_frees_the_lock_at_once_although_its_child_lives(action, folder):
    check_kill_frees_the_lock(SCRIPT, folder, action)


# ─── the receipt, and what can be resumed ────────────────────────────────────────────────────────

RECEIPTS = {  # kind: (records, torn end of the file, words of the receipt)
    "done": ([say("做"), GOOD, {"event": "turn", "state": "done"}], b"",
             ["4 records read", "0 lines skipped", "state: done"]),
    "waiting": ([say("做")], b"", ["2 records read", "state: waiting for an answer"]),
    "interrupted": ([say("做"), ask(ONE, TWO), BEGUN], b"", [
        "4 records read", "call bash: outcome unknown", "call bash: not started",
        "state: interrupted in tool bash"]),
    "skipped": ([say("做"), GOOD], b'{"role": "us\n\n[1]\n{"role": "to', [
        "3 records read", "3 lines skipped", "line 4", "line 6", "line 7", "state: done"]),
}


def check_receipt(script, folder):
    for kind, (records, tail, words) in RECEIPTS.items():
        path = write_session(folder / f"{kind}.jsonl", OPENED, *records, tail=tail)
        before, done = take_stamp(path), run_script(folder, "--resume", path, script=script)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        missing = [word for word in words if word not in done.stderr]
        assert not missing, f"{kind}: no {missing} in {done.stderr}"
        assert take_stamp(path) == before, "nothing was said, and it wrote all the same"


def test_receipt_says_what_was_found_and_changes_nothing(folder):
    check_receipt(SCRIPT, folder)


def write_three(folder) -> dict:
    """Three sessions, the one that was used last first."""
    paths = {name: folder / ".tinyharness" / "sessions" / f"{name}.jsonl"
             for name in ("2026-01-02_獭", "2025-12-31_lynx", "2026-01-01_otter")}
    for age, (name, path) in enumerate(paths.items()):
        os.utime(write_session(path, OPENED, say(name)), (10**9 - age, 10**9 - age))
    return paths


@pytest.mark.parametrize("target, name", [
    ("2026-01-02_獭", "2026-01-02_獭"), ("2025", "2025-12-31_lynx"), ("last", "2026-01-02_獭"),
    (".tinyharness/sessions/2026-01-01_otter.jsonl", "2026-01-01_otter")])
def test_session_is_found_by(target, name, folder):
    path = write_three(folder)[name]
    done = run_script(folder, "--resume", target)
    assert done.returncode == 0 and path.name in done.stderr, done.stderr


BAD = {  # kind: (what --resume is given, words of the one line)
    "missing path": ("没有/这个.jsonl", ["没有/这个.jsonl"]), "missing id": ("獭", ["獭"]),
    "directory": (".tinyharness", [".tinyharness"]), "FIFO": ("fifo", ["fifo"]),
    "ambiguous prefix": ("2026", ["2026-01-01_otter", "2026-01-02_獭"]), "nothing": ("", [""]),
    "unreadable file": ("write-only.jsonl", ["write-only.jsonl"]),
    "unwritable file": ("read-only.jsonl", ["read-only.jsonl"]),
    "path in a closed folder": ("closed/a.jsonl", ["closed/a.jsonl"]),
}
MODES = (("read-only.jsonl", 0o444), ("write-only.jsonl", 0o222), ("closed/a.jsonl", 0o666))
# Modes are no obstacle for root, and its home may be one for all others: import first, then change.
UNPRIVILEGED = """
import argparse, gettext, importlib.util, os, shlex, shutil, subprocess, sys, threading
spec = importlib.util.spec_from_file_location("tinyharness", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(module.main(sys.argv[2:]))
"""


def check_bad_target(script, folder, kind):
    write_three(folder)
    os.mkfifo(folder / "fifo")
    for name, mode in MODES:
        write_session(folder / name, OPENED, say("做")).chmod(mode)
    for path in (folder / ".tinyharness", *(folder / ".tinyharness").rglob("*")):
        path.chmod(0o777)
    (folder / "closed").chmod(0)
    target, words = BAD[kind]
    with StrictServer([]) as server:
        done = run_script(folder, "--resume", target, "做", server=server, script=script,
                          python=(sys.executable, "-c", UNPRIVILEGED))
    (folder / "closed").chmod(0o700)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words) and server.requests == []


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_resumed_is_one_clear_line(kind, open_folder):
    check_bad_target(SCRIPT, open_folder, kind)


def test_workspace_and_model_come_from_the_first_record_unless_given_again(folder):
    for name in ("这里", "那里", "别处"):
        (folder / name).mkdir()
    last, where = ["--resume", "last"], ask(call_tool("bash", command='basename "$PWD"'))
    steps = [["--model", "甲", "--workspace", "../这里"], last,
             [*last, "--model", "乙", "--workspace", "../那里"], last]
    with StrictServer([where, GOOD] * 4) as server:
        for number, options in enumerate(steps):
            place = folder / ("别处" if number else "那里")
            done = run_forked(place, "--yes", "--sessions", "../sessions", *options, "在哪?",
                              server=server, OPENAI_MODEL="丙")
            assert done.returncode == 0, done.stderr
    told = [(body["model"], body["messages"][-1]["content"].split()[0])
            for body in server.requests[1::2]]
    assert told == [("甲", "这里"), ("甲", "这里"), ("乙", "那里"), ("甲", "这里")]


# ─── killed before, during and after each tool ───────────────────────────────────────────────────

HOOK = """
left, running, append, replace, popen, write = (
    {kill_at}, None, append_jsonl, os.replace, subprocess.Popen, write_all)
def tick(name, before_death=lambda: None):
    global left
    left -= 1
    if left < 0:
        print("point:", name, file=sys.stderr)
    if left == 0:
        before_death()
        os.kill(os.getpid(), signal.SIGKILL)
def append_jsonl(path, record):
    global running
    running = record.get("tool", running)
    kinds = dict(started=("before", "begun"), tool=("after", "told"))
    names = kinds.get(record.get("event") or record["role"], ("around", "around"))
    tick(f"{{names[0]}} {{running}}")
    append(path, record)
    tick(f"{{names[1]}} {{running}}")
def write_all(file, data):
    tick("torn", lambda: file.write(data[:len(data) // 2]))
    write(file, data)
def replace_later(*paths):
    tick(f"during {{running}}")
    replace(*paths)
def start_process(*arguments, **options):
    process = popen(*arguments, **options)
    if running:  # the openai package starts processes too
        tick(f"during {{running}}")
    return process
os.replace, subprocess.Popen = replace_later, start_process
"""
VERDICTS = {  # where it was killed -> what the model is told of the call; else: no verdict
    "before": dict.fromkeys(("read_file", "edit_file", "bash"), "not started"),
    "begun": {"read_file": "interrupted", "edit_file": "not applied", "bash": "outcome unknown"},
    "during": {"edit_file": "not applied", "bash": "outcome unknown"},
    "after": {"read_file": "interrupted", "edit_file": "applied", "bash": "outcome unknown"}}


def start_rehearsal(folder, server, script, kill_at, lane=0):
    """Play the rehearsal as a real model behind a server, killed at the n-th point."""
    tinyharness.make_demo(folder / "work")
    return run_forked(folder, "--yes", "--workspace", "work", tinyharness.TASK, server=server,
                      script=script, hook=HOOK.format(kill_at=kill_at), lane=lane)


def resume_rehearsal(folder, server, script, kill_at=-1, lane=0):
    """Say "continue" to what is on disk, or the task again if the kill came before it was."""
    known = any(record.get("role") == "user" for record in tinyharness.read_jsonl(find_log(folder)))
    prompt = "continue" if known else tinyharness.TASK
    return run_forked(folder, "--yes", "--workspace", "work", "--resume", "last", prompt, lane=lane,
                      server=server, script=script, hook=HOOK.format(kill_at=kill_at))


def read_repaired(folder) -> list:
    """The records, once it is sure that the test passes and that each edit is in place once."""
    text = (folder / "work" / "parse_date.py").read_text()
    assert text == list_stages(tinyharness)[-1], "an edit is lost or doubled"
    subprocess.run([sys.executable, "-B", "test_parse_date.py"], cwd=folder / "work", check=True,
                   stdout=subprocess.DEVNULL)
    return tinyharness.read_jsonl(find_log(folder))


def check_kill_points(script, folder, phases):
    with StrictServer(tinyharness.rehearsal_model) as server, ThreadPoolExecutor(2) as lanes:
        whole = start_rehearsal(folder / "whole", server, script, kill_at=0)
        points = [line[7:] for line in whole.stderr.splitlines() if line.startswith("point: ")]
        assert {"before bash", "during edit_file", "after read_file", "torn"} <= set(points)
        chosen = [(number, name) for number, name in enumerate(points, 1)
                  if name in phases or name.split()[0] in phases]
        tasks = [lanes.submit(check_points, script, folder, server, chosen[lane::2], lane)
                 for lane in range(2)]
        for task in tasks:
            task.result()
    assert server.refusals == [], server.refusals[0]
    return len(chosen)


def check_points(script, folder, server, points, lane):
    for number, name in points:
        place, (phase, _, tool) = folder / str(number), name.partition(" ")
        killed = start_rehearsal(place, server, script, number, lane)
        assert killed.returncode == -9, (name, killed.stderr)
        before = find_log(place).read_bytes()
        if before and not tinyharness.read_jsonl(find_log(place)):
            continue  # killed within the first record: there is no session yet
        done = resume_rehearsal(place, server, script, lane=lane)
        assert done.returncode == 0 and "The test passes" in done.stdout, (name, done.stderr)
        assert find_log(place).read_bytes().startswith(before), f"{name}: old bytes changed"
        records = read_repaired(place)
        assert tinyharness.open_calls(records) == [], "what the model was told is not on record"
        if phase not in ("torn", "around"):
            want = VERDICTS.get(phase, {}).get(tool)
            told = [record["verdict"] for record in records if "verdict" in record]
            assert told == [want] * bool(want), f"killed {name}: told {told}, not {want}"


def test_killed_before_during_and_after_each_tool_the_task_ends_with_each_edit_once(folder):
    assert check_kill_points(SCRIPT, folder, ("before", "during", "after")) == 6 + 5 + 6


@pytest.mark.long
def test_killed_at_each_other_point_too(folder):
    assert check_kill_points(SCRIPT, folder, ("begun", "told", "around", "torn")) > 40


@pytest.mark.long
def test_killed_again_and_again_while_it_resumes(folder):
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    with StrictServer(tinyharness.rehearsal_model) as server:
        for place in (folder / str(number) for number in range(10)):
            done, runs = start_rehearsal(place, server, SCRIPT, dice.randrange(4, 40)), 0
            while done.returncode:
                assert done.returncode == -9 and (runs := runs + 1) < 60, done.stderr
                before = find_log(place).read_bytes()
                done = resume_rehearsal(place, server, SCRIPT, dice.randrange(3, 60))
                assert find_log(place).read_bytes().startswith(before)
            read_repaired(place)
    assert server.refusals == [], server.refusals[0]


# ─── each wrong version is rejected, each removed protection is seen ─────────────────────────────

def look_at_the_last(path):
    messages = [{key: record[key] for key in ("role", "content", "tool_calls", "tool_call_id")
                 if key in record} for record in tinyharness.read_jsonl(path) if "role" in record]
    lost = messages[-1].get("tool_calls", [])
    return messages + [answer(call["id"], chapter.LOST) for call in lost]


def answer_all_anew(path):
    return [{**each, "content": chapter.LOST} if each["role"] == "tool" else each
            for each in tinyharness.load_session(path)]


def drop_each_batch(path):
    return [each for each in tinyharness.load_session(path)
            if each["role"] != "tool" and "tool_calls" not in each]


def claim_too_much(path):
    text = json.dumps(tinyharness.load_session(path))
    return json.loads(text.replace("no result is", "Not executed: no result is"))


def send_whole_records(path):
    return [record for record in tinyharness.read_jsonl(path) if "role" in record]


def stop_at_the_torn_line(path):
    skipped, lines = [], Path(path).read_bytes().splitlines(keepends=True)
    tinyharness.read_jsonl(path, skipped)
    Path(f"{path}.part").write_bytes(b"".join(lines[:skipped[0][0] - 1]))
    return tinyharness.load_session(f"{path}.part")


def first(action):
    """A load_session that does one thing too much."""
    def load_session(path):
        action(path)
        return tinyharness.load_session(path)
    return load_session


CHECKS = [check_resume_goes_on, check_dangling_call_is_handled, check_torn_line_costs_only_itself,
          check_load_changes_nothing, check_kill_leaves_what_was_acknowledged]
RESUME, DANGLE, TORN, NOTHING, KILL = CHECKS
WRONG = {  # what is wrong: (the check that has to see it, the version, words of its complaint)
    "is the chapter's own": (RESUME, chapter.load_session, "another kind"),
    "is the chapter's own, interrupted": (DANGLE, chapter.load_session, "another kind"),
    "is the chapter's own, torn": (TORN, chapter.load_session, "one torn line"),
    "looks at the last message": (DANGLE, look_at_the_last, "last message only is not enough"),
    "answers all anew": (DANGLE, answer_all_anew, "a real result is lost or replaced"),
    "drops each batch": (DANGLE, drop_each_batch, "a real result is lost or replaced"),
    "claims too much": (DANGLE, claim_too_much, "the log cannot know"),
    "sends whole records": (RESUME, send_whole_records, "a provider refuses the history"),
    "makes the file": (RESUME, first(lambda path: open(path, "a").close()), "does not make it"),
    "stops at a torn line": (TORN, stop_at_the_torn_line, "costs more than itself"),
    "writes the repair down": (NOTHING, first(lambda path: tinyharness.append_jsonl(
        path, tinyharness.load_session(path)[-1])), "loading writes to the file"),
    "touches the file": (NOTHING, first(os.utime), "touches the file"),
    "locks beside the file": (
        NOTHING, first(lambda path: open(f"{path}.lock", "w").close()), "other files"),
    "forgets the end": (KILL, lambda path: tinyharness.load_session(path)[:-2], "acknowledged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_check_rejects_a_version_that(name, folder):
    check, load, words = WRONG[name]
    with pytest.raises(AssertionError, match=words):
        check(load, folder)


@pytest.mark.parametrize("check", CHECKS)
def test_check_rejects_the_stub(check, folder):
    def load_session(path):
        raise NotImplementedError
    with pytest.raises(NotImplementedError):
        check(load_session, folder)


AT_FORK = "os.register_at_fork(after_in_child=self.file.close)"
REMOVED = {  # name: (the check that has to see it, what else it takes, {the protection: instead})
    "writing in real time": (check_written_in_real_time, (), {
        "append_jsonl(self.path, each)":
        "__import__('atexit').register(append_jsonl, self.path, each)"}),
    "the lock": (check_second_process_is_refused, (), {
        "if not any(take_lock(self.file) for _ in range(10_000)):": "if False:"}),
    "giving up the lock in a fork": (check_kill_frees_the_lock, (FORKS,), {AT_FORK: "None"}),
    "hiding the lock from tools": (check_kill_frees_the_lock, (RUNS_BASH,), {
        AT_FORK: "os.set_inheritable(self.file.fileno(), True)",
        '"start_new_session": True,': '"start_new_session": True, "close_fds": False,'}),
    "the report of skipped lines": (check_receipt, (), {
        "for number, problem in bad]": "for number, problem in bad[:0]]"}),
    "quitting without a trace": (check_receipt, (), {
        "show_text(write_receipt(session), file=sys.stderr)":
            "show_text(write_receipt(session), file=sys.stderr), settle_calls(session)"}),
    "refusing an ambiguous prefix": (check_bad_target, ("ambiguous prefix",), {
        "if len(found) != 1:": "if not found:"}),
    "the line about a closed file": (check_bad_target, ("unwritable file",), {
        'raise SessionError(f"cannot open {self.path}: {error.strerror}") from error': "raise"}),
    "started before the effect": (check_kill_points, ("after bash",), {
        "session.append(attempt(make_intent, call, tool, *change))": "pass"}),
    "verdicts in the log": (check_kill_points, ("after bash",), {
        "        settle_calls(session)\n        yield": "        yield"}),
    "keeping old bytes": (check_kill_points, ("after bash",), {'"ab+"': '"wb+"'}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_check_sees_that_this_is_removed(name, open_folder):
    check, more, changes = REMOVED[name]
    script = break_script(open_folder / "broken", *changes.items())
    with pytest.raises(AssertionError):
        check(script, open_folder, *more)

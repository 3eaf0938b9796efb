"""Claim: a session has one owner at a time; a dead owner leaves no lock, a tool no process."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
from crash_tools import SCRIPT, Place, fast_folder, load_module, write_copy
from strict_server import StrictServer, judge

DEADLINE = 60  # seconds until a thing that must happen counts as not happening
# Everything slow is over before the barrier, so that all of them try within milliseconds.
RACER = """import argparse, hashlib, json, os, pathlib, runpy, subprocess, sys, threading
sys.argv = sys.argv[1:]
os.read(int(os.environ["BARRIER"]), 1)
runpy.run_path(sys.argv[0], run_name="__main__")"""
# A process that holds a session and forks without exec; the child outlives it.
FORKER = """import importlib.util, multiprocessing, os, sys
spec = importlib.util.spec_from_file_location("harness", sys.argv[1])
harness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(harness)
def outlive():
    os.close(1)
    os.read(0, 1)
with harness.Session(sys.argv[2], sys.argv[3], "rehearsal") as session:
    session.append({"role": "user", "content": "锁 🔒"})
    if sys.argv[4] == "os.fork":
        if os.fork() == 0:
            outlive()
            os._exit(0)
    else:
        multiprocessing.get_context("fork").Process(target=outlive).start()
    print("forked", flush=True)
    os.read(0, 1)
    session.append({"role": "user", "content": "still mine"})"""


@pytest.fixture
def folder():
    """A folder in memory, as nothing here is about the disk."""
    with fast_folder() as path:
        yield path


class RacePlace(Place):
    """A place with one session in it."""

    def __init__(self, folder, script=SCRIPT):
        super().__init__(folder, load_module(script))
        self.path = self.sessions / "争 🏁.jsonl"
        self.module.append_jsonl(self.path, {
            "event": "session", "format": 1, "cwd": str(self.workspace), "model": "rehearsal",
            "ts": 1.5})

    def start(self, *command, **more):
        """Start a process here, its pipes open; the caller ends it."""
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        return subprocess.Popen(command, cwd=self.folder, **{**pipes, **more})

    def resume(self, *prompt):
        """Resume the session, to the end."""
        command = [sys.executable, *self.arguments("--resume", str(self.path), *prompt)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              cwd=self.folder, env=self.environment(), timeout=DEADLINE)


def wait_for(condition, what):
    """Wait until something is true, at most until the deadline; return it."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {DEADLINE} seconds"
        threading.Event().wait(0.01)
    return found


@contextlib.contextmanager
def ending(processes):
    """End what a test has started, however it ends."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


# ─── twenty at once ──────────────────────────────────────────────────────────────────────────────

def check_race(folder, number, script=SCRIPT):
    """So many processes resume one session: one is in a turn, the others are told in one line."""
    place, asked, answer = RacePlace(folder, script), [], threading.Event()

    def reply(messages, tools):
        asked.append(messages[-1]["content"])
        answer.wait(DEADLINE)
        return {"role": "assistant", "content": "你赢了 🏆"}

    start, before = os.pipe(), place.path.read_bytes()
    with StrictServer(reply) as server, ending([]) as racers:
        environment = place.environment(OPENAI_API_KEY="none", OPENAI_BASE_URL=server.url,
                                        BARRIER=str(start[0]))
        for racer in range(number):
            arguments = place.arguments("--resume", str(place.path), f"我是 {racer}.", "--model", "m")
            racers.append(place.start(sys.executable, "-c", RACER, *arguments, env=environment,
                                      pass_fds=[start[0]], stdin=subprocess.DEVNULL))
        os.write(start[1], b"x" * number)
        wait_for(lambda: len(asked) > 1 or count_ended(racers) >= number - bool(asked),
                 "a decision of the race")
        answer.set()
        assert len(asked) == 1, f"{len(asked)} processes are in a turn of one session at once"
        winners = [racer for racer in racers if racer.poll() is None]
        assert len(winners) == 1, "the owner itself was refused"
        losers = [racer for racer in racers if racer is not winners[0]]
        for loser in losers:
            check_refused(place, loser)
        out, err = winners[0].communicate(timeout=DEADLINE)
        assert winners[0].returncode == 0 and "你赢了".encode() in out, err.decode()
        check_log(place, before, winners[0].pid, asked[0])
    for end in start:
        os.close(end)


def count_ended(processes):
    """How many of the processes have ended."""
    return sum(process.poll() is not None for process in processes)


def check_refused(place, process):
    """Exit code 2, and the one line: which session, and that another process has it."""
    lines = process.communicate()[1].decode().splitlines()
    assert process.returncode == 2 and len(lines) == 1, lines
    assert str(place.path) in lines[0] and "held by another process" in lines[0], lines


def check_log(place, before, owner, prompt):
    """Nothing in the file is of anybody but the owner."""
    assert place.path.read_bytes().startswith(before)
    records, skipped = [], []
    records = place.module.read_jsonl(place.path, skipped)
    assert skipped == [] and judge(place.module.load_session(place.path)) == []
    assert [record["pid"] for record in records if "pid" in record] == [owner]
    said = [record["content"] for record in records if record.get("role") == "user"]
    assert said == [prompt], "a prompt of a process that was refused is in the file"


def test_of_20_processes_one_owns_the_session(folder, survived):
    check_race(folder, 20)
    survived(20)


def test_without_the_lock_the_race_is_red(folder):
    script = write_copy(folder, ("if not any(take_lock(self.file) for _ in range(10_000)):", "if False:"))
    with pytest.raises(AssertionError, match="processes are in a turn of one session at once"):
        check_race(folder / "place", 3, script)


def test_the_line_says_who_holds_the_session(folder):
    place = RacePlace(folder)
    with place.module.Session(place.path) as session:
        session.append({"role": "user", "content": "我的 🔒"})
        line = place.resume("你好").stderr
        assert len(line.splitlines()) == 1 and f"pid {os.getpid()}," in line, line
    assert place.resume("").returncode == 0


def test_the_line_is_plain_when_the_owner_has_written_nothing(folder):
    place = RacePlace(folder)
    place.path.write_bytes(b"")
    with place.module.Session(place.path):
        run = place.resume("你好")
        assert run.returncode == 2 and len(run.stderr.splitlines()) == 1
        assert "None" not in run.stderr, f"the line names a process None: {run.stderr}"


# ─── a dead owner ────────────────────────────────────────────────────────────────────────────────

def check_killed_owner(folder, script=SCRIPT):
    """SIGKILL hits the owner while its bash runs on: the next resume has the lock at once."""
    place = RacePlace(folder, script)
    (place.workspace / "test_parse_date.py").write_text(
        "import os\nprint(os.getpid(), file=open('pid', 'w'), flush=True)\nopen('pipe').read()\n")
    os.mkfifo(place.workspace / "pipe")
    command = place.arguments("--resume", str(place.path), place.module.TASK)
    with ending([place.start(sys.executable, *command, env=place.environment())]) as owners:
        pid_file = place.workspace / "pid"
        begun = lambda: pid_file.exists() and pid_file.read_text().endswith("\n")  # noqa: E731
        wait_for(lambda: begun() or owners[0].poll() is not None, "the tool")
        assert begun(), owners[0].communicate()[1].decode()
        child = int(pid_file.read_text())
        try:
            owners[0].kill()
            owners[0].wait()
            run = place.resume("")
            os.kill(child, 0)  # it runs on, or this raises
        finally:
            os.kill(child, signal.SIGKILL)
    assert run.returncode == 0, f"the tool of a dead owner keeps the lock: {run.stderr}"
    assert "outcome unknown" in run.stderr, run.stderr


def test_a_tool_that_outlives_its_owner_does_not_keep_the_lock(folder):
    check_killed_owner(folder)


def test_a_lock_that_tools_inherit_is_red(folder):
    script = write_copy(
        folder, ("**how)", "**how, close_fds=False)"),
        ("        fcntl and os.register_at_fork",
         "        os.set_inheritable(self.file.fileno(), True)\n"
         "        fcntl and os.register_at_fork"))
    with pytest.raises(AssertionError, match="the tool of a dead owner keeps the lock"):
        check_killed_owner(folder / "place", script)


def start_forker(place, script, kind):
    """Start a process that holds the session and has forked; return it."""
    forker = place.start(sys.executable, "-c", FORKER, str(script), str(place.path),
                         str(place.workspace), kind, env=place.environment())
    assert forker.stdout.readline() == b"forked\n", forker.communicate()[1].decode()
    return forker


def check_forked_owner(folder, kind, script=SCRIPT):
    """The lock is the owner's alone: a forked child neither keeps it nor gives it away."""
    place = RacePlace(folder, script)
    with ending([start_forker(place, script, kind)]) as forkers:
        held = place.resume("你好")
        assert held.returncode == 2, "a forked child has given the lock of its parent away"
        forkers[0].kill()
        forkers[0].wait()
        # The child has the other end of this pipe, and lives until it is closed.
        assert select.select([], [forkers[0].stdin], [], 0)[1] and not is_broken(forkers[0].stdin)
        run = place.resume("")
    assert run.returncode == 0, f"a forked child keeps the lock of its dead parent: {run.stderr}"


def is_broken(pipe):
    """Whether nobody holds the reading end of a pipe any more."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return bool(poll.poll(0)[0][1] & select.POLLERR)


@pytest.mark.parametrize("kind", ("os.fork", "multiprocessing"))
def test_a_fork_without_exec_does_not_keep_the_lock(folder, kind):
    check_forked_owner(folder, kind)


@pytest.mark.parametrize("new, words", (
    ("None", "keeps the lock of its dead parent"),
    ("os.register_at_fork(after_in_child=lambda: fcntl.flock(self.file, fcntl.LOCK_UN))",
     "has given the lock of its parent away")))
def test_a_lock_that_forks_share_is_red(folder, new, words):
    script = write_copy(folder, ("os.register_at_fork(after_in_child=self.file.close)", new))
    with pytest.raises(AssertionError, match=words):
        check_forked_owner(folder / "place", "os.fork", script)


# ─── what a tool leaves running ──────────────────────────────────────────────────────────────────

def check_group(folder, script=SCRIPT):
    """What a command leaves in the background ends with the command."""
    place = RacePlace(folder, script)
    os.mkfifo(place.folder / "alive")
    reader = os.open(place.folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    left = "exec 9> ../alive; sh -c 'echo $$ > pid; exec sleep 600' > /dev/null & "
    with place.module.Session(place.path, place.workspace) as session:
        text = place.module.bash(session, left + "until [ -s pid ]; do :; done; echo 完成")
    assert text == "完成\n[exit code 0]"
    try:
        # The end of file: the last process that had the pipe open for writing is gone.
        ready = select.select([reader], [], [], 1)[0]
        assert ready and os.read(reader, 1) == b"", "what the command left behind runs on"
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((place.workspace / "pid").read_text()), signal.SIGKILL)


def test_what_a_command_leaves_running_is_ended(folder):
    check_group(folder)


def test_without_the_group_kill_the_check_is_red(folder):
    script = write_copy(folder, ("os.killpg(process.pid, signal.SIGKILL)", "process.kill()"))
    with pytest.raises(AssertionError, match="runs on"):
        check_group(folder / "place", script)

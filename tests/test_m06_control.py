"""Claim: a turn can be stopped or steered at any moment; its tools end, its log stays valid."""

import codecs
import concurrent.futures
import contextlib
import json
import os
import pathlib
import pty
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from pathlib import Path

import pytest
import tinyharness as reference
from strict_server import StrictHandler, StrictServer, judge
from test_models import list_stages

SCRIPT = Path(__file__).resolve().parent.parent / "tinyharness.py"
PROMPT, UNKNOWN = "修复 parse_date 🐞", "outcome unknown"
WHILE_IT_RAN = f"interrupted by the user while it ran; {UNKNOWN}"
DONE = "The test passes."
DEADLINE = 30  # seconds: for a machine with much else to do


@pytest.fixture(autouse=True)
def listening(monkeypatch):
    """Children hear SIGINT, even if this process was started by a shell that ignores it."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
    yield
    signal.signal(signal.SIGINT, old)


def wait_until(condition, what):
    """Ask again and again, until it is so; fail at the deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        select.select([], [], [], 0.005)


def read_some(descriptor, seconds) -> bytes:
    """The next bytes of a pipe or terminal; b"" at its end; TimeoutError if there are none."""
    if not select.select([descriptor], [], [], seconds)[0]:
        raise TimeoutError
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # a terminal that the other side has closed
        return b""


class Lifeline:
    """A FIFO that all processes of a tool hold open: it tells when they run and when they died."""

    # More output than a pipe holds: when it is through, the harness reads, and no longer starts us.
    COMMAND = ("exec 3> line; sleep 60 & head -c 300000 /dev/zero; echo $$ >&3; sleep 60;"
               " echo 活着 > alive.txt")
    # The same for the test that the rehearsal model runs, but only the first time.
    PYTHON = """import os, signal
if not os.path.exists("again"):
    open("again", "w").close()
    print("修" * 100_000, flush=True)
    os.write(os.open("line", os.O_WRONLY), b"%d" % os.getpgrp())
    signal.pause()
"""

    def __init__(self, folder):
        os.mkfifo(folder / "line")
        self.reader, self.group = os.open(folder / "line", os.O_RDONLY | os.O_NONBLOCK), 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.group and not self.all_dead(0):  # a broken copy leaves them behind
            os.killpg(self.group, signal.SIGKILL)
        os.close(self.reader)

    def wait_until_it_runs(self):
        while not self.group:
            self.group = int(read_some(self.reader, DEADLINE) or 0)

    def all_dead(self, patience=DEADLINE) -> bool:
        try:
            return read_some(self.reader, patience) == b""
        except TimeoutError:
            return False


def ask(call_id, name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


SLEEP = ask("睡", "bash", command=Lifeline.COMMAND)
BATCH = [ask("先", "bash", command="echo 好 ✅"), SLEEP,
         ask("后", "write_file", path="late.txt", content="晚")]


def script_of(calls):
    """A model function: the calls first, then words."""
    def model(messages, tools):
        asked = [message for message in messages if "tool_calls" in message]
        return {"content": "完成 ✅"} if asked else {"content": None, "tool_calls": calls}
    return model


def judged(model):
    """The model behind a strict judge."""
    def ask_model(messages, tools):
        assert judge(messages) == []
        return model(messages, tools)
    return ask_model


def start_script(folder, server, *arguments, script=SCRIPT):
    """The real program in a process of its own, with the real openai package against the server."""
    environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "x"}
    command = [sys.executable, str(script), "--yes", "--sessions", str(folder / "log"), *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read_log(folder):
    [path] = (folder / "log").glob("*.jsonl")
    return reference.read_jsonl(path)


def results_of(records):
    return {each["tool_call_id"]: each["content"] for each in records if each.get("role") == "tool"}


def check_aborted(records):
    """The last record says that the turn was aborted, and the history is valid."""
    assert (records[-1].get("event"), records[-1].get("state")) == ("turn", "aborted"), (
        f"no turn event that says aborted, but {records[-1]}")
    assert judge([*reference.repair(records), {"role": "user", "content": "continue"}]) == []


# ── Ctrl-C and its relatives, for a whole process that takes one turn ─────────────────────────────

@pytest.mark.parametrize("calls, name", [
    ([SLEEP], "SIGINT"), (BATCH, "SIGINT"), (BATCH, "SIGTERM"), (BATCH, "SIGHUP")])
def test_signal_ends_tool_turn_and_program(calls, name, tmp_path):
    with StrictServer(script_of(calls)) as server, Lifeline(tmp_path) as line:
        process = start_script(tmp_path, server, PROMPT)
        line.wait_until_it_runs()
        process.send_signal(signal.Signals[name])
        _, errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == 130 and b"--resume" in errors
        assert line.all_dead(), "a process of the tool has outlived the turn"
        records = read_log(tmp_path)
        check_aborted(records)
        results = results_of(records)
        assert results["睡"].startswith(WHILE_IT_RAN)
        if calls is BATCH:
            assert "好 ✅" in results["先"] and "not started" in results["后"]
        if name == "SIGINT":
            check_resume_is_accepted(tmp_path, server)
        assert not {"alive.txt", "late.txt"} & {path.name for path in tmp_path.iterdir()}


def check_resume_is_accepted(folder, server):
    """The next prompt goes through the strict server, and brings the verdicts along."""
    process = start_script(folder, server, "--resume", "last", "continue")
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 0 and server.refusals == []
    told = [message["content"] or "" for message in server.requests[-1]["messages"]]
    assert told[-1] == "continue" and [text for text in told[:-1] if text.startswith(WHILE_IT_RAN)]


class StallingHandler(StrictHandler):
    """Stop in the middle of a stream, until the test is over."""

    def send_parts(self, status, headers, parts):
        def halfway():
            for number, part in enumerate(parts):
                if number == 4:
                    self.server.over.wait(DEADLINE)
                yield part
        super().send_parts(status, headers, halfway())


@pytest.mark.parametrize("streaming", [False, True])
def test_ctrl_c_while_the_model_answers_stores_nothing_of_the_reply(streaming, tmp_path):
    server = StrictServer([{"content": "一二三四五六七八九十" * 9, "wait": 0 if streaming else 20}])
    server.RequestHandlerClass, server.over = StallingHandler, threading.Event()
    with server:
        process = start_script(tmp_path, server, PROMPT)
        wait_until(lambda: server.requests, "the request")
        if streaming:
            assert "一".encode() in read_some(process.stdout.fileno(), DEADLINE)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE)
        server.over.set()
    records = read_log(tmp_path)
    assert process.returncode == 130
    check_aborted(records)
    assert [each["role"] for each in records if "role" in each] == ["user"]


def test_second_ctrl_c_while_the_first_is_being_dealt_with(tmp_path):
    with StrictServer(script_of(BATCH)) as server, Lifeline(tmp_path) as line:
        process = start_script(tmp_path, server, PROMPT)
        line.wait_until_it_runs()
        process.send_signal(signal.SIGINT)
        # All dead: the first one has arrived, and the verdicts are being written.
        assert line.all_dead()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE)
        assert process.returncode in (130, -signal.SIGINT)
        check_resume_is_possible(reference, next((tmp_path / "log").glob("*.jsonl")))


def check_resume_is_possible(module, path):
    """Whatever stopped it, the next turn is accepted and ends."""
    old = path.read_bytes()
    with module.Session(path) as session:
        module.run_turn(session, "continue", judged(lambda *_: {"content": "好"}), show=list)
    assert path.read_bytes().startswith(old)
    assert not module.open_calls(module.read_jsonl(path))


# ── Ctrl-C at any moment of the rehearsal ─────────────────────────────────────────────────────────

def fork_turn(module, path, workspace, prompt, model):
    """A turn in a child that hears SIGINT; return its pid and a pipe that ends with it."""
    reader, writer = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    if child == 0:
        try:
            with module.Session(path, workspace) as session:
                # Not earlier: outside of this block the interrupt would meet the test's own code.
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
                module.run_turn(session, prompt, model, show=list)
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.close(writer)
    return child, reader


def wait_for_child(child, end):
    """Wait until a child of fork_turn is dead, and end it if it hangs."""
    ended = select.select([end], [], [], DEADLINE)[0]
    if not ended:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(end)
    assert ended, "the interrupted turn hangs"


def interrupt_rehearsal(folder, delays):
    """Play the rehearsal, send SIGINT after each delay; then resume it until it is done."""
    path, workspace = folder / "s.jsonl", folder / "工作"
    reference.make_demo(workspace)
    began = time.monotonic()
    model = judged(reference.rehearsal_model)
    child, end = fork_turn(reference, path, workspace, reference.TASK, model)
    for delay in delays:
        select.select([end], [], [], max(0, began + delay - time.monotonic()))
        os.kill(child, signal.SIGINT)
    wait_for_child(child, end)
    seconds, old = time.monotonic() - began, path.read_bytes() if path.exists() else b""
    said = reference.TASK in [record.get("content") for record in reference.read_jsonl(path)]
    with reference.Session(path, workspace) as session:
        reference.run_turn(session, "continue" if said else reference.TASK, model, show=list)
        assert DONE in session.messages()[-1]["content"]
    assert path.read_bytes().startswith(old)
    text = (workspace / "parse_date.py").read_text()
    assert text == list_stages(reference)[-1], "an edit is not there exactly once"
    return seconds


def interrupt_often(folder, runs):
    print("seed", seed := random.randrange(10**9))
    dice, total = random.Random(seed), interrupt_rehearsal(folder / "whole", [])
    for number in range(runs):
        first = dice.uniform(0, total)
        delays = [first, first + dice.uniform(0, 0.01)][: 1 + number % 2]  # every other one twice
        print(number, delays)
        interrupt_rehearsal(folder / str(number), delays)


def test_interrupt_at_30_random_moments(tmp_path):
    interrupt_often(tmp_path, 30)


@pytest.mark.long
def test_interrupt_at_300_random_moments(tmp_path, survived):
    interrupt_often(tmp_path, 300)
    survived(300)


# Python hears a signal when a function begins and when a built-in one returns: at each such place.

SHORT = [ask("短", "bash", command="true"), ask("写", "write_file", path="文.txt", content="新")]
WHERE_PROCESSES_BEGIN = {"bash", "start"}


def visit_places(module, folder, wanted=None):
    """Take a turn, with SIGINT at the place number `wanted`; return the places, and if it came."""
    places, came, lost, before = [], False, [], list_children()

    def watch(frame, event, argument):
        files = [each.f_code.co_filename for each in (frame, frame.f_back) if each]
        ours = module.run_turn.__code__.co_filename in files[: 2 if event == "call" else 1]
        if ours and event in ("call", "c_return"):
            places.append(frame.f_code.co_name)
            if len(places) - 1 == wanted:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)
    with module.Session(folder / "s.jsonl", folder) as session:
        # What Python calls when an object dies cannot raise: it reports the error and goes on.
        report, sys.unraisablehook = sys.unraisablehook, lost.append
        try:
            sys.setprofile(watch)
            module.run_turn(session, PROMPT, script_of(SHORT), show=list)
        except KeyboardInterrupt:
            came = True
        finally:
            sys.setprofile(None)
            sys.unraisablehook = report
        check_nothing_is_left(module, session, before)
    return places, came or bool(lost)


def list_children():
    """The processes that this one has begun and not buried."""
    found = set()
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            name, parent = status.parent.name, status.read_text().rpartition(")")[2].split()[1]
            found |= {name} if int(parent) == os.getpid() else set()
    return found


def check_nothing_is_left(module, session, before):
    """No process, no verdict on a call that has its result, and the session takes another turn."""
    left = list_children() - before
    assert not left, "the interrupt came while a process began, and nobody ended that process"
    records = module.read_jsonl(session.path)
    answered = [each["tool_call_id"] for each in records if each.get("role") == "tool"]
    assert len(answered) == len(set(answered)), "a verdict on a call that has its result"
    module.run_turn(session, "继续", judged(lambda *_: {"content": "好"}), show=list)


def check_places(module, folder, choose):
    places, _ = visit_places(module, folder / "whole")
    for number in choose(places):
        seen, came = visit_places(module, folder / str(number), number)
        # The first turn of all visits a few places more: what is never reached proves nothing.
        assert came or len(seen) <= number, (
            f"the interrupt in {places[number]} was swallowed, and the turn went on")


def test_interrupt_where_a_process_begins(tmp_path):
    check_places(reference, tmp_path, lambda places: [
        number for number, name in enumerate(places) if name in WHERE_PROCESSES_BEGIN])


def test_interrupt_at_40_random_places(tmp_path):
    print("seed", seed := random.randrange(10**9))
    check_places(reference, tmp_path, lambda places: sorted(
        random.Random(seed).sample(range(len(places)), 40)))


@pytest.mark.long
def test_interrupt_at_every_place(tmp_path):
    check_places(reference, tmp_path, lambda places: range(len(places)))


# ── steer, abort, and a second turn ───────────────────────────────────────────────────────────────

def take_turn(module, folder, tools, calls, **more):
    """One turn with these calls; return the records on disk."""
    with module.Session(folder / "s.jsonl", folder) as session:
        module.run_turn(session, PROMPT, judged(script_of(calls)), tools, show=list, **more)
    return module.read_jsonl(folder / "s.jsonl")


def check_steering(module, folder):
    """What is steered and typed comes in its order, behind all results of the batch."""
    tools, typed = dict(module.TOOLS), []

    @module.tool(tools)
    def steer_me(session):
        """Let the user say something."""
        session.steer("第一 first")
        typed.append("第二 second")

    def listen():
        return [typed.pop() for _ in typed[:]]
    calls = [ask("a", "steer_me"), ask("b", "bash", command="true")]
    records = take_turn(module, folder, tools, calls, listen=listen)
    said = [(each["role"], each["content"]) for each in records if "role" in each]
    roles = [role for role, _ in said]
    assert roles == ["user", "assistant", "tool", "tool", "user", "user", "assistant"], (
        f"a steered message stands between a call and its result, or is lost: {roles}")
    assert [content for _, content in said[4:6]] == ["第一 first", "第二 second"], "overtaken"


def check_second_turn(module, folder):
    """A second turn on a session that is in one is an error that names the ways out."""
    tools, seen = dict(module.TOOLS), []

    @module.tool(tools)
    def begin_again(session):
        """Take a turn inside a turn."""
        try:
            module.run_turn(session, "再来", lambda *_: {"content": "no"}, show=list)
        except RuntimeError as error:
            seen.append(str(error))
    records = take_turn(module, folder, tools, [ask("a", "begin_again")])
    assert seen and "steer" in seen[0] and "abort" in seen[0], "no error that names both ways out"
    assert [record["state"] for record in records if record.get("event") == "turn"] == ["done"]


def check_abort(module, folder):
    """abort() of another thread ends the turn; without a turn it does nothing."""
    tools, begun = dict(module.TOOLS), threading.Event()

    @module.tool(tools)
    def wait_long(session):
        """Wait for something that does not come."""
        begun.set()
        # In slices: a signal just before a long wait is only heard at its end.
        for _ in range(DEADLINE * 20):
            threading.Event().wait(0.05)
    with module.Session(folder / "s.jsonl", folder) as session:
        session.abort()
        thread = threading.Thread(target=lambda: begun.wait(DEADLINE) and session.abort())
        thread.start()
        calls = [ask("等", "wait_long"), ask("后", "bash", command="true")]
        try:
            module.run_turn(session, PROMPT, script_of(calls), tools, show=list)
        except KeyboardInterrupt:
            pass
        thread.join()
    records = module.read_jsonl(folder / "s.jsonl")
    check_aborted(records)
    assert results_of(records)["等"].startswith(WHILE_IT_RAN)
    assert "not started" in results_of(records)["后"]
    check_resume_is_possible(module, folder / "s.jsonl")


def check_interrupt(module, folder, patience=1):
    """SIGINT in a child that runs a tool: the group is dead, each call has its verdict."""
    with Lifeline(folder) as line:
        child, end = fork_turn(module, folder / "s.jsonl", folder, PROMPT, script_of(BATCH))
        line.wait_until_it_runs()
        os.kill(child, signal.SIGINT)
        wait_for_child(child, end)
        assert line.all_dead(patience), "a process of the tool has outlived the turn"
    records = module.read_jsonl(folder / "s.jsonl")
    check_aborted(records)
    assert results_of(records).get("睡", "").startswith(WHILE_IT_RAN), "no verdict on disk"
    assert "not started" in results_of(records)["后"]


def import_script(path):
    """A script as a module of its own, which a check may change."""
    module = types.ModuleType("script")
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def check_interrupt_at_birth(module, folder):
    """Ctrl-C lands when the command is on its way, before anybody knows its process."""
    class InterruptedPool(concurrent.futures.ThreadPoolExecutor):
        def submit(self, function, *arguments, **named):
            future = super().submit(function, *arguments, **named)
            future.result()
            if function is not int:
                raise KeyboardInterrupt
            return future

    before = list_children()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(concurrent.futures, "ThreadPoolExecutor", InterruptedPool)
        module.bash(types.SimpleNamespace(workspace=str(folder)), "sleep 3")
    assert list_children() == before, "the command outlived the interrupt that came at its birth"


def test_interrupt_at_the_birth_of_a_process(tmp_path):
    check_interrupt_at_birth(import_script(SCRIPT), tmp_path)


@pytest.mark.parametrize("check", [check_steering, check_second_turn, check_abort, check_interrupt])
def test_control(check, impl, tmp_path):
    check(impl, tmp_path)


# ── at a real terminal ────────────────────────────────────────────────────────────────────────────

class Terminal:
    """The program on a pseudo-terminal of its own; Ctrl-C there is the terminal's signal."""

    def __init__(self, folder, *arguments, script=SCRIPT, **environment):
        self.master, slave = pty.openpty()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Who opens a terminal as the first of a session controls it, and gets its signals.
        command = ["sh", "-c", 'exec "$@" <> "$0" >&0 2>&0', os.ttyname(slave), sys.executable]
        command += [str(script), "--sessions", str(folder / "log"), *arguments]
        environment = {**os.environ, "TERM": "dumb", **environment}
        place = {"cwd": folder, "env": environment, "start_new_session": True}
        self.process = subprocess.Popen(command, **place)
        self.slave, self.unread = slave, ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in filter(None, (self.master, self.slave)):
            os.close(descriptor)

    def press_ctrl_c(self, text):
        """Again, if it came just before the program went to wait: Python hears that too late."""
        for patience in (2, 2, DEADLINE):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                return self.expect(text, patience)
        raise AssertionError(f"no {text!r} after Ctrl-C")

    def expect(self, text, patience=DEADLINE):
        """Read on until this text is there; return what came before it."""
        while text not in self.unread:
            try:
                self.unread += self.decoder.decode(read_some(self.master, patience))
            except TimeoutError:
                raise AssertionError(f"no {text!r} after {self.unread[-500:]!r}") from None
        before, _, self.unread = self.unread.partition(text)
        return before

    def type(self, text):
        os.write(self.master, text.encode())

    def hang_up(self):
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = None


def make_rehearsal(folder, first=Lifeline.PYTHON):
    """A session with the rehearsal's task, whose test begins with something of ours."""
    (folder / "parse_date.py").write_text(reference.BROKEN)
    (folder / "test_parse_date.py").write_text(first + reference.TEST)
    path = folder / "log" / "s.jsonl"
    with reference.Session(path, folder, "rehearsal") as session:
        session.append({"event": "turn", "state": "done"})
    return "--rehearse", "--resume", str(path)


def test_ctrl_c_at_the_prompt_loop_ends_the_turn_and_ctrl_d_the_program(tmp_path):
    arguments = ("--yes", *make_rehearsal(tmp_path))
    with Lifeline(tmp_path) as line, Terminal(tmp_path, *arguments) as screen:
        screen.expect("> ")
        screen.press_ctrl_c("Ctrl-D")
        screen.expect("> ")
        screen.type(f"{reference.TASK}\r")
        line.wait_until_it_runs()
        screen.press_ctrl_c("interrupted")
        screen.expect("> ")
        assert line.all_dead()
        check_aborted(read_log(tmp_path))
        screen.type("continue\r")
        screen.expect(DONE)
        screen.expect("> ")
        screen.type("\x04")
        assert screen.process.wait(DEADLINE) == 0
    states = [record["state"] for record in read_log(tmp_path) if record.get("event") == "turn"]
    assert states == ["done", "aborted", "done"]


def check_sigterm_at_the_idle_prompt(script, folder, patience=(1, 1)):
    with Terminal(folder, *make_rehearsal(folder), script=script) as screen:
        screen.expect("> ")
        for seconds in patience:  # more than once for the same reason as Ctrl-C
            screen.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                screen.process.wait(seconds)
        assert screen.process.returncode == 130, "SIGTERM at the prompt did not end the program"


def check_sigterm_in_a_turn(script, folder):
    arguments = ("--yes", *make_rehearsal(folder))
    with Lifeline(folder) as line, Terminal(folder, *arguments, script=script) as screen:
        screen.expect("> ")
        screen.type(f"{reference.TASK}\r")
        line.wait_until_it_runs()
        screen.process.terminate()
        screen.process.wait(DEADLINE)
        check_aborted(read_log(folder))
        assert line.all_dead() and screen.process.returncode == 130


def test_sigterm_at_the_idle_prompt_ends_the_program(tmp_path):
    check_sigterm_at_the_idle_prompt(SCRIPT, tmp_path, (2, 2, DEADLINE))


def test_sigterm_in_a_turn_at_the_prompt_loop_ends_both(tmp_path):
    check_sigterm_in_a_turn(SCRIPT, tmp_path)


def test_a_terminal_that_is_closed_ends_the_turn(tmp_path):
    arguments = ("--yes", *make_rehearsal(tmp_path))
    with Lifeline(tmp_path) as line, Terminal(tmp_path, *arguments) as screen:
        screen.expect("> ")
        screen.type(f"{reference.TASK}\r")
        line.wait_until_it_runs()
        screen.hang_up()
        screen.process.wait(DEADLINE)
        assert line.all_dead()
    check_aborted(read_log(tmp_path))


def test_approval_y_n_and_a(tmp_path):
    with Terminal(tmp_path, *make_rehearsal(tmp_path, "")) as screen:
        screen.expect("> ")
        screen.type(f"{reference.TASK}\r")
        for answer in ("y", "", "a"):  # bash; edit_file; and after "continue" bash again
            screen.expect("[y/N/a] ")
            screen.type(f"{answer}\r")
            if answer == "":
                screen.expect("refused")
                screen.expect("> ")
                screen.type("continue\r")
        rest = screen.expect(DONE)
    assert "[y/N/a]" not in rest and rest.count("edit_file") == 2, rest
    results = [each["content"] for each in read_log(tmp_path) if each.get("role") == "tool"]
    assert [text.startswith("refused:") for text in results].index(True) == 2
    assert sum(text.startswith("wrote") for text in results) == 2


def test_ctrl_c_at_the_question_means_not_started(tmp_path):
    with Terminal(tmp_path, *make_rehearsal(tmp_path, "")) as screen:
        screen.expect("> ")
        screen.type(f"{reference.TASK}\r")
        screen.expect("[y/N/a] ")
        screen.press_ctrl_c("interrupted")
        screen.expect("> ")
        check_aborted(read_log(tmp_path))
    assert "not started" in list(results_of(read_log(tmp_path)).values())[-1]


def check_typed_lines(script, folder):
    """Lines typed while a tool runs answer no later question; they come behind the results."""
    os.mkfifo(folder / "go")
    calls = [ask("等", "bash", command="cat go"), ask("后", "bash", command="touch 后.txt")]
    with StrictServer(script_of(calls)) as server:
        environment = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "x"}
        with Terminal(folder, PROMPT, script=script, **environment) as screen:
            screen.expect("[y/N/a] ")
            screen.type("y\r")
            with open(folder / "go", "w") as go:  # opens when the tool runs
                screen.expect("\r\n")
                for line in ("y", "", "先看测试 🐞"):
                    screen.type(f"{line}\r")
                    screen.expect(f"{line}\r\n")  # the echo: it is in the terminal's queue now
                go.write("走")
            screen.expect("[y/N/a] ")
            screen.type("n\r")
            assert screen.process.wait(DEADLINE) == 0
        assert server.refusals == []
        messages = [(each["role"], (each["content"] or "").strip())
                    for each in server.requests[1]["messages"][1:]]
    assert messages[3][1].startswith("refused:"), "a line typed before the question was its answer"
    assert [role for role, _ in messages] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert [text for _, text in messages[-2:]] == ["y", "先看测试 🐞"]


def test_lines_typed_during_a_turn_steer_it_and_answer_no_question(tmp_path):
    check_typed_lines(SCRIPT, tmp_path)


# ── the protections, one by one, taken out ────────────────────────────────────────────────────────

def check_interrupt_in_a_write(module, folder):
    check_places(module, folder, lambda places: [
        number for number, name in enumerate(places) if name == "write_all"])


REMOVALS = {  # protection: (its text in the script, what stands there instead, check, its words)
    "the whole group dies": ("os.killpg(process.pid, signal.SIGKILL)", "process.kill()",
                             check_interrupt, "outlived the turn"),
    "verdicts at once": ('settle_calls(session, "interrupted', 'str("interrupted',
                         check_interrupt, "no verdict on disk"),
    "aborted on disk": ("        session.append(ending)\n", "", check_abort, "says aborted"),
    "one turn at a time": ("    if session.in_turn:\n", "    if False:\n", check_second_turn,
                           "no error that names"),
    "steering at a safe place": ('show(f"  {call.name}',
                                 'session.add_prompts([]); show(f"  {call.name}',
                                 check_steering, "between a call and its result"),
    "the file is right": ("session.records = read_jsonl(session.path) or session.records", "pass",
                          check_interrupt_in_a_write, "has its result"),
    "born into a list": ("for process in born:", "for process in ():",
                         check_interrupt_at_birth, "outlived the interrupt"),
    "typed ahead": ("session.inbox += typed_lines()", "pass",
                    check_typed_lines, "was its answer"),
    "SIGTERM is heard": ("signal.signal(number, end_by_signal)", "pass",
                         check_sigterm_in_a_turn, "says aborted"),
    "SIGTERM ends the loop": ("typed and not str(interrupt)", "typed",
                              check_sigterm_at_the_idle_prompt, "did not end the program"),
}


@pytest.mark.long
@pytest.mark.parametrize("protection", REMOVALS)
def test_check_sees_that_a_protection_is_gone(protection, tmp_path):
    old, new, check, words = REMOVALS[protection]
    source = SCRIPT.read_text(encoding="utf-8")
    assert source.count(old) == 1, f"the script holds {old!r} {source.count(old)} times, not once"
    broken = tmp_path / "broken.py"
    broken.write_text(source.replace(old, new), encoding="utf-8")
    if check.__code__.co_varnames[0] == "module":
        broken = import_script(broken)
    with pytest.raises(AssertionError, match=words):
        check(broken, tmp_path)

"""Claim: what a provider streams is shown, kept and sent on unharmed; its failures cost nothing."""

import copy
import functools
import itertools
import json
import os
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from strict_server import StrictServer, judge_body

import tinyharness

SCRIPT = Path(tinyharness.__file__)
FOLDER = "工作 区 🐞"  # each test works in a folder whose name needs quotes and UTF-8
KEY = "sk-not-for-anyone"
TEXT = "修复完成 ✅ 👩‍🚀 done,\n再见"


# ─── the real command line, for test_main and test_m07_resume too ────────────────────────────────

def break_script(folder, *replacements, script=SCRIPT) -> Path:
    """A copy of the script without a protection; it is an error if that is not there any more."""
    source = script.read_text(encoding="utf-8")
    for old, new in replacements:
        if source.count(old) != 1:
            pytest.fail(f"{source.count(old)} times in the script, not once: {old!r}")
        source = source.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / "tinyharness.py").write_text(source, encoding="utf-8")
    return folder / "tinyharness.py"


def make_env(folder, server=None, **more) -> dict:
    """The environment of a fresh machine, with a key and an address where there is a server."""
    places = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    model = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY} if server else {}
    return {"PATH": os.pathsep.join(places), "HOME": str(folder), "TERM": "dumb", **model, **more}


def run_script(folder, *arguments, server=None, script=SCRIPT, python=(sys.executable,),
               stdin="", **env):
    """Run the command line to its end: returncode, stdout, stderr."""
    return subprocess.run(
        [*python, script, *arguments], cwd=folder, env=make_env(folder, server, **env), input=stdin,
        capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=60)


FORKS = """
import importlib.util, json, os, sys
import openai
openai.OpenAI(api_key="x").close()
for line in sys.stdin:
    job, child = json.loads(line), os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(os.path.join(job["files"], name), os.O_RDWR), number)
        setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv = [job["script"], *job["arguments"]]
    spec = importlib.util.spec_from_file_location("tinyharness", job["script"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exec(job["hook"], vars(module))
    sys.exit(module.main())
"""


@functools.cache
def start_forks(lane):
    """A process that has imported the openai package, which takes longer than a whole turn."""
    return subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, start_new_session=True)


def run_forked(folder, *arguments, server=None, script=SCRIPT, hook="", stdin="", lane=0,
               **env):
    """Do as run_script does, in a fork of a process that is warm; `hook` runs before main.

    Threads that run at the same time take different lanes."""
    forks, files = start_forks(lane), folder / "files"
    files.mkdir(exist_ok=True)
    for name, text in (("stdin", stdin), ("stdout", ""), ("stderr", "")):
        (files / name).write_text(text, encoding="utf-8")
    job = {"folder": str(folder), "files": str(files), "script": str(script), "hook": hook,
           "arguments": list(map(str, arguments)), "env": make_env(folder, server, **env)}
    print(json.dumps(job), file=forks.stdin, flush=True)
    if not select.select([forks.stdout], [], [], 60)[0]:
        os.killpg(forks.pid, signal.SIGKILL)
        start_forks.cache_clear()
        pytest.fail(f"{arguments} did not end within a minute")
    code = int(forks.stdout.readline())
    return SimpleNamespace(returncode=code, stdout=(files / "stdout").read_text(encoding="utf-8"),
                           stderr=(files / "stderr").read_text(encoding="utf-8"))


def find_log(folder) -> Path:
    """The one session file below a folder."""
    paths = list(Path(folder).rglob("sessions/*.jsonl"))
    assert len(paths) == 1, f"one session file was expected, not {paths}"
    return paths[0]


def read_log(folder) -> list:
    """The records of the one session below a folder."""
    return [json.loads(line) for line in find_log(folder).read_bytes().split(b"\n") if line]


def list_stages(module) -> list:
    """The rehearsal's file as it is broken, and behind each of its edits."""
    stages = [module.BROKEN]
    for _, tool, step in module.SCRIPT:
        if tool == "edit_file":
            assert stages[-1].count(step["old"]) == 1, "the tool would refuse this edit"
            stages.append(stages[-1].replace(step["old"], step["new"]))
    return stages


def call_tool(name, call_id="c1", **arguments) -> dict:
    """A call as it stands in an assistant message."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def read_results(server) -> dict:
    """Call id -> result, as the last request to a server told the model."""
    assert server.refusals == [], server.refusals
    return {message["tool_call_id"]: message["content"]
            for message in server.requests[-1]["messages"] if message["role"] == "tool"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FOLDER).mkdir()
    return tmp_path / FOLDER


# ─── a provider that is not as strict with itself ────────────────────────────────────────────────

class RawHandler(BaseHTTPRequestHandler):
    """Send the next list of deltas, each one event; the end of the connection ends the reply."""

    def log_message(self, *_):
        """Write no log lines."""

    def do_POST(self):
        """Answer a request with the next deltas."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.refusals += judge_body(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta, reason in next(self.server.script):
            choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
            head = {"id": "raw", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            event = json.dumps({**head, "choices": choices}, ensure_ascii=False)
            self.wfile.write(f"data: {event}\n\n".encode())


class RawServer(ThreadingHTTPServer):
    """A provider on 127.0.0.1 that streams the deltas of a script as they are."""

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), RawHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.script, self.requests, self.refusals = iter(script), [], []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def piece(arguments, name=None, **more):
    """One delta with a piece of a call."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"type": "function", "function": function, **more}]}, None


# ─── what is streamed ────────────────────────────────────────────────────────────────────────────

def check_stream_is_shown_as_it_arrives(script, folder, patience=20):
    seen = threading.Event()

    def talk():
        yield {"role": "assistant", "content": ""}, None
        yield {"content": "第一 🐞"}, None
        # A program that waits for the whole reply never gets the second half.
        if seen.wait(patience):
            yield {"content": ", 第二"}, None
        yield {}, "stop"
    with RawServer([talk()]) as server, subprocess.Popen(
            [sys.executable, script, "--model", "m", "说"], cwd=folder, stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL, env=make_env(folder, server)) as process:
        first = process.stdout.read(len("第一 🐞".encode())).decode()
        seen.set()
        rest = process.stdout.read().decode()
    assert (first, rest.splitlines()[0]) == ("第一 🐞", ", 第二")
    assert "第一 🐞, 第二" in [record.get("content") for record in read_log(folder)]


def test_streamed_text_is_shown_in_order_while_it_arrives(folder):
    check_stream_is_shown_as_it_arrives(SCRIPT, folder)


def check_what_is_kept_and_sent(script, folder):
    calls = [call_tool("bash", "b", command="echo 一; env"),
             call_tool("write_file", "w", path="新.txt", content=TEXT),
             call_tool("read_file", "r", path="新.txt")]
    reply = {"content": TEXT, "reasoning_content": "想一想 🤔", "tool_calls": calls}
    with StrictServer([reply, {"content": "好 ✅"}, {"content": "再好"}]) as server:
        done = run_forked(folder, "--yes", "改 🐞", server=server, script=script)
        assert done.returncode == 0 and TEXT in done.stdout and "好 ✅" in done.stdout, done.stderr
        again = run_forked(folder, "--resume", "last", "继续", server=server, script=script)
    assert again.returncode == 0 and "再好" in again.stdout, again.stderr
    results = read_results(server)
    assert list(results) == ["b", "w", "r"] and results["r"] == TEXT and "一" in results["b"]
    said = [record for record in read_log(folder) if record.get("role") == "assistant"]
    assert (said[0]["content"], said[0].get("reasoning_content")) == (TEXT, "想一想 🤔")
    assert server.requests[-1]["messages"][2] == {
        "role": "assistant", "content": TEXT, "tool_calls": calls}
    assert "想一想" not in json.dumps(server.requests, ensure_ascii=False)
    assert "API_KEY" not in results["b"], "a tool can see the key"
    for path in folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_parallel_calls_reasoning_and_key(folder):
    check_what_is_kept_and_sent(SCRIPT, folder)


def check_foreign_keys_are_not_sent(script, folder):
    dumped = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "id": "x"}
    records = [{"role": "user", "content": "问", "name": "某人"},
               {"role": "assistant", "content": "答", **dumped, "tool_calls": None}]
    (folder / "old.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with StrictServer([{"content": "好"}]) as server:
        done = run_forked(folder, "--resume", "old.jsonl", "再问", server=server, script=script)
    assert (done.returncode, server.refusals) == (0, []), server.refusals or done.stderr
    assert server.requests[0].keys() <= {"model", "messages", "tools", "stream"}


def test_request_holds_only_keys_that_providers_know(folder):
    check_foreign_keys_are_not_sent(SCRIPT, folder)


def check_cut_call_is_not_run(script, folder):
    cut = {"content": None, "tool_calls": [call_tool("bash", command="touch 跑了")],
           "finish_reason": "length"}
    with StrictServer([cut, {"content": "好"}]) as server:
        done = run_forked(folder, "--yes", "做", server=server, script=script)
    assert done.returncode == 0, done.stderr
    assert not (folder / "跑了").exists(), "a call that was cut at the length limit was run"
    assert "not run" in read_results(server)["c1"] and "length" in read_results(server)["c1"]


def test_call_cut_at_the_length_limit_is_not_run_and_its_result_says_so(folder):
    check_cut_call_is_not_run(SCRIPT, folder)


ONE, TWO = '{"command": "echo 一"}', '{"command": "echo 二"}'
SPLITS = {  # how a server tells the pieces of two calls apart -> the pieces
    "index 0 for each call": [
        piece(ONE[:9], "bash", index=0, id="a"), piece(ONE[9:], index=0),
        piece(TWO[:9], "bash", index=0, id="b"), piece(TWO[9:], index=0)],
    "index null": [
        piece(ONE[:9], "bash", index=None, id="a"), piece(ONE[9:], index=None),
        piece(TWO[:9], "bash", index=None, id="b"), piece(TWO[9:], index=None)],
    "no index": [piece(ONE, "bash", id="a"), piece(TWO, "bash", id="b")],
    "the id in each piece": [
        piece(ONE[:9], "bash", index=0, id="a"), piece(ONE[9:], index=0, id="a"),
        piece(TWO[:9], "bash", index=1, id="b"), piece(TWO[9:], index=1, id="b")],
    "id and name in each piece": [
        piece(ONE[:9], "bash", index=0, id="a"), piece(ONE[9:], "bash", index=0, id="a"),
        piece(TWO[:9], "bash", index=0, id="b"), piece(TWO[9:], "bash", index=0, id="b")],
    "mixed pieces, each with index 0 and its id": [
        piece(ONE[:9], "bash", index=0, id="a"), piece(TWO[:9], "bash", index=0, id="b"),
        piece(ONE[9:], index=0, id="a"), piece(TWO[9:], index=0, id="b")],
    "mixed pieces": [
        piece(ONE[:9], "bash", index=0, id="a"), piece(TWO[:9], "bash", index=1, id="b"),
        piece(ONE[9:], index=0), piece(TWO[9:], index=1)],
    "no id": [
        piece(ONE[:9], "bash", index=0), piece(ONE[9:], index=0),
        piece(TWO[:9], "bash", index=1), piece(TWO[9:], index=1)],
    "index 0 and no id": [piece(ONE, "bash", index=0), piece(TWO, "bash", index=0)],
}


def check_pieces(script, folder, kind):
    replies = [[*SPLITS[kind], ({}, "tool_calls")], [({"content": "好"}, None), ({}, "stop")]]
    with RawServer(replies) as server:
        done = run_forked(folder, "--yes", "做", server=server, script=script)
    assert done.returncode == 0, done.stderr
    assert [text.split()[0] for text in read_results(server).values()] == ["一", "二"]


@pytest.mark.parametrize("kind", SPLITS)
def test_calls_are_put_together_from_servers_with(kind, folder):
    check_pieces(SCRIPT, folder, kind)


# ─── what fails ──────────────────────────────────────────────────────────────────────────────────

AGAIN = {"status": 500, "error": "忙", "headers": {"retry-after-ms": "1"}}
BROKEN = {"content": TEXT, "tool_calls": [call_tool("bash", command="touch 跑了")]}
FAILURES = {  # kind: the replies to a first request
    "401": [{"status": 401, "error": "no such key 🔑"}],
    "404": [{"status": 404, "error": "no such model"}],
    "400": [{"status": 400, "error": "too long\nby far"}],
    "500 for ever": [AGAIN] * 3,
    "cut in the middle": [{**BROKEN, "hang_up": 8}],
    "ended in the middle": [{**BROKEN, "hang_up": 8, "clean": True}],
}


def check_failure(script, folder, kind):
    with StrictServer([*FAILURES[kind], {"content": "好 ✅"}]) as server:
        done = run_forked(folder, "--yes", "做 🐞", server=server, script=script)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        problem, advice = done.stderr.splitlines()
        assert problem.startswith("tinyharness: ") and "--resume" in advice, done.stderr
        roles = [record["role"] for record in read_log(folder) if "role" in record]
        assert roles == ["user"] and not (folder / "跑了").exists(), "of a failed reply nothing stays"
        command = shlex.split(advice.partition("to go on: ")[2])
        again = run_forked(folder, *command[2:], "继续", server=server, script=command[1])
    assert (again.returncode, server.refusals) == (0, []) and "好 ✅" in again.stdout


@pytest.mark.parametrize("kind", FAILURES)
def test_failed_request_is_one_line_stores_nothing_and_can_be_resumed(kind, folder):
    check_failure(SCRIPT, folder, kind)


def test_the_sdk_tries_again_after_a_500(folder):
    with StrictServer([AGAIN, AGAIN, {"content": "好 ✅"}]) as server:
        done = run_forked(folder, "做", server=server)
    assert done.returncode == 0 and "好 ✅" in done.stdout and len(server.requests) == 3


def test_connection_refused_is_one_line(folder):
    with StrictServer([]) as server:
        pass  # its port is closed from here on
    done = run_forked(folder, "做", server=server)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 2, done.stderr
    assert [record["role"] for record in read_log(folder) if "role" in record] == ["user"]


# ─── which model ─────────────────────────────────────────────────────────────────────────────────

CHOICES = {  # kind: (options, variables, the model that is asked)
    "the default": ([], {}, tinyharness.DEFAULT_MODEL),
    "the default, without a key": ([], {"OPENAI_API_KEY": ""}, tinyharness.DEFAULT_MODEL),
    "OPENAI_MODEL": ([], {"OPENAI_MODEL": "通义-🐞"}, "通义-🐞"),
    "--model": (["--model", "qwen"], {"OPENAI_MODEL": "other"}, "qwen"),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_model_that_is_asked_is(kind, folder):
    options, env, name = CHOICES[kind]
    with StrictServer([{"content": "好"}]) as server:
        done = run_forked(folder, *options, "问", server=server, **env)
    assert done.returncode == 0, done.stderr
    assert server.requests[0]["model"] == read_log(folder)[0]["model"] == name


# ─── the rehearsal model ─────────────────────────────────────────────────────────────────────────

def play(model, folder) -> list:
    """(messages, reply) of each request of a whole rehearsal, played here with the real tools."""
    played = []

    def record(messages, tools):
        played.append((copy.deepcopy(messages), model(messages, tools)))
        return played[-1][1]
    tinyharness.make_demo(folder)
    with tinyharness.Session(folder / "排练.jsonl", str(folder)) as session:
        tinyharness.run_turn(session, tinyharness.TASK, record, show=lambda text: None)
    assert "The test passes" in played[-1][1]["content"] and len(played) == 7
    return played


@functools.cache
def play_reference() -> list:
    """The rehearsal as it should be."""
    with tempfile.TemporaryDirectory() as name:
        return play(tinyharness.rehearsal_model, Path(name))


def check_pure(model, folder):
    played, again = play(model, folder / "一"), play(model, folder / "二")
    replies, others = ([reply for _, reply in each] for each in (played, again))
    assert replies == others, "it reads a clock or counts"
    for messages, reply in random.Random(7).sample(played * 2, 2 * len(played)):
        given = copy.deepcopy(messages)
        assert model(given, []) == reply, "the same messages get another reply"
        assert given == messages, "it changes the messages that it is given"


def check_looks_again(model, folder):
    history = play_reference()[-1][0]
    verdicts = [getattr(tinyharness, name) for name in (
        "UNKNOWN", "APPLIED", "NOT_APPLIED", "DIFFERS", "NOT_STARTED")]
    for place, message in enumerate(history):
        for verdict in verdicts if message["role"] == "tool" else ():
            lost = {**message, "content": f"the harness stopped while it ran; {verdict}"}
            said = model([*history[:place], lost, {"role": "user", "content": "continue"}], [])
            asked = json.dumps(said.get("tool_calls"))
            assert '"read_file"' in asked, f"after {verdict!r} it must look, and not say {said}"


def check_honest(model, folder):
    told = model([{"role": "user", "content": "写一首诗 🐞"}], [])
    assert not told.get("tool_calls") and "rehearsal" in told["content"]
    assert "OPENAI_API_KEY" in told["content"] and "parse_date.py" in told["content"]


def check_stops(model, folder):
    history = play_reference()[1][0]
    reasons = ("refused: 不行", "error: OSError: 满了", "bash: python3: 没有\n[exit code 127]",
               f"not '2026-03-03'\n[timed out; {tinyharness.UNKNOWN}]")
    for reason in reasons:
        told = model([*history[:-1], {**history[-1], "content": reason}], [])
        assert not told.get("tool_calls") and reason in told["content"], "it must stop, and say why"


def check_short_memory(model, folder):
    """As after a compaction: the task, a summary, and no older result or call."""
    for messages, reply in play_reference():
        summary = {"role": "user", "content": "到此为止: a summary 🐞"}
        said = model([messages[1], summary, messages[-1]], [])
        for one, other in zip(said.get("tool_calls", [said]), reply.get("tool_calls", [reply])):
            assert one.get("function", one) == other.get("function", other), messages[-1]


def check_each_python(model, folder):
    """Python 3.14 says less of what it does not find in a list."""
    changed = 0
    for messages, reply in play_reference():
        text = re.sub("ValueError: .*", "ValueError: list.index(x): x not in list",
                      messages[-1]["content"])
        changed += "x not in list" in text
        assert model([*messages[:-1], {**messages[-1], "content": text}], []) == reply
    assert changed == 1


REHEARSALS = {"is pure": check_pure, "looks again after a lost result": check_looks_again,
              "says what it cannot do": check_honest, "stops when refused": check_stops,
              "needs no old message": check_short_memory,
              "knows the words of each Python": check_each_python}


@pytest.mark.parametrize("claim", REHEARSALS)
def test_rehearsal_model(claim, folder):
    REHEARSALS[claim](tinyharness.rehearsal_model, folder)


def count_calls(messages, tools, count=itertools.count()):
    reply = tinyharness.rehearsal_model(messages, tools)
    return json.loads(json.dumps(reply).replace("rehearsal", f"call{next(count)}x"))


def stamp_calls(messages, tools):
    reply = tinyharness.rehearsal_model(messages, tools)
    return json.loads(json.dumps(reply).replace("rehearsal", f"call{time.time_ns()}"))


def eat_messages(messages, tools):
    reply = tinyharness.rehearsal_model(messages, tools)
    messages.clear()
    return reply


def forget_lost_results(messages, tools):
    lost = [place for place, each in enumerate(messages)
            if "the harness stopped" in (each["content"] or "")]
    return tinyharness.rehearsal_model(messages[:lost[0] - 1] if lost else messages, tools)


def look_calls_up(messages, tools):
    calls = [call["id"] for each in messages for call in each.get("tool_calls", [])]
    known = [each for each in messages if each.get("tool_call_id") in [None, *calls]]
    return tinyharness.rehearsal_model(known, tools)


def know_one_python(messages, tools):
    text = messages[-1]["content"].replace("list.index(x): x not in list", "")
    return tinyharness.rehearsal_model([*messages[:-1], {**messages[-1], "content": text}], tools)


def promise_all(messages, tools):
    return {"role": "assistant", "content": "好的, 做完了"}


def ask_again(messages, tools):
    return tinyharness.rehearsal_model(messages[:2], tools)


# ─── each protection is seen when it is gone ─────────────────────────────────────────────────────

REMOVED = {  # name: (the check that has to see it, the protection, what is there instead)
    "showing while it streams": (
        functools.partial(check_stream_is_shown_as_it_arrives, patience=0.5),
        'show(choice.delta.content or "", end="")', "pass"),
    "keeping the reasoning": (
        check_what_is_kept_and_sent, '("content", "reasoning_content")', '("content",)'),
    "hiding the key": (check_what_is_kept_and_sent, '"API_KEY" not in name', "True"),
    "the allow-list": (
        check_foreign_keys_are_not_sent, 'text if text.strip() else None}',
        'text if text.strip() else None, "annotations": []}'),
    "not running a cut call": (check_cut_call_is_not_run, "if call.cut_off:", "if False:"),
    "joining pieces by index": (
        functools.partial(check_pieces, kind="mixed pieces"),
        "keys.get(part.index)", "[*keys.values()][-1]"),
    "telling calls of one index apart by id": (
        functools.partial(check_pieces, kind="index 0 for each call"),
        "part.index, part.id or len(calls)", "part.index"),
    "beginning a call at a name without id": (
        functools.partial(check_pieces, kind="index 0 and no id"),
        "if part.id or part.function.name:", "if part.id:"),
    "the plain line": (
        functools.partial(check_failure, kind="401"),
        "except (Failure, SessionError, OSError) as", "except (SessionError, OSError) as"),
    "refusing half a reply": (
        functools.partial(check_failure, kind="ended in the middle"),
        'if not reply["finish_reason"]:', "if False:"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_the_check_sees_that_this_is_removed(name, folder, tmp_path):
    check, old, new = REMOVED[name]
    script = break_script(tmp_path / "broken", (old, new))
    with pytest.raises(AssertionError):
        check(script, folder)


WRONG = {  # name: (the check that has to see it, the wrong model)
    "reads the clock": (check_pure, stamp_calls),
    "counts its calls": (check_pure, count_calls),
    "changes the messages": (check_pure, eat_messages),
    "takes a lost result for none": (check_looks_again, forget_lost_results),
    "promises all": (check_honest, promise_all),
    "asks again when it was refused": (check_stops, ask_again),
    "has to see the call of a result": (check_short_memory, look_calls_up),
    "knows the words of one Python": (check_each_python, know_one_python),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_check_rejects_a_rehearsal_model_that(name, folder):
    check, model = WRONG[name]
    with pytest.raises(AssertionError):
        check(model, folder)

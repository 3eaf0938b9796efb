"""Claim: facts outlive their session, each once and with its source; no secret, no failed turn."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from crash_tools import (PROBLEM, Place, fast_folder, list_kill_points, load_module, needs_strace,
                         run_served, run_traced)
from strict_server import StrictServer
from test_m07_resume import GOOD, OPENED, answer, ask, say, write_session
from test_main import talk
from test_models import (call_tool, find_log, folder, make_env, read_log, run_forked,
                         run_script)
from whole_script import SCRIPT

pytestmark = pytest.mark.long  # the sections are a patch so far

MEMORY = Path(".tinyharness", "memory.md")
LINE = re.compile(r"- (.*) \((\S+):(\d+)\)")
FACTS = "- 测试: pytest 🐞\n* uses tabs\n\n  --yes is needed  \n- *.log is ignored\n---\n- uses tabs"
PLAIN = ["测试: pytest 🐞", "uses tabs", "--yes is needed", "*.log is ignored"]


def copy_script(script, place, *changes):
    """A copy of a script with each old text, which is there once, replaced by the new one."""
    source = Path(script).read_text(encoding="utf-8")
    for old, new in changes:
        if source.count(old) != 1:
            pytest.fail(f"{source.count(old)} times in the script, not once: {old!r}")
        source = source.replace(old, new)
    place.mkdir(exist_ok=True)
    (place / "tinyharness.py").write_text(source, encoding="utf-8")
    return place / "tinyharness.py"


def read_memory(folder, memory=MEMORY):
    """(fact, id, line) of each line of the memory; no line may be anything else."""
    path = folder / memory
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    found = [(line, LINE.fullmatch(line)) for line in lines if line]
    odd = [line for line, match in found if not match]
    assert not odd, f"no fact with session and line: {odd}"
    return [(match[1], match[2], int(match[3])) for _, match in found]


def list_facts(folder):
    return [fact for fact, _, _ in read_memory(folder)]


class Helper:
    """A model that reads `a.txt` as often as the prompt says, and says what it is told of facts."""

    def __init__(self, module, *said):
        self.module, self.said, self.asked = module, list(said), []

    def __call__(self, messages, tools):
        last = messages[-1]
        if last["content"].startswith(self.module.FACTS):
            self.asked.append(messages)
            said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
            if isinstance(said, type):
                raise said("拒绝")
            return say(said, "assistant") if isinstance(said, str) else said
        count = int(re.search(r"\d+|$", last["content"])[0] or 0) if last["role"] == "user" else 0
        ids = [f"c{len(messages)}x{number}" for number in range(count)]
        return ask(*[call_tool("read_file", id_, path="a.txt") for id_ in ids]) if ids else GOOD


def take_turns(module, folder, model, *prompts, name="会话"):
    """Turns in a session that is opened anew, each of which has to be done; its records."""
    text = folder / "a.txt"
    text.exists() or text.write_text("字" * (module.MEMORY_TEXT // module.MEMORY_CALLS), "utf-8")
    path = folder / "log" / f"{name}.jsonl"
    with module.Session(path, str(folder)) as session:
        for prompt in prompts:
            try:
                words = module.run_turn(session, prompt, model, show=lambda *_: None)
            except (Exception, SystemExit) as error:
                raise AssertionError(f"the turn failed: {error!r}") from error
            assert (words, session.records[-1]["state"]) == (GOOD["content"], "done"), words
    return module.read_jsonl(path)


def find_memories(records):
    return [(number, each) for number, each in enumerate(records) if each.get("event") == "memory"]


# ─── when, and what is then on record ─────────────────────────────────────────────────────────────

def check_when(script, folder):
    module = load_module(script)
    calls, text = module.MEMORY_CALLS, module.MEMORY_TEXT
    short, mark = [answer("c", "字")] * (calls - 2), {"event": "memory", "line": 1}
    enough = [*short, answer("c", "字" * (text - calls + 1)), answer("c", "字")]
    cases = {"nothing": ([], False), "enough": (enough, True),
             "one call less": ([*short, answer("c", "字" * text)], False),
             "one letter less": ([*enough[:-1], answer("c", "")], False),
             "enough before the last time": ([*enough, mark, *enough[1:]], False),
             "enough again": ([*enough, mark, *enough], True)}
    for kind, (records, want) in cases.items():
        assert module.should_extract_memory(records) is want, f"{kind}: not {want}"
    assert calls > 3 and text > 1_000, "so little happens in each turn"


def check_extraction(script, folder):
    module = load_module(script)
    model, calls = Helper(module, FACTS, "第二"), module.MEMORY_CALLS
    records = take_turns(module, folder, model, f"做 {calls - 1}", "做 1", "做 1", "好")
    records = take_turns(module, folder, model, f"做 {calls - 1}")
    said = [each.get("content") or "" for each in module.load_session(folder / "log" / "会话.jsonl")]
    assert not any(module.FACTS in text or "第二" in text for text in said), "it is in the history"
    found = find_memories(records)
    turns = [place for place, each in enumerate(records) if each.get("event") == "turn"]
    places = [number + 1 for number, _ in found]
    assert places == [turns[1], turns[4]], f"not where enough had come: {places} of {turns}"
    assert len(model.asked) == 2, f"the model was asked {len(model.asked)} times"
    marks = [each["line"] for _, each in found]
    assert marks == [number for number, _ in found], "the watermark is not the last line"
    contents = [each["content"].split("\n")[0] for _, each in found]
    assert contents == [PLAIN[0], "第二"], contents
    assert "做 1" in model.asked[0][0]["content"], "the model does not see what happened"


def check_command_line(script, folder):
    module = load_module(script)
    calls, model = module.MEMORY_CALLS, Helper(module, FACTS)
    (folder / "a.txt").write_text("字" * module.MEMORY_TEXT, encoding="utf-8")
    with StrictServer(model) as server:
        for prompt in ["--yes", f"做 {calls}"], ["--resume", "last", "好"], ["新"]:
            done = run_forked(folder, *prompt, server=server, script=script)
            assert done.returncode == 0 and server.refusals == [], (done.stderr, server.refusals)
    asides = [number for number, body in enumerate(server.requests) if "tools" not in body]
    assert asides == [2] and len(server.requests) == 5, f"asked aside at {asides}"
    assert module.FACTS not in json.dumps(server.requests[3:]), "the aside is in the history"
    first, *_, new = [body["messages"][0]["content"] for body in server.requests]
    assert "uses tabs" not in first and "- uses tabs (" in new, "a new session knows nothing of it"
    id_, = {id_ for _, id_, _ in read_memory(folder)}
    paths = sorted((folder / ".tinyharness" / "sessions").iterdir(), key=os.path.getsize)
    assert id_ == paths[-1].stem and list_facts(folder) == PLAIN, read_memory(folder)


# ─── the lines of the memory ──────────────────────────────────────────────────────────────────────

def check_lines(script, folder):
    module = load_module(script)
    say_so = f"做 {module.MEMORY_CALLS}"
    records = take_turns(module, folder, Helper(module, FACTS), say_so, say_so)
    watermarks = [each["line"] for _, each in find_memories(records)]
    lines = read_memory(folder)
    assert [fact for fact, _, _ in lines] == PLAIN, f"not each fact once: {lines}"
    assert {(id_, line) for _, id_, line in lines} == {("会话", watermarks[0])}, lines
    assert len(watermarks) == 2 and records[watermarks[0] - 1]["role"] == "assistant"
    more = ["uses", "uses tabs (note: not here)"]
    for name in "二 (2)", "三":
        model = Helper(module, "\n".join([FACTS, *more]))
        take_turns(module, folder, model, say_so, "好", name=name)
        assert list_facts(folder) == [*PLAIN, *more], f"not each fact once: {list_facts(folder)}"
    assert read_memory(folder)[-1][1] == "二_(2)", "not its session"
    mode = oct((folder / MEMORY).stat().st_mode)[-3:]
    assert mode == "600", f"others can read it: {mode}"


def check_torn_line(script, folder):
    module, torn = load_module(script), "- 旧 (会话:4)\n- uses tabs (会"
    (folder / MEMORY).parent.mkdir()
    (folder / MEMORY).write_text(torn, encoding="utf-8")
    take_turns(module, folder, Helper(module, "uses tabs"), f"做 {module.MEMORY_CALLS}")
    text = (folder / MEMORY).read_text(encoding="utf-8")
    assert text.startswith(f"{torn}\n"), f"a torn line swallowed the next one: {text}"
    assert LINE.fullmatch(text.split("\n")[-2]), f"a fact without its source: {text}"


def check_left_out(script, folder):
    """What a crash left between the record and the memory, with a checkpoint since or without."""
    module = load_module(script)
    for name in "甲", "乙":
        facts = {"event": "memory", "line": 3, "content": f"uses tabs\n{name} 🐞"}
        path = folder / "log" / f"{name}.jsonl"
        write_session(path, {**OPENED, "cwd": str(folder)}, say("做"), GOOD, facts)
        if name == "乙":
            with module.Session(path) as session:
                module.add_checkpoint(session)
        for _ in range(2):
            model = Helper(module, "没有")
            take_turns(module, folder, model, "好", name=name)
            assert not model.asked, "asked again for what is on record"
    path.write_bytes(path.read_bytes().replace("乙 🐞".encode(), "丙".encode()))
    with module.Session(path) as session:
        module.extract_memory(session, "丁")
    want = [("uses tabs", "甲", 3), ("甲 🐞", "甲", 3), ("乙 🐞", "乙", 3), ("丙", "乙", 3)]
    want += [("丁", "乙", module.count_lines(path) - 2)]
    assert read_memory(folder) == want, f"lost, or there twice: {read_memory(folder)}"


ODD_LINES = [None, -1, 1.5, True, "", "三", "a b", [1, 2], {"a": [1]}, "修" * 300]


def check_odd_record(script, folder):
    """What another program wrote as a `memory` record is no reason to fail, or to say it twice."""
    module = load_module(script)
    for number, odd in enumerate(ODD_LINES):
        for more in {"line": odd, "content": f"事 {number}"}, {"content": odd}:
            name, record = f"{number}-{len(more)}", {"event": "memory", **more}
            write_session(folder / "log" / f"{name}.jsonl", {**OPENED, "cwd": str(folder)}, record)
            take_turns(module, folder, Helper(module, "没有"), "好", "好", name=name)
    text = (folder / MEMORY).read_text(encoding="utf-8")
    counts = [len(re.findall(rf"(?m)^- 事 {number} ", text)) for number in range(len(ODD_LINES))]
    assert counts == [1] * len(ODD_LINES), f"not each fact once: {counts}"


WRITER = """import sys, tinyharness
name = sys.argv[1]
with tinyharness.Session(f"log/{name}.jsonl", ".") as session:
    print(flush=True)
    input()
    for number in range(25):
        tinyharness.extract_memory(session, f"{name} {number}\\n{name * 500} {number}")"""


def check_two_sessions(script, folder):
    place = {"cwd": folder, "env": make_env(folder, PYTHONPATH=str(Path(script).parent))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **place}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name], **pipes) for name in "左右"]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    assert [writer.communicate(timeout=60) and writer.returncode for writer in writers] == [0, 0]
    texts = [(name, text) for name in "左右" for text in (name, name * 500)]
    want = {(f"{text} {number}", name) for name, text in texts for number in range(25)}
    found = [(fact, id_) for fact, id_, _ in read_memory(folder)]
    assert len(found) == 100 and set(found) == want, "a line is lost, mixed, or there twice"


# ─── secrets ──────────────────────────────────────────────────────────────────────────────────────

RANDOM = "q7Zp2LxV9mKc4TbW8nRd5YsG1hJf6AoE"
SECRETS = [
    "use sk-proj-abcdefghijklmnop", "用sk-ant-api03-abcdefgh", "sk_live_abcdefghijklmnopqrstuvwx",
    "push with ghp_abcdefghijklmnopqrstuvwxyzabcdefghij", "ghs_abcdefghijklmnopqrstuvwxyzabcd",
    "AKIAIOSFODNNEXAMPLEX", "glpat-abcdefghijklmnopqrst", "xoxb-abcdefghijkl-mnopqrstuvwx",
    "api_key = abc", "API-KEY: abc", '{"apiKey": "abc"}', "export GITHUB_TOKEN=abc", "token: abc",
    "client_secret='abc'", "the password: hunter2", "passwd=hunter2", "The password is hunter2.",
    "密码：hunter2", "密钥=abc", "密码是 abc", f"it is {RANDOM}", f"{RANDOM[:20]}_{RANDOM[:9]}-x",
    "postgres://app:hunter2@localhost/app", "0123456789abcdef0123456789abcdef",
    "123e4567-e89b-12d3-a456-426614174000", f"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.{RANDOM}"]
HARMLESS = [
    "python -B -m pytest tests/test_m11_replay.py::test_a_fork_killed_at_each_system_call_leaves",
    "tests/test_kill.py::test_killed_at_200_random_times_the_session_goes_on is slow",
    "the code is in src/components/authentication/v2/TokenRefreshHandler.tsx",
    "先运行数据库迁移脚本然后再启动服务器否则测试会因为缺少表而失败端口是8080", "用户喜欢短答案 🐞",
    "OPENAI_API_KEY must be set", "PYTHONPATH=src python -m unittest discover", "uses sk-learn 1.4",
    "branches are named 2024-01-fix-the-date-parser-in-march", "keyboard shortcuts: in keys.md",
    "count_tokens() counts the tokens", "the primary key is id", "commits begin with ABC-123",
    "http://localhost:8080/docs shows the API", "- - a list",
    "see pneumonoultramicroscopicsilicovolcanoconiosis.txt"]


def check_secrets(script, folder):
    module, said = load_module(script), [*SECRETS, *HARMLESS, *SECRETS]
    assert len(RANDOM) == 32
    take_turns(module, folder, Helper(module, "\n".join(said)), f"做 {module.MEMORY_CALLS}")
    path = folder / "log" / "会话.jsonl"
    with module.Session(path) as session:
        for secret in SECRETS:
            module.extract_memory(session, secret)
    memory, log = ((folder / name).read_text(encoding="utf-8") for name in (MEMORY, path))
    spelled = [json.dumps(secret, ensure_ascii=False)[1:-1] for secret in SECRETS] + SECRETS
    for text in memory, log:
        told = [secret for secret in spelled if secret in text]
        assert not told, f"a secret is kept: {told}"
    lost = [fact for fact in HARMLESS if fact.removeprefix("- ") not in list_facts(folder)]
    assert not lost, f"harmless, and lost: {lost}"


def check_long_words(script, folder):
    module = load_module(script)
    for word in "x" * 99_999, "://" + "a:" * 50_000, "- x (a:" * 20_000, "x_" * 50_000:
        with at_most(5), module.Session(folder / "长.jsonl", str(folder)) as session:
            module.extract_memory(session, word)
            module.extract_memory(session, "短")


# ─── /remember, at a terminal ─────────────────────────────────────────────────────────────────────

def check_remember(script, folder):
    module = load_module(script)
    own, = [row[2] for row in module.SCRIPT if row[0] == f"^user: {module.FACTS}"]
    assert run_script(folder, "你好", script=script).returncode == 0
    lines = ["/remember 喜欢短答案 🐞\n", "/remember\n", "/remember token: abc\n", "/help\n", "\x04"]
    dialogue = [("> ", line) for line in lines]
    talk(folder, dialogue, "--resume", "last", server=None, script=script)
    facts = list_facts(folder)
    assert facts == ["喜欢短答案 🐞", own], f"lost at the prompt: {facts}"
    assert {id_ for _, id_, _ in read_memory(folder)} == {find_log(folder).stem}
    contents = [each["content"] for _, each in find_memories(read_log(folder))]
    assert contents == ["喜欢短答案 🐞", own, ""], f"on record: {contents}"
    with module.Session(folder / "新.jsonl", str(folder)) as session:
        assert "喜欢短答案 🐞" in session.messages()[0]["content"], "the next session does not know it"
        with pytest.raises(module.SessionError, match="/remember TEXT"):
            module.extract_memory(session)
        module.extract_memory(session, "第一句")
    assert read_memory(folder)[-1] == ("第一句", "新", 1), "a line that is not there"


# ─── what a new session is told ───────────────────────────────────────────────────────────────────

@contextlib.contextmanager
def at_most(seconds):
    """AssertionError in what takes longer."""
    def give_up(*_):
        raise AssertionError(f"it waits for ever, or for more than {seconds} s")
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_prompt(module, folder):
    """The system prompt of a new session of a workspace, behind its own words."""
    try:
        with at_most(5), module.Session(folder / "新.jsonl", str(folder)) as session:
            first = session.messages()[0]
    except (OSError, ValueError) as error:
        raise AssertionError(f"it does not begin: {error!r}") from error
    assert first["role"] == "system"
    own = module.SYSTEM_PROMPT.format(workspace=folder)
    assert first["content"].startswith(own), "the notes stand before the prompt, or in its place"
    return first["content"][len(own):]


def check_notes(script, folder):
    module, memory, agents = load_module(script), folder / MEMORY, folder / "AGENTS.md"
    memory.parent.mkdir()
    assert read_prompt(module, folder) == "", "there are no notes"
    size = module.NOTES_BYTES
    agents.write_text("始 🐞" + "修" * size + "agents end", encoding="utf-8")
    memory.write_text("- oldest (a:1)\n" + "复" * size + "\n- newest 末 (b:2)\n", encoding="utf-8")
    told = read_prompt(module, folder)
    own, *parts = re.split(r"\n\nNotes, not orders, from (\S+):\n", told)
    assert (own, *parts[::2]) == ("", "AGENTS.md", str(MEMORY)), f"not marked as notes: {told[:80]}"
    beginning, end = parts[1::2]
    assert beginning.startswith("始 🐞修") and "agents end" not in told, "not the beginning"
    assert end.endswith("复\n- newest 末 (b:2)\n") and "oldest" not in told, "not the newest"
    assert all(size - 9 < len(part.encode()) < size + 9 for part in (beginning, end)), "the budget"


def make_odd(path, kind):
    """Put something at a path that is no common file; whether it can be read as notes."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a full disk":
        path.symlink_to("/dev/full")
    elif kind == "read-only":
        path.symlink_to("/proc/version")
    elif kind == "60 MB":
        path.touch()
        os.truncate(path, 60_000_000)
    elif kind == "no text":
        path.write_bytes(b"\xff\xfe- \xe4\xbf\n\0\xed\xa0\xbd")


ODD = ["a folder", "a pipe", "a full disk", "read-only", "60 MB", "no text"]


def check_odd_notes(script, folder):
    module = load_module(script)
    for kind in ODD:
        workspace = folder / kind
        (workspace / MEMORY).parent.mkdir(parents=True)
        for name in "AGENTS.md", MEMORY:
            make_odd(workspace / name, kind)
        told = read_prompt(module, workspace)
        assert len(told) <= 2 * module.NOTES_BYTES + 200, f"{kind}: {len(told)} characters"
        assert kind != "no text" or told.count("\ufffd") > 3, "what can be read is not told"
        assert told == told.encode("utf-8", "replace").decode(), "what cannot be sent"


# ─── what fails ───────────────────────────────────────────────────────────────────────────────────

FAILURES = ["", " \n", [], ValueError, SystemExit, MemoryError, None, {}, {"content": None}, "文"]


def check_failing_model(script, folder):
    module = load_module(script)
    model, calls = Helper(module, *FAILURES), module.MEMORY_CALLS
    records = take_turns(module, folder, model, f"做 {calls}", *["好"] * len(FAILURES))
    assert len(model.asked) == len(FAILURES), "it is not tried again at the end of the next turn"
    assert [each["content"] for _, each in find_memories(records)] == ["文"]
    assert list_facts(folder) == ["文"]


def check_failing_file(script, folder):
    module = load_module(script)
    for kind in ["a folder", "a pipe", "a full disk", "read-only", "a file for a folder"]:
        workspace = folder / kind
        workspace.mkdir()
        memory = workspace / MEMORY if kind in ODD else workspace / MEMORY.parent
        memory.parent.mkdir(exist_ok=True)
        make_odd(memory, kind) if kind in ODD else memory.touch()
        model, many = Helper(module, "uses tabs", "二"), f"做 {module.MEMORY_CALLS}"
        with at_most(20):
            take_turns(module, workspace, model, many, many)
        memory.rmdir() if memory.is_dir() else memory.unlink()
        assert len(model.asked) == 1, f"{kind}: asked for more before the first is in the memory"
        take_turns(module, workspace, model, "好")
        assert list_facts(workspace) == ["uses tabs", "二"], f"{kind}: lost {list_facts(workspace)}"


def check_failing_request(script, folder):
    module = load_module(script)
    (folder / "a.txt").write_text("字" * module.MEMORY_TEXT, encoding="utf-8")
    with StrictServer(Helper(module, {"status": 400, "error": "拒绝"})) as server:
        done = run_forked(folder, f"做 {module.MEMORY_CALLS}", server=server, script=script)
    assert done.returncode == 0, f"the exit code is {done.returncode}: {done.stderr}"
    assert len(server.requests) == 3 and read_log(folder)[-1]["state"] == "done"


# ─── killed, or a full disk for a moment ──────────────────────────────────────────────────────────

OFTEN = ('MEMORY_TEXT, NOTES_BYTES = ".tinyharness/memory.md", 10, 4_000',
         'MEMORY_TEXT, NOTES_BYTES = ".tinyharness/memory.md", 2, 1')
MANY = ('"python3 -B test_parse_date.py runs the test of parse_date.py"', repr("甲\n- 乙 🐞\n甲\n丙"))
KEPT = ["甲", "乙 🐞", "丙"]


def make_place(script, memory):
    """A place whose file is repaired, so that two calls are the turn, and enough to extract."""
    place = Place(memory, load_module(copy_script(script, memory / "copy", OFTEN, MANY)))
    place.repaired.write_text(place.stages[-1], encoding="utf-8")
    return place


def is_last_words(call):
    """Whether a system call writes the record behind which the memory is next."""
    return call.name == "write" and any(b'"assistant"' in text and b"is repaired" in text
                                        for text in call.texts)


def check_memory_kills(script, folder, step=1):
    """Kill a turn at each call behind its last words; the next one leaves each fact there once."""
    on_record = []
    with fast_folder() as memory:
        place = make_place(script, memory)
        with StrictServer(place.module.rehearsal_model) as server:
            run = run_traced(place, place.module.TASK)
            assert run.returncode == 0 and list_facts(place.workspace) == KEPT, run.err
            for point in list_kill_points(place, run, after=is_last_words)[::step]:
                shutil.rmtree(place.sessions)
                shutil.rmtree(place.workspace / ".tinyharness")
                assert run_traced(place, place.module.TASK, kill_at=point).returncode == -9, point
                known = find_memories(place.module.read_jsonl(place.log()))
                in_file = list_facts(place.workspace)
                assert known or not in_file, f"{point}: in the memory, and not on record"
                seen = len(server.requests)
                run = run_served(place, server, "--resume", str(place.log()), "你好")
                assert run.returncode == 0 and server.refusals == [], (run.err, server.refusals)
                asides = [body for body in server.requests[seen:] if "tools" not in body]
                assert len(asides) == 1 - len(known), f"{point}: asked {len(asides)} times"
                facts = list_facts(place.workspace)
                assert facts == KEPT, f"{point}: lost, or there twice: {facts}"
                on_record.append((len(known), bool(in_file)))
    assert step > 1 or {(0, False), (1, False), (1, True)} == set(on_record), on_record
    return on_record


def check_full_disk(script, folder):
    """ENOSPC at the `memory` record alone: the turn is done, and the next one extracts."""
    with fast_folder() as memory:
        place = make_place(script, memory)
        run = run_traced(place, place.module.TASK)
        writes = [call for call in run.trace if call.name == "write"]
        number, = [n for n, call in enumerate(writes, 1) if b'"event": "memory"' in call.texts[0]]
        shutil.rmtree(place.sessions)
        shutil.rmtree(place.workspace / ".tinyharness")
        full = ["strace", "-o", os.devnull, "-e", "trace=write", "-e", "signal=none",
                "-e", f"inject=write:error=ENOSPC:when={number}", sys.executable]
        done = subprocess.run([*full, *place.arguments(place.module.TASK)], cwd=place.folder,
                              env=place.environment(), stdin=subprocess.DEVNULL, timeout=60,
                              capture_output=True, text=True)
        records = place.module.read_jsonl(place.log())
        assert done.returncode == 0, f"the exit code is {done.returncode}: {done.stderr}"
        assert not find_memories(records), "nothing failed"
        assert records[-1].get("state") == "done", "a turn failed, because its extraction did"
        assert run_traced(place, "--resume", str(place.log()), "你好").returncode == 0
        assert list_facts(place.workspace) == KEPT


def check_on_disk(script, folder):
    """The bytes of the memory, and its name, are synced before the turn is called done."""
    with fast_folder() as memory:
        place = make_place(script, memory)
        calls = run_traced(place, place.module.TASK).trace
        start, = [call for call in calls if call.texts[:1] and call.texts[0][:3] == b"\n- "]
        names = [call.name for call in calls[calls.index(start) + 1:]]
        synced = names[:names.index("write")]
        assert synced[0] == "fdatasync" and "fsync" in synced, f"not synced: {synced}"


CLAIMS = [check_when, check_extraction, check_command_line, check_lines, check_torn_line,
          check_left_out, check_odd_record, check_two_sessions, check_secrets, check_long_words,
          check_remember, check_notes, check_odd_notes, check_failing_model, check_failing_file]
(WHEN, EXTRACTION, COMMAND, LINES, TORN, LEFT, ODD_RECORD, TWO_SESSIONS, SECRET, LONG, REMEMBER,
 NOTES, ODD_NOTES, MODEL, FILE) = CLAIMS


@pytest.mark.parametrize("check", CLAIMS)
def test_memory(check, folder):
    check(SCRIPT, folder)


@pytest.mark.long
def test_a_failed_request_for_facts_leaves_the_exit_code_at_0(folder):
    check_failing_request(SCRIPT, folder)


@needs_strace
@pytest.mark.long
def test_memory_is_on_disk_before_the_turn_is_done(folder):
    check_on_disk(SCRIPT, folder)


@needs_strace
@pytest.mark.long
def test_memory_on_a_disk_that_is_full_for_a_moment(folder):
    check_full_disk(SCRIPT, folder)


@needs_strace
@pytest.mark.long
def test_killed_at_each_system_call_of_the_memory_each_fact_is_there_once(folder, survived):
    survived(len(check_memory_kills(SCRIPT, folder)))


# ─── each protection is seen when it is gone ──────────────────────────────────────────────────────

APPEND = 'session.append({"event": "memory", "line": line, "content": facts})\n    '
KNOWN = r're.findall(r"(?m)^- (.*) \(\S+:[^()]*\)$", text)'
WRITE, ONCE = r'write_all(file, "".join([*new, "\n"]).encode())', "not each fact once"
STEM, NOTE = "pathlib.Path(session.path).stem", '[part].decode("utf-8", "replace")'
EXTRACT, TAIL = "attempt(extract_memory, session)", "slice(-NOTES_BYTES, None)"
REMOVED = {  # name: (the check that has to see it, words of its complaint, the protection, instead)
    "the calls": (WHEN, "one call less", "len(sizes) >= MEMORY_CALLS and ", ""),
    "the text": (WHEN, "one letter less", " and sum(sizes) >= MEMORY_TEXT", ""),
    "the last time": (WHEN, "before the last", 'each.get("event") != "memory", rev', "True, rev"),
    "enough": (EXTRACTION, "not where enough", "should_extract_memory(session.records) and ", ""),
    "the watermark": (EXTRACTION, "watermark", '"line": line, "content"', '"line": 1, "content"'),
    "an event": (EXTRACTION, "the history", '"memory", "line"', '"memory", "role": "user", "line"'),
    "what happened": (EXTRACTION, "does not see", "FACTS, repair(session.records)", "FACTS, []"),
    "the next session": (COMMAND, "knows nothing", " + read_notes(self.workspace)", ""),
    "a fact said twice": (LINES, ONCE, 'dict.fromkeys(text_of(last.get("content"))',
                          '(text_of(last.get("content"))'),
    "what is known": (LINES, ONCE, " if fact not in known]", "]"),
    "a whole fact": (LINES, ONCE, KNOWN, "text"),
    "the last bracket": (LINES, ONCE, KNOWN, KNOWN.replace(".*", ".*?").replace("[^()]", ".")),
    "a name with blanks": (LINES, ONCE, f"'_'.join({STEM}.split())", STEM),
    "bullets": (LINES, ONCE, 're.sub(r"^[*-]+(\\s+|$)", "", fact)', "fact"),
    "dashes": (LINES, ONCE, '"^[*-]+(\\s+|$)"', '"^[*-]+"'),
    "blanks": (LINES, ONCE, "[clean(fact).strip() for", "[clean(fact) for"),
    "empty lines": (LINES, ONCE, "filter(None, facts)", "facts"),
    "the mode": (LINES, "others can read", "with open_log(path) as file:  # the first",
                 'path.parent.mkdir(exist_ok=True)\n        with open(path, "ab", 0) as file:  #'),
    "a line of its own": (TORN, "swallow", '[f"\\n- {fact} {source}"', '[f"- {fact} {source}\\n"'),
    "a whole line": (TORN, "swallowed", KNOWN, KNOWN.replace(r"\S+:[^()]*\)$", "")),
    "what a crash left": (LEFT, "lost", "        attempt(write_memory, session)\n", ""),
    "the checkpoint's": (LEFT, "lost", 'if event["event"] == "memory"][-1:]', "if False]"),
    "the one before": (LEFT, "lost", "    write_memory(session)\n    facts = ", "    facts = "),
    "any line": (ODD_RECORD, ONCE, KNOWN, KNOWN.replace("[^()]*", r"\d+")),
    "a short look": (LONG, "waits", "(?=[a-z]{0,31}\\d)", "(?=[a-z]*\\d)"),
    "appending": (TWO_SESSIONS, "a line is lost|no fact with", WRITE,
                  'path.write_text(text + "".join([*new, "\\n"]))'),
    "secrets": (SECRET, "a secret is kept", " if not SECRET.search(fact)]", "]"),
    "ASCII": (SECRET, "a secret is kept", '(?ai)', '(?i)'),
    "lower case": (SECRET, "a secret is kept", '(?ai)', '(?a)'),
    "both cases": (SECRET, "harmless, and lost", r"(?=[\w-]{0,31}[A-Z])", ""),
    "a digit": (SECRET, "harmless, and lost", r"(?=[a-z]{0,31}\d)", ""),
    "some length": (SECRET, "harmless, and lost", r"\S{12}", ""),
    "/remember": (REMEMBER, "lost at the prompt", '"/remember": extract_memory,', ""),
    "the text of /remember": (REMEMBER, "lost at the prompt", "(text or ask_aside(", "(ask_aside("),
    "the mark": (NOTES, "not marked", "Notes, not orders, from", "From"),
    "the beginning": (NOTES, "not the beginning", "slice(NOTES_BYTES)", TAIL),
    "the newest": (NOTES, "not the newest", TAIL, "slice(NOTES_BYTES)"),
    "the budget": (NOTES, "not the beginning", "read_bytes()[part]", "read_bytes()"),
    "files only": (ODD_NOTES, "waits for ever", "path.is_file() and path.stat()", "path.stat()"),
    "any bytes": (ODD_NOTES, "does not begin", NOTE, "[part].decode()"),
    "any failure": (MODEL, "turn failed", EXTRACT, "extract_memory(session)"),
    "an empty answer": (MODEL, "not tried again", "if not (words :=", "if None is (words :="),
    "its failure": (FILE, "turn failed", "attempt(write_memory, session)", "write_memory(session)"),
    "the source of /remember": (REMEMBER, "not there", "count_lines(session.path) or 1,",
                                "count_lines(session.path),"),
    "the request": (check_failing_request, "the exit code", "suppress(Failure):  # a f",
                    "suppress(OSError):  # a f"),
    "the order": (
        check_memory_kills, "not on record", APPEND, APPEND.replace("append", "records.append")
        + "write_memory(session)\n    session.records.pop()\n    " + APPEND),
    "the record": (check_full_disk, "the exit code", EXTRACT, "extract_memory(session)"),
    "the sync": (check_on_disk, "not synced", WRITE, f"file.write({WRITE[16:]}"),
    "the name": (check_on_disk, "not synced", "sync_folders(path)\n\ndef rem", "pass\n\ndef rem"),
    **{f"secret {old} {new}": (SECRET, "a secret is kept", old, new) for old, new in (
        ("sk[-_]|", ""), ("gh[a-z]_|", ""), ("glpat-|", ""), ("|xox|", "|"), ("|akia)", ")"),
        (r"|://[^\s/:]+:[^\s/:]+@", ""), (r"|pass(word|phrase) is\b", ""), ("(key|token", "(token"),
        ("|token|", "|"), ("|secret|", "|"), ("|passw(or)?d|", "|"), ("|密[码钥]", ""),
        ("[=:：是]", "[=:是]"), ("[=:：是]", "[=:：]"),
        (r"|(?=[a-z]{0,31}\d)[a-z\d]{32}", ""), (r"|[a-f\d-]{36}", ""),
        (r"(?-i:(?=[\w-]{0,31}\d)", "(?-i:(?!)"))},
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_check_sees_that_this_is_removed(name, folder, tmp_path):
    check, words, *change = REMOVED[name]
    if check in (check_memory_kills, check_full_disk, check_on_disk) and PROBLEM:
        pytest.skip(PROBLEM)
    with pytest.raises(AssertionError, match=words):
        check(copy_script(SCRIPT, tmp_path / "broken", change), folder)

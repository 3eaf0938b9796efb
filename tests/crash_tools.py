"""Run the real script, kill it at a chosen system call, and say what must be true afterwards."""

import contextlib
import hashlib
import importlib.util
import json
import multiprocessing
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from strict_server import judge
from test_models import list_stages

SCRIPT = Path(__file__).resolve().parent.parent / "tinyharness.py"
SECONDS = 60  # no run takes longer, on however slow a machine
# A question mark: not every processor has each of these calls.
SPAWNS = ("vfork", "fork", "clone", "clone3")
RENAMES = ("rename", "renameat", "renameat2")
KILL_CALLS = ("write", "fsync", "fdatasync", *RENAMES, "openat", *SPAWNS, "kill")
CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|\?)")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


# ─── copies of the script, and folders to run them in ────────────────────────────────────────────

def load_module(script):
    """The script as a module."""
    name = "copy" + hashlib.sha256(str(script).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_copy(folder, *changes):
    """A copy of the script with (old, new) texts replaced; each old text must be there once."""
    source = SCRIPT.read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) == 1, f"{source.count(old)} places in the script say {old!r}"
        source = source.replace(old, new)
    path = Path(folder) / "tinyharness.py"
    path.write_text(source, encoding="utf-8")
    return path


@contextlib.contextmanager
def fast_folder():
    """A new folder, in memory where there is such a place: a kill leaves the kernel's files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


class Place:
    """A workspace with the rehearsal's broken file, a folder for sessions, and a script."""

    def __init__(self, folder, module):
        self.folder, self.module = Path(folder) / "修复 🐞", module
        self.workspace, self.sessions = self.folder / "work", self.folder / "sessions"
        self.workspace.mkdir(parents=True)
        self.repaired = self.workspace / "parse_date.py"
        self.repaired.write_text(module.BROKEN, encoding="utf-8")
        (self.workspace / "test_parse_date.py").write_text(module.TEST, encoding="utf-8")
        self.stages = list_stages(module)

    def arguments(self, *arguments):
        """The command line of a run in this place."""
        where = ["--workspace", str(self.workspace), "--sessions", str(self.sessions)]
        return [self.module.__file__, *arguments, "--yes", *where]

    def environment(self, **more):
        """An environment without keys and proxies, where python3 is the Python of this test."""
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        return {"PATH": path, "HOME": str(self.folder), "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1", **more}

    def log(self):
        """The path of the one session in which anything is written, None before there is one."""
        paths = [path for path in self.sessions.glob("*.jsonl") if path.stat().st_size]
        assert len(paths) < 2, f"there must be one session, not {paths}"
        return paths[0] if paths else None

    def go_on(self):
        """Whether the task is on disk, and the arguments with which a user goes on after a kill."""
        records = self.module.read_jsonl(self.log()) if self.log() else []
        heard = any(record.get("role") == "user" for record in records)
        target = ["--resume", str(self.log())] if records else []
        return heard, [*target, "continue" if heard else self.module.TASK]

    def stage(self, data=None):
        """How many of the two edits a file holds; it must hold exactly that, never half of it."""
        text = (self.repaired.read_bytes() if data is None else data).decode()
        assert text in self.stages, f"the edited file is neither old nor new: {text!r}"
        return self.stages.index(text)


# ─── runs under strace, and resumes over HTTP ────────────────────────────────────────────────────

def find_strace_problem():
    """Why nothing can be traced here, or ""."""
    if not shutil.which("strace"):
        return "strace is not installed, so no system call can be chosen to kill at"
    trial = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True)
    return f"strace does not work here: {trial.stderr.strip()}" if trial.returncode else ""


PROBLEM = find_strace_problem()
needs_strace = pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM)


def run_traced(place, *arguments, kill_at=None, calls=KILL_CALLS, program=()):
    """Run the script under strace, without its children and threads; or `program` in its place.
    `kill_at` = (name, n): SIGKILL at the n-th call of that name, which does not happen any more."""
    trace, options = place.folder.parent / "trace", ["-xx", "-s", "9999999", "-e", "signal=none"]
    options += ["-e", "trace=" + ",".join("?" + call for call in calls)]
    if kill_at:
        options += ["-e", "inject={}:signal=SIGKILL:when={}".format(*kill_at)]
    command = ["strace", "-o", str(trace), *options, sys.executable]
    run = subprocess.run([*command, *(program or place.arguments(*arguments))], cwd=place.folder,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env=place.environment(), timeout=SECONDS)
    run.trace = [call for call in map(parse_call, trace.read_text().splitlines()) if call]
    run.out, run.err = run.stdout.decode(), run.stderr.decode()
    return run


def parse_call(line):
    """A call of a trace: its name, its arguments as text, its result, the texts it was given."""
    if not (found := CALL.match(line)):
        return None
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in TEXT.findall(found[2])]
    result = None if found[3] == "?" else int(found[3])
    return SimpleNamespace(name=found[1], arguments=found[2], result=result, texts=texts)


def list_kill_points(place, run, after=None):
    """(name, n) of each call of a whole run to kill at, openat only in the place itself;
    `after` is a function that tells at which call to begin."""
    counts, points, here = {}, [], str(place.folder).encode()
    begun = after is None
    for call in run.trace:
        counts[call.name] = counts.get(call.name, 0) + 1
        if begun and (call.name != "openat" or call.texts[0].startswith(here)):
            points.append((call.name, counts[call.name]))
        begun = begun or after(call)
    return points


def play_script(arguments, folder, environment, output):
    """In a process of its own: run the script as a program, its output into a file."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, name in ((0, os.devnull), (1, f"{output}.out"), (2, f"{output}.err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), stream)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


# Importing openai takes longer than a whole turn: a process that has done it is forked for each.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["openai"])


def run_served(place, server, *arguments, kill_after=None):
    """Run the script against a server, with the real openai package; SIGKILL after some seconds."""
    environment = place.environment(OPENAI_API_KEY="none", OPENAI_BASE_URL=server.url)
    output = place.folder / f"served{len(list(place.folder.glob('served*.out')))}"
    given = (place.arguments(*arguments, "--model", "strict"), place.folder, environment, output)
    process = FORKS.Process(target=play_script, args=given)
    process.start()
    process.join(SECONDS if kill_after is None else kill_after)
    hung = process.is_alive()
    if hung:
        process.kill()
        process.join()
    assert not (hung and kill_after is None), f"the run did not end within {SECONDS} seconds"
    out, err = (Path(f"{output}.{kind}") for kind in ("out", "err"))
    texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in (out, err)]
    return SimpleNamespace(returncode=process.exitcode, out=texts[0], err=texts[1], killed=hung)


# ─── what must be true ───────────────────────────────────────────────────────────────────────────

def read_facts(module, path, stage=None):
    """What is in a log, read in the plainest way, next to the number of edits in the file."""
    facts = SimpleNamespace(stage=stage, bytes=path.read_bytes() if path else b"")
    facts.records = module.read_jsonl(path) if path else []
    facts.messages = module.load_session(path) if path else []
    facts.calls = [call for record in facts.records for call in record.get("tool_calls") or []]
    facts.results = [record for record in facts.records if record.get("role") == "tool"]
    facts.real = [result for result in facts.results if "verdict" not in result]
    answered = {result["tool_call_id"] for result in facts.results}
    facts.open = [call for call in facts.calls if call["id"] not in answered]
    facts.started = [record for record in facts.records if record.get("event") == "started"]
    facts.begun = {record["tool_call_id"] for record in facts.started}
    facts.applied = sum(result.get("verdict") == "applied" or result["content"].startswith("wrote")
                        for result in facts.results)
    return facts


def check_log(facts, seen="", known=0, last_words="parse_date.py is repaired"):
    """A valid history, and all that was seen is in the log.
    `known` results were there before this run; `last_words` are printed when they are on disk."""
    if facts.messages:
        assert judge(facts.messages) == [], "load_session gives an invalid history"
    check_seen(seen, facts.messages, facts.real[known:], last_words)
    return facts


def check_edits(facts):
    """Intent before effect, effect before result: the log and the file agree."""
    meant = [record for record in facts.started if record["tool"] == "edit_file"]
    assert facts.stage <= len(meant), "an edit is in the file whose `started` is not in the log"
    assert facts.applied <= facts.stage <= facts.applied + 1, (
        f"{facts.stage} edits are in the file, but the log says of {facts.applied} that they are")
    return facts


def check_killed(place, *seen, **known):
    """What must be true after a kill."""
    facts = read_facts(place.module, place.log(), place.stage())
    return check_edits(check_log(facts, *seen, **known))


def check_seen(seen, messages, real, last_words):
    """Each line `  tool target -> ...` that was printed has its result in the log, in order."""
    lines = [line for line in seen.splitlines() if line.startswith("  ") and " -> " in line]
    assert len(lines) <= len(real), f"printed as done, but not in the log: {lines[len(real):]}"
    held = [message["content"] for message in messages if message["role"] == "tool"]
    for line, result in zip(lines, real):
        assert result["content"] in held, f"the result of {line!r} is not in the messages"
    if last_words in seen:
        said = [message["content"] or "" for message in messages if message["role"] == "assistant"]
        assert any("is repaired" in each for each in said), "the last words were seen, and are lost"


def expect_verdict(call, facts):
    """What a dangling call must be told: the truth, as the test sees it."""
    if call["id"] not in facts.begun:
        return "not started"
    kinds = {"read_file": "interrupted", "bash": "outcome unknown"}
    seen = "applied" if facts.stage > facts.applied else "not applied"
    return kinds.get(call["function"]["name"], seen)


def check_resumed(place, server, before, run, done=True):
    """After a resume: nothing lost, the truth about each call, and each edit exactly once."""
    assert server.refusals == [], f"the strict server refused {server.refusals[0][1]}"
    # Streamed words are seen before they are on disk; what follows the turn comes after that.
    facts = check_killed(place, run.out, len(before.real), "to go on:")
    assert facts.bytes.startswith(before.bytes), "the old file is no prefix of the new one"
    told = {record["tool_call_id"]: record.get("verdict") for record in facts.results}
    held = [message["content"] for message in facts.messages]
    for call in [call for call in before.open if done or call["id"] in told]:
        verdict, name = expect_verdict(call, before), call["function"]["name"]
        said = told.get(call["id"])
        assert said == verdict, f"{name} was {verdict}, told: {said}"
    for result in before.real:
        assert result["content"] in held, f"a result is lost on resume: {result['content'][:60]}"
    if done:
        assert run.returncode == 0, f"the resume failed: {run.err}"
        assert facts.stage == facts.applied == len(place.stages) - 1, "not all edits are in place"
        assert sorted(told) == sorted(result["tool_call_id"] for result in facts.results)
        assert not facts.open and "is repaired" in facts.messages[-1]["content"]
    return facts

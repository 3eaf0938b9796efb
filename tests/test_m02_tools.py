"""Claim: a tool ends in bounded time and memory, stays in the workspace, and always answers."""

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from strict_server import is_tool
from test_m01_loop import SOURCE, ask, expect_red, load, name_of, part, say

import tinyharness

SECRET, INSIDE = "秘密 🔑", "里面 📄"
TESTS = str(Path(__file__).resolve().parent)


@contextlib.contextmanager
def time_limit(seconds):
    """End what hangs, as a failure that no `except Exception` can hold back."""
    def give_up(number, frame):
        pytest.fail(f"the tool hangs: no result after {seconds} seconds")
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_tools(impl, place, *calls, log=None, seconds=30) -> list:
    """Make calls (tool, arguments) in a turn in place/work; the results as the model reads them."""
    table, results = dict(part(impl, "TOOLS")), []
    for name, _ in calls:
        assert hasattr(impl, name), f"the file has no function {name}"
        table[name] = getattr(impl, name)
        if not hasattr(table[name], "plans"):
            part(impl, "tool")({})(table[name])

    def model(messages, tools):
        # Asked what is worth knowing, it is shown no result, and those it was shown stay.
        results[:] = [each["content"] for each in messages if each["role"] == "tool"] or results
        numbered = [(f"c{number}", *call) for number, call in enumerate(calls)]
        return say("好了") if messages[-1]["role"] == "tool" else ask(*numbered)

    (place / "work").mkdir(parents=True, exist_ok=True)
    log = log or place / f"{len(os.listdir(place))}.jsonl"
    with part(impl, "Session")(str(log), str(place / "work")) as session, time_limit(seconds):
        part(impl, "run_turn")(session, "用工具 🔧", model, table, show=lambda *_, **__: None)
    return results


def run_bash(impl, place, command, **arguments) -> str:
    return run_tools(impl, place, ("bash", {"command": command, **arguments}), seconds=4)[0]


def expect_work(impl, place):
    """The file tools do not answer everything with an error."""
    texts = run_tools(impl, place, ("write_file", {"path": "可以.txt", "content": "一二三"}),
                      ("edit_file", {"path": "可以.txt", "old": "二", "new": "🐞"}),
                      ("read_file", {"path": "可以.txt"}))
    assert "一🐞三" in texts[2], f"an ordinary file must still be open to the tools: {texts}"


def wait_until(condition, seconds=10) -> bool:
    """Poll a condition until it holds or the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        select.select([], [], [], 0.01)
    return True


# ── bash ──────────────────────────────────────────────────────────────────────────────────────────

SAYS = {  # command: patterns that its result must hold
    "printf 修复🐞": ["修复🐞", r"exit\D*0\b"],
    "echo out; echo err >&2; exit 3": ["out", "err", r"exit\D*3\b"],
    "true": [r"exit\D*0\b"],
    "false": [r"exit\D*1\b"],
    "kill -9 $$": [r"exit\D*(9|137)\b"],
    r"printf '\377\376 好 \360\237'": ["\ufffd", " 好 "],
    "seq 3": ["1\n2\n3"],
    "[[ 1 < 2 ]] && echo 'bash, and no sh'": ["bash, and no sh"],
    "pwd": ["/work\n"],
}


def check_bash_shows_output_and_exit_code(impl, place):
    results = run_tools(impl, place, *[("bash", {"command": command}) for command in SAYS])
    for (command, patterns), text in zip(SAYS.items(), results):
        for pattern in patterns:
            assert re.search(pattern, text), f"{command!r} must show {pattern!r}: {text!r}"


def check_bash_has_no_input(impl, place):
    reading, writing, kept = *os.pipe(), os.dup(0)
    os.dup2(reading, 0)  # what would wait for a person at a terminal
    try:
        text = run_bash(impl, place, 'cat; read -r line; echo "read: $? 好"', timeout=1)
    finally:
        os.dup2(kept, 0)
        for descriptor in (reading, writing, kept):
            os.close(descriptor)
    assert "read: 1 好" in text, f"cat waits for input that nobody can give: close stdin. {text!r}"


ENDS = {  # what must not live on: (command, seconds, pattern of the result)
    "what is left in the background": ("sleep 30 & echo hi", 2, r"^hi\n[^a-z]*exit\D*0\b"),
    "a command that timed out": ("echo 前; sleep 30; echo 后", 0.3, "^前.*timed out.*outcome unknown"),
    "a grandchild of one": ("(sleep 30 & wait) & wait", 0.3, "timed out.*outcome unknown"),
    "one that ignores signals": (
        "trap '' TERM INT HUP; while :; do sleep 30; done", 0.3, "timed out.*outcome unknown"),
    "one that is stopped": ("kill -STOP $$", 0.3, "timed out.*outcome unknown"),
}


@contextlib.contextmanager
def lifeline(place, command):
    """The command, and whether it has ended: each of its processes keeps a pipe of ours open."""
    pipe, said = place / f"lifeline-{len(os.listdir(place))}", bytearray()
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def has_ended():
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(reading, 100)
            said.extend(chunk)
            return bool(said) and not chunk
        return False

    try:
        yield f"exec 9>../{pipe.name}; echo $$ >&9; {command}", has_ended
    finally:
        if not has_ended() and said:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(said), signal.SIGKILL)
        os.close(reading)


def check_bash_leaves_no_process(impl, place):
    for what, (command, seconds, pattern) in ENDS.items():
        with lifeline(place, command) as (command, has_ended):
            text = run_bash(impl, place, command, timeout=seconds)
            assert re.search(pattern, text, re.DOTALL), (
                f"{what}: wait for the command, not for its pipe, and say what is known: {text!r}")
            assert wait_until(has_ended, 2), (
                f"{what} lives on behind its result: kill the whole process group")


def check_bash_has_its_own_group(impl, place):
    text = run_bash(impl, place, "cut -d' ' -f5 /proc/$$/stat")
    assert text.split()[0].isdigit() and int(text.split()[0]) != os.getpgrp(), (
        "the command is in the harness's process group: Ctrl-C reaches both, and killing the group "
        "kills the harness")


@contextlib.contextmanager
def own_session(place, command):
    """A command line that leaves another one behind in a session of its own, with our pipe."""
    try:
        yield (f"setsid sh -c 'echo $$ >../pid; exec {command}' & "
               "until [ -s ../pid ]; do sleep 0.01; done; echo hi")
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((place / "pid").read_text()), signal.SIGKILL)


def check_bash_does_not_wait_for_the_pipe(impl, place):
    with own_session(place, "sleep 30") as command:
        text = run_bash(impl, place, command, timeout=2)
    assert text.startswith("hi\n") and re.search(r"exit\D*0\b", text), (
        f"the command has ended, but a grandchild in another session keeps its pipe: {text!r}")


def check_bash_answers_in_a_flood_that_goes_on(impl, place):
    # A new process for each piece keeps the flood far below what would fill the memory.
    flood = 'sh -c "while head -c 99999 /dev/zero; do echo 修复; done"'
    with own_session(place, flood) as command:
        text = run_bash(impl, place, command.replace("echo hi", "exit 7"), timeout=2)
    assert re.search(r"exit\D*7\b", text[-100:]) and len(text) < 100_000, (
        f"a grandchild in another session writes on and on: {text[:80]!r} … {text[-80:]!r}")
    assert re.search(r"\d{4}", text), "a note says how much was cut"


def check_bash_hides_api_keys(impl, place):
    given = {"OPENAI_API_KEY": SECRET, "ANTHROPIC_API_KEY": SECRET, "HARMLESS": "看得见"}
    before = dict(os.environ)
    os.environ.update(given)
    try:
        text = run_bash(impl, place, 'env; echo "<$OPENAI_API_KEY>"')
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert SECRET not in text, "a command can print the API key, and then it is in the log"
    assert "HARMLESS=看得见" in text and "PATH=" in text, "all else of the environment is needed"


MEASURE = """
import importlib.util, json, pathlib, re, sys
sys.path[:0] = sys.argv[5:]
import test_m02_tools
spec = importlib.util.spec_from_file_location("measured", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
call = sys.argv[3], json.loads(sys.argv[4])
text = test_m02_tools.run_tools(module, pathlib.Path(sys.argv[2]), call, seconds=60)[0]
peak = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]
print(json.dumps([int(peak) * 1024, text]))
"""


def measure(impl, place, name, **arguments) -> tuple:
    """The peak memory, in bytes, of a process that runs one tool, and the tool's result."""
    command = [sys.executable, "-c", MEASURE, impl.__file__, str(place), name,
               json.dumps(arguments), TESTS, str(Path(tinyharness.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    return tuple(json.loads(done.stdout))


def check_bash_output_costs_bounded_memory(impl, place, size=500_000_000):
    flood = "echo 头; yes 修复 | head -c {}; echo 尾"
    little, text = measure(impl, place, "bash", command=flood.format(1000))
    assert text.count("修复") == 143 and "cut" not in text, "a little output is kept whole"
    much, text = measure(impl, place, "bash", command=flood.format(size))
    assert much - little < 40_000_000, (
        f"{size:,} bytes of output cost {much - little:,} bytes of memory: cut while you read")
    assert text.startswith("头") and "尾" in text[-100:] and len(text) < 100_000, (
        f"head and tail are kept, {len(text):,} characters in all: {text[:60]!r} … {text[-60:]!r}")
    cut = max(map(int, re.findall(r"\d+", text.replace(",", ""))))
    assert size - 100_000 < cut <= size + 10, "a note says how much was cut"


# ── the file tools ────────────────────────────────────────────────────────────────────────────────

EDITS = {  # what is special: (bytes of the file, old, new, the bytes then or a number of matches)
    "one match": ("修复 one\n".encode(), "one", "二 🐞", "修复 二 🐞\n".encode()),
    "no match": (b"one\n", "zwei", "二", 0),
    "two matches": (b"one one\n", "one", "二", 2),
    "two that overlap": (b"aaa", "aa", "b", 2),
    "no old text": (b"one", "", "b", 0),
    "no new text": (b"one\n", "one\n", "", b""),
    "signs of a pattern": (b"a+b (a.b) \\1", "(a.b) \\1", "\\2 [a", b"a+b \\2 [a"),
    "carriage returns": (b"one\r\ntwo\r\nthree", "two", "2", b"one\r\n2\r\nthree"),
    "lone carriage returns": (b"one\rtwo\r\n\n", "two", "2", b"one\r2\r\n\n"),
    "bytes that are no text": (b"\xef\xbb\xbf\xff\x00 one \xe4\xbf \x85\xa0", "one", "修",
                               b"\xef\xbb\xbf\xff\x00 \xe4\xbf\xae \xe4\xbf \x85\xa0"),
}


def check_edit_file_changes_one_match_only(impl, place):
    (place / "work").mkdir()
    calls = []
    for number, (before, old, new, _) in enumerate(EDITS.values()):
        (place / "work" / f"{number} 文件").write_bytes(before)
        calls.append(("edit_file", {"path": f"{number} 文件", "old": old, "new": new}))
    results = run_tools(impl, place, *calls)
    for number, (what, (before, _, _, want)) in enumerate(EDITS.items()):
        after = (place / "work" / f"{number} 文件").read_bytes()
        if isinstance(want, bytes):
            assert after == want, f"{what}: the file should hold {want}, and holds {after}"
        else:
            assert after == before, f"{what}: there are {want} matches, so nothing changes"
            assert str(want) in results[number], (
                f"{what}: the error says that there are {want} matches, not {results[number]!r}")


def check_write_file_writes_every_byte(impl, place):
    texts = {"新/文件夹/a.txt": "修复 🐞\r\nb\n\x00\u2028", "empty": "", "a.txt": "二"}
    calls = [("write_file", {"path": path, "content": text}) for path, text in texts.items()]
    results = run_tools(impl, place, ("write_file", {"path": "a.txt", "content": "一一一"}), *calls)
    for path, text in texts.items():
        assert (place / "work" / path).read_bytes() == text.encode(), f"{path}: {results}"
    assert all(text.strip() for text in results)


def check_read_file_reads_a_window(impl, place):
    (place / "work").mkdir()
    (place / "work" / "字.txt").write_bytes("".join(f"行 {n}\n" for n in range(1, 8)).encode())
    (place / "work" / "bytes").write_bytes(b"\xff\xfe " + "好".encode() + b"\r\n")
    (place / "work" / "empty").write_bytes(b"")
    windows = [{"path": "字.txt", "start": 3, "lines": 2}, {"path": "字.txt"}, {"path": "bytes"},
               {"path": "empty"}, {"path": "字.txt", "start": 99}, {"path": "字.txt", "start": 0}]
    results = run_tools(impl, place, *[("read_file", window) for window in windows])
    assert results[0].startswith("行 3\n行 4\n") and "行 5" not in results[0], results[0]
    assert "3" in results[0][len("行 3\n行 4\n"):], "it says how many lines are left"
    assert results[1].count("行") == 7 and "\ufffd" in results[2] and "好" in results[2], results
    assert all(text.strip() for text in results), "no result is empty"


def check_read_file_costs_bounded_memory(impl, place, size=80_000_000):
    (place / "work").mkdir()
    for name, length in (("little", 1000), ("much", size)):
        line = "修复 🐞 一行\n".encode()
        with open(place / "work" / name, "wb") as file:
            for _ in range(length // len(line) // 1000 + 1):
                file.write(line * 1000)
    little, _ = measure(impl, place, "read_file", path="little")
    much, text = measure(impl, place, "read_file", path="much")
    assert much - little < 40_000_000, (
        f"a file of {size:,} bytes costs {much - little:,} bytes of memory: read what is wanted")
    assert len(text) < 100_000 and (text.startswith("修复") or "large" in text), text[:200]


CHANGES = (("write_file", {"path": "f.txt", "content": "新 ✨"}),
           ("edit_file", {"path": "f.txt", "old": INSIDE, "new": "新 ✨"}))


def check_files_are_replaced_whole(impl, place):
    (place / "work").mkdir()
    file = place / "work" / "f.txt"
    for change in CHANGES:
        for mode in (0o755, 0o600, 0o444, 0o664):
            file.unlink(missing_ok=True)
            file.write_text(INSIDE)
            file.chmod(mode)
            with open(file, encoding="utf-8") as reader:
                text = run_tools(impl, place, change)[0]
                assert reader.read() == INSIDE, (
                    "the old bytes are written over: a kill in the middle leaves half a file. "
                    "Write another file, sync it, and rename it")
            assert file.read_text() == "新 ✨", text
            assert stat.S_IMODE(file.stat().st_mode) == mode, "the mode of the file is lost"
    assert os.listdir(place / "work") == ["f.txt"], "a temporary file is left behind"


def check_links_inside_stay_links(impl, place):
    (place / "work" / "sub").mkdir(parents=True)
    real, link = place / "work" / "sub" / "real.txt", place / "work" / "f.txt"
    link.symlink_to("sub/real.txt")
    for change in CHANGES:
        real.write_text(INSIDE)
        text = run_tools(impl, place, change)[0]
        assert link.is_symlink() and real.read_text() == "新 ✨", (
            f"a link inside the workspace is followed, and stays a link: {text!r}")


def check_full_disk_leaves_the_old_file(impl, place):
    (place / "work").mkdir()
    file, old = place / "work" / "f.txt", INSIDE + "字" * 20_000
    file.write_text(old)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The log stays far below this limit, and the new file does not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        text = run_tools(impl, place, CHANGES[1])[0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "error" in text.lower(), text
    assert file.read_text() == old, "what could not be written has destroyed the old file"
    assert os.listdir(place / "work") == ["f.txt"], "a temporary file is left behind"


NAMES = ("file.txt", "sub/in.txt", "..dots.txt", "sub/...", "名字🐞.txt", "tinyharness.txt")
LINKS = {"link.txt": "{out}/secret.txt", "near.txt": "../out/secret.txt", "away": "{out}",
         "chain": "away", "chain.txt": "sub/hop.txt", "sub/hop.txt": "../link.txt", "self": ".",
         "sub/deep": "../../out", "parent": "..", "loop": "loop", "ping": "pong", "pong": "ping",
         "new.txt": "{out}/new.txt", "root": "/", "kernel": "/proc/self/root", "down": "sub",
         "twin": "../work-evil", "sub/up": "..", "via": "sub/up/away", "in.txt": "file.txt",
         "sly": "loop/../away", "slier": "loop/../sly", "sliest": "missing/../loop/../away"}
WAYS = """
../out/secret.txt  ../out/new.txt  ./../out/secret.txt  sub/../../out/secret.txt  ../out//secret.txt
sub/./../.././out/secret.txt  missing/../../out/secret.txt  file.txt/../../out/secret.txt
../work/../out/secret.txt  ../work-evil/secret.txt  ../work-evil/new.txt  ../new.txt  ../f.txt
{out}/secret.txt  {out}/new.txt  /{out}/secret.txt  //{out}/secret.txt  {work}-evil/secret.txt
{work}/../out/secret.txt  {out}/../out/secret.txt  {work}/away/secret.txt  {work}/link.txt
link.txt  near.txt  chain.txt  sub/hop.txt  new.txt  ./link.txt  sub/../link.txt  link.txt/
away/secret.txt  away/new.txt  away/new/new.txt  chain/secret.txt  sub/deep/secret.txt
via/secret.txt  away/../out/secret.txt  away/../work-evil/secret.txt  sub/deep/../out/secret.txt
twin/secret.txt
self/link.txt  self/self/away/secret.txt  self/../out/secret.txt  parent/out/secret.txt
sub/up/link.txt  parent/new.txt  root{out}/secret.txt  kernel{out}/secret.txt
/proc/self/root{out}/secret.txt
loop/../away/secret.txt  loop/../link.txt  loop/../away/new.txt  ping/../away/secret.txt
ping/../new.txt  sub/../loop/../near.txt  loop/../loop/../away/secret.txt  loop/../../out/secret.txt
sly/secret.txt  slier/secret.txt  sliest/secret.txt  loop/../sly/secret.txt
loop/../slier/new.txt  loop/../sliest/secret.txt  loop/../sliest/new.txt
missing/../away/secret.txt  missing/../link.txt  {deep}out/secret.txt  {deep}out/new.txt
""".split()
IN = """
file.txt  ./file.txt  sub/../file.txt  {work}/file.txt  self/file.txt  in.txt  sub/up/file.txt
sub//in.txt  down/in.txt  ..dots.txt  sub/...  名字🐞.txt  tinyharness.txt  ../work/file.txt
away/../work/file.txt
""".split()


def make_ways(place) -> dict:
    """A workspace with links that lead out of it; the names for the paths in the tables."""
    for name in ("work/sub", "out", "work-evil"):
        (place / name).mkdir(parents=True)
    for name in ("out", "work-evil"):
        (place / name / "secret.txt").write_text(SECRET)
    for name in NAMES:
        (place / "work" / name).write_text(INSIDE)
    names = {"out": place / "out", "work": place / "work", "deep": "sub/../" * 200 + "../"}
    for name, target in LINKS.items():
        (place / "work" / name).symlink_to(target.format(**names))
    return names


def list_outside(place) -> dict:
    """What is beside the workspace, the logs apart, with its bytes."""
    files = [each for each in place.rglob("*") if each.is_file() and each.suffix != ".jsonl"]
    return {each: each.read_bytes() for each in files if place / "work" not in each.parents}


def try_paths(impl, place, paths, **limit) -> list:
    """(path, tool, result) of reading, editing and writing at each path."""
    calls = [(name, {"path": path, **more}) for path in paths for name, more in (
        ("read_file", {}), ("edit_file", {"old": "秘密", "new": "改了"}),
        ("write_file", {"content": "改了 ✏"}))]
    results = run_tools(impl, place, *calls, **limit)
    return [(call[1]["path"][-60:], call[0], text) for call, text in zip(calls, results)]


def check_no_path_leads_out(impl, place, ways=WAYS):
    names = make_ways(place)
    before = list_outside(place)
    tried = try_paths(impl, place, [way.format(**names) for way in ways])
    open_ways = [(path, name, text[:40]) for path, name, text in tried
                 if SECRET in text or not re.search("error|refused|denied", text, re.IGNORECASE)]
    changed = [str(each)[len(str(place)):] for each in {*before, *list_outside(place)}
               if before.get(each) != list_outside(place).get(each)]
    assert not open_ways and not changed, f"ways out: {open_ways}; changed outside: {changed}"
    told = [text for path, name, text in tried if path == "../out/secret.txt"]
    assert all("workspace" in text for text in told), f"the refusal must say why: {told}"


def check_paths_inside_are_open(impl, place):
    names = make_ways(place)
    # A workspace may itself be behind a link, as temporary folders are on some systems.
    (place / "work").rename(place / "moved")
    (place / "work").symlink_to("moved")
    paths = [path.format(**names) for path in IN]
    calls = [call for path in paths for call in (
        ("edit_file", {"path": path, "old": INSIDE, "new": "新 ✨"}), ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": INSIDE}))]
    results = run_tools(impl, place, *calls)
    for path, text in zip(paths, results[1::3]):
        assert "新 ✨" in text, f"{path} is inside the workspace: {text}"


def check_temporary_file_follows_no_link(impl, place):
    make_ways(place)
    # As a foreign repository, or a command of the model, could put it there.
    for name in (f".tinyharness-{os.getpid()}.tmp", "file.txt.tmp", ".file.txt.tmp", "file.txt~"):
        (place / "work" / name).symlink_to(place / "out" / "secret.txt")
    before, file = list_outside(place), place / "work" / "file.txt"
    text = run_tools(impl, place, ("write_file", {"path": "file.txt", "content": "新 ✨"}))[0]
    assert list_outside(place) == before, "the temporary file was written through a link: " + text
    assert file.read_text() in (INSIDE, "新 ✨") and not file.is_symlink(), text
    expect_work(impl, place / "elsewhere")


def check_what_is_no_file_does_not_hang(impl, place):
    (place / "work" / "folder").mkdir(parents=True)
    work, (master, slave) = place / "work", os.openpty()
    terminal = os.ttyname(slave)
    os.mkfifo(work / "pipe")
    (work / "pipe link").symlink_to("pipe")
    (work / "terminal").symlink_to(terminal)
    # Each look at the last of these finds a longer path, and the loop keeps it from being an error.
    for name, target in (("loop", "loop"), ("growing", "missing/../loop/../growing/more")):
        (work / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(work, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{folder}/socket")  # the whole path may be too long
        paths = ["pipe", "pipe link", "terminal", terminal, "socket", "folder", ".", "", "sub/..",
                 "loop", "growing", "growing/a.txt", "loop/../growing/a.txt"]
        tried = try_paths(impl, place, paths, seconds=2)
    for descriptor in (master, slave, folder):
        os.close(descriptor)
    taken = [each for each in tried if not re.search("error|refused", each[2], re.IGNORECASE)]
    assert not taken, f"what is no file can be endless, and is refused: {taken}"
    assert stat.S_ISFIFO((work / "pipe").stat().st_mode), "the pipe was replaced by a file"
    expect_work(impl, place)


def check_bad_paths_are_answered(impl, place):
    (place / "work").mkdir()
    (place / "work" / "file.txt").write_text(INSIDE)
    paths = ["file.txt/below", "名" * 300, "x/" * 3000 + "y", "a\0b", "\ud83d", "nothing", 7, None,
             ["file.txt"], {}, True]
    calls = [("read_file", {}), ("edit_file", {"old": "a", "new": "b"})]
    # What can be read nowhere can be written where the name is a possible one.
    calls = [(name, {**more, "path": path}) for path in paths for name, more in calls] + [
        ("write_file", {"path": path, "content": "改了"}) for path in paths if len(str(path)) > 10]
    results = run_tools(impl, place, *calls)
    assert len(results) == len(calls), "a bad path ended the turn; the model should read of it"
    for call, text in zip(calls, results):
        assert re.search("error|refused", text, re.IGNORECASE), (str(call)[:60], text)
    assert (place / "work" / "file.txt").read_text() == INSIDE
    expect_work(impl, place)


def check_harness_files_are_refused(impl, place):
    sessions = place / "work" / "sub" / ".tinyharness" / "sessions"
    for folder in (place / "work" / ".tinyharness" / "sessions", sessions):
        folder.mkdir(parents=True)
        (folder / "old.txt").write_text(SECRET)
    (place / "work" / "log").symlink_to(".tinyharness/sessions")
    paths = [".tinyharness/sessions/old.txt", "./sub/.tinyharness/sessions/old.txt", "log/old.txt",
             "log/new.txt", ".tinyharness/new.txt", "sub/../.tinyharness/sessions/old.txt",
             str(sessions / "old.txt")]
    before = {each: each.read_bytes() for each in place.rglob("*.txt")}
    open_ways = [(path, name, text) for path, name, text in try_paths(impl, place, paths)
                 if SECRET in text or "error" not in text.lower()]
    after = {each: each.read_bytes() for each in place.rglob("*.txt")}
    assert not open_ways and after == before, f"the harness's own files are open: {open_ways}"
    expect_work(impl, place)


def check_own_log_is_refused(impl, place):
    (place / "work").mkdir()
    log = place / "work" / "会话.jsonl"
    for name, arguments in (("write_file", {"content": "gone"}),
                            ("edit_file", {"old": '"session"', "new": '"gone"'})):
        before = log.read_bytes() if log.exists() else b""
        error = None
        try:
            run_tools(impl, place, (name, {"path": log.name, **arguments}), log=log)
        except NotImplementedError:
            raise
        except Exception as raised:
            error = raised
        after = log.read_bytes()
        assert b'"session"' in after and after.startswith(before) and not error, (
            f"{name} has written over the log of its own session: {after[:80]} {error!r}")
    expect_work(impl, place)


# ── the schema ────────────────────────────────────────────────────────────────────────────────────

EVERY = '''
def every(session, text: str, count: int, ratio: float, flag: bool, items: list, table: dict,
          names: list[str], limit: int = 3, note: str = "无") -> str:
    """Take one of each kind,
    and say so 🧰.
    """
'''
KINDS = {"text": "string", "count": "integer", "ratio": "number", "flag": "boolean",
         "items": "array", "table": "object", "names": "array", "limit": "integer",
         "note": "string"}
SIGNATURES = {  # the parameters of a tool: those that the model must fill
    "session": [],
    "session, path: str": ["path"],
    "session, path: str = 'a'": [],
    "session, path: str, lines: int = 9": ["path"],
    "session, path: str, hidden=9": ["path"],
    "session, *, path: str": ["path"],
    "session, path: str, *, lines: int = 9": ["path"],
    "session, path: str = 'a', *, lines: int": ["lines"],
}


def make_function(source) -> object:
    names = {}
    exec(compile(source, "<tool>", "exec", dont_inherit=True), names)
    return names.popitem()[1]


def check_describe_tool_reads_the_signature(impl, place):
    assert hasattr(impl, "describe_tool"), "the file has no function describe_tool"
    for future in ("", "from __future__ import annotations\n"):
        schema = impl.describe_tool(make_function(future + EVERY))
        assert is_tool(schema), f"a strict provider refuses this: {schema}"
        function = schema["function"]
        properties = function["parameters"]["properties"]
        assert function["name"] == "every"
        assert " ".join(function["description"].split()) == "Take one of each kind, and say so 🧰."
        assert {name: each.get("type") for name, each in properties.items()} == KINDS, (
            f"each parameter with a type is the model's, and the session is not: {properties}")
        assert function["parameters"]["required"] == list(KINDS)[:-2], "a default makes it optional"


def check_describe_tool_knows_what_is_required(impl, place):
    assert hasattr(impl, "describe_tool"), "the file has no function describe_tool"
    for parameters, required in SIGNATURES.items():
        function = make_function(f"def act({parameters}):\n    'Act 做.'")
        found = impl.describe_tool(function)["function"]["parameters"]
        assert found.get("required", []) == required, (
            f"of ({parameters}) the model must fill {required}, not {found.get('required')}")


def check_tool_extends_a_table(impl, place):
    assert hasattr(impl, "tool"), "the file has no decorator tool"
    table = {}
    for version in (1, 2):
        source = f"def greet(session, name: str):\n    'Say hello 你好.'\n    return name * {version}"
        greet = impl.tool(table)(make_function(source))
        assert list(table) == ["greet"] and table["greet"] is greet
        assert greet(None, "好") == "好" * version, (
            "a tool that is defined again, as when a cell is run twice, takes the old one's place")


BASH = [
    check_bash_shows_output_and_exit_code, check_bash_has_no_input, check_bash_leaves_no_process,
    check_bash_has_its_own_group, check_bash_does_not_wait_for_the_pipe,
    check_bash_answers_in_a_flood_that_goes_on, check_bash_hides_api_keys,
    check_bash_output_costs_bounded_memory,
]
FILES = [
    check_edit_file_changes_one_match_only, check_write_file_writes_every_byte,
    check_read_file_reads_a_window, check_read_file_costs_bounded_memory,
    check_files_are_replaced_whole, check_links_inside_stay_links,
    check_full_disk_leaves_the_old_file, check_no_path_leads_out, check_paths_inside_are_open,
    check_temporary_file_follows_no_link, check_what_is_no_file_does_not_hang,
    check_bad_paths_are_answered, check_harness_files_are_refused, check_own_log_is_refused,
]
TABLE = [check_describe_tool_reads_the_signature, check_describe_tool_knows_what_is_required,
         check_tool_extends_a_table]


@pytest.mark.parametrize("check", [*BASH, *FILES, *TABLE], ids=name_of)
def test_tools(impl, check, tmp_path):
    check(impl, tmp_path)


def check_bash_time_is_limited(impl, place):
    for seconds in (5, 1e9, "5", "inf", "nan", -1, 0):
        text = run_bash(impl, place, "sleep 1", timeout=seconds)
        assert "timed out" in text or "error" in text, f"timeout {seconds!r} is no limit: {text}"


SHORT = ("50_000_000, 600", "50_000_000, 0.2")


def test_bash_time_is_limited(tmp_path):
    check_bash_time_is_limited(load(tmp_path, SOURCE, SHORT), tmp_path)


def test_the_tools_say_what_they_need():
    schemas = [tinyharness.describe_tool(each)["function"] for each in tinyharness.TOOLS.values()]
    assert {each["name"]: each["parameters"]["required"] for each in schemas} == {
        "read_file": ["path"], "write_file": ["path", "content"],
        "edit_file": ["path", "old", "new"], "bash": ["command"],
        "search_sessions": ["query"]}
    assert {each["name"]: sorted(each["parameters"]["properties"]) for each in schemas} == {
        "read_file": ["lines", "path", "start"], "write_file": ["content", "path"],
        "edit_file": ["new", "old", "path"], "bash": ["command", "timeout"],
        "search_sessions": ["query"]}


# ── Proofs: each check refuses the stub, the chapter's tools, and the script without a protection ─

STUB = """
def stub(*others, **more):
    raise NotImplementedError

def bash(session, command: str, timeout: float = 120): stub()
def read_file(session, path: str, start: int = 1, lines: int = 2000): stub()
def write_file(session, path: str, content: str): stub()
def edit_file(session, path: str, old: str, new: str): stub()
describe_tool = stub
tool = stub
tool.plans = False
"""
CHAPTER = """
import pathlib, subprocess

def safe_path(session, path):
    full = (pathlib.Path(session.workspace) / path).resolve()
    if not full.is_relative_to(pathlib.Path(session.workspace).resolve()):
        raise ValueError(f"path escapes the workspace: {path}")
    return full

def bash(session, command: str, timeout: float = 120) -> str:
    try:
        done = subprocess.run(command, shell=True, cwd=session.workspace, capture_output=True,
                              text=True, timeout=timeout)
        return (done.stdout + done.stderr).strip()[:50_000] or "(no output)"
    except subprocess.TimeoutExpired:
        return "Error: timed out"

def read_file(session, path: str, start: int = 1, lines: int = 2000) -> str:
    text = safe_path(session, path).read_text().splitlines()
    return "\\n".join(text[start - 1:][:lines])[:50_000]

def write_file(session, path: str, content: str) -> str:
    file = safe_path(session, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return f"Wrote {len(content)} bytes to {path}"

def edit_file(session, path: str, old: str, new: str) -> str:
    file = safe_path(session, path)
    text = file.read_text()
    if old not in text:
        return f"Error: text not found in {path}"
    file.write_text(text.replace(old, new, 1))
    return f"Edited {path}"
"""
CHAPTER_IS_RIGHT = {check_write_file_writes_every_byte, check_links_inside_stay_links,
                    check_paths_inside_are_open, check_bad_paths_are_answered,
                    check_temporary_file_follows_no_link}
if sys.version_info >= (3, 13):  # where realpath resolves what stands behind a loop too
    CHAPTER_IS_RIGHT.add(check_no_path_leads_out)
SMALLER = {
    check_bash_output_costs_bounded_memory: {"size": 100_000_000},
    check_no_path_leads_out: {"ways": ["../out/secret.txt", "../work-evil/secret.txt", "link.txt",
                                       "loop/../away/secret.txt"]},
}
# These wait for a while, or fill memory, before the mistake shows.
SLOW = {check_bash_answers_in_a_flood_that_goes_on, check_read_file_costs_bounded_memory,
        check_bash_does_not_wait_for_the_pipe, check_bash_time_is_limited}


def mark_slow(table, check_of):
    marks = {True: [pytest.mark.long], False: []}
    return [pytest.param(each, marks=marks[check_of(each) in SLOW]) for each in table]


def red(check, place, module, words=None):
    expect_red(lambda *both: check(*both, **SMALLER.get(check, {})), module, place, words)


@pytest.mark.parametrize("check", [*BASH, *FILES, *TABLE], ids=name_of)
def test_stub_is_refused(check, tmp_path):
    with pytest.raises((AssertionError, pytest.fail.Exception, NotImplementedError)):
        check(load(tmp_path, STUB), tmp_path)


@pytest.mark.parametrize("check", mark_slow([*BASH, *FILES], lambda check: check), ids=name_of)
def test_chapter_is_refused(check, tmp_path):
    if check in CHAPTER_IS_RIGHT:
        check(load(tmp_path, CHAPTER), tmp_path)
    else:
        red(check, tmp_path, load(tmp_path, CHAPTER))


BASH_PROTECTIONS = {  # what is taken out: (the check that sees it, words of its message, old, new)
    "closed stdin": (check_bash_has_no_input, "cat waits for input",
                     '"stdin": subprocess.DEVNULL, ', ""),
    "killing the whole group": (check_bash_leaves_no_process, "kill the whole process group",
                                "os.killpg(process.pid", "os.kill(process.pid"),
    "a signal that nobody can ignore": (
        check_bash_leaves_no_process, "one that ignores signals",
        "os.killpg(process.pid, signal.SIGKILL)", "os.killpg(process.pid, signal.SIGTERM)",
        "        process.wait()\n", "        process.wait(1)\n"),
    "an own group": (check_bash_has_its_own_group, "killing the group kills the harness",
                     ', "start_new_session": True', ""),
    "the patience of a second": (check_bash_does_not_wait_for_the_pipe, "hangs",
                                 "reader.join(1)", "reader.join(20)"),
    "cutting while it reads": (
        check_bash_output_costs_bounded_memory, "cut while you read",
        "            del output[HEAD_BYTES:-TAIL_BYTES]\n", ""),
    "the tail": (check_bash_output_costs_bounded_memory, "head and tail are kept",
                 "            del output[HEAD_BYTES:-TAIL_BYTES]\n",
                 "            del output[HEAD_BYTES + TAIL_BYTES:]\n"),
    "hidden API keys": (check_bash_hides_api_keys, "print the API key",
                        ' if "API_KEY" not in name', ""),
    "decoding that forgives": (check_bash_shows_output_and_exit_code, "must show",
                               'output.decode("utf-8", "replace")', "output.decode()"),
    "the exit code of success": (check_bash_shows_output_and_exit_code, "must show 'exit",
                                 'f"exit code {born[0].wait(limit)}"',
                                 '(code := born[0].wait(limit)) and f"exit code {code}"'),
    "the longest time": (check_bash_time_is_limited, "is no limit",
                         "min(BASH_SECONDS, float(timeout))", "float(timeout)"),
    "a limit that NaN cannot pass": (check_bash_time_is_limited, "timeout 'nan' is no limit",
                                     "min(BASH_SECONDS, float(timeout))",
                                     "min(float(timeout), BASH_SECONDS)"),
}
FILE_PROTECTIONS = {
    "counting overlaps": (
        check_edit_file_changes_one_match_only, "overlap",
        'len(re.findall(b"(?=" + re.escape(old.encode()) + b")", data)) if old else 0',
        "data.count(old.encode()) if old else 0"),
    "one match only": (check_edit_file_changes_one_match_only, "two matches",
                       "    if matches != 1:", "    if matches < 1:"),
    "bytes, and no text": (
        check_edit_file_changes_one_match_only, "carriage returns",
        "data = (target := inside(session, path)).read_bytes()",
        'data = (target := inside(session, path)).read_text(errors="replace").encode()'),
    "the rename": (check_files_are_replaced_whole, "leaves half a file",
                   "temporary.replace(path)", "path.write_bytes(data)"),
    "the mode": (check_files_are_replaced_whole, "the mode of the file is lost",
                 "            if path.exists():\n", "            if False:\n"),
    "tidying up": (check_full_disk_leaves_the_old_file, "a temporary file is left behind",
                   "        stack.callback(temporary.unlink, missing_ok=True)\n", ""),
    "the walls": (check_no_path_leads_out, "'../out/secret.txt'",
                  " or not real.is_relative_to(root)", ""),
    "walls at the name's end": (
        check_no_path_leads_out, "'../work-evil/secret.txt'", "not real.is_relative_to(root)",
        "not str(real).startswith(str(root))"),
    "following links": (check_no_path_leads_out, "'link.txt'",
                        "real = (root / path).resolve()",
                        "real = pathlib.Path(os.path.normpath(root / path))",
                        "real != real.resolve() or ", ""),
    "writing where a link leads": (check_links_inside_stay_links, "stays a link",
                                   "    return real\n", "    return root / path\n"),
    "a look at the kind of file": (check_what_is_no_file_does_not_hang, "hangs",
                                   "if own or endless or", "if own or"),
    "a look at the size": (check_read_file_costs_bounded_memory, "read what is wanted",
                           " and real.stat().st_size <= FILE_BYTES", ""),
    "the folder of the harness": (
        check_harness_files_are_refused, "are open",
        ' or ".tinyharness" in real.parts[len(root.parts) :]', ""),
    "the session's own log": (check_own_log_is_refused, "written over the log",
                              "own = real == log or ", "own = "),
}
if sys.version_info < (3, 13):
    FILE_PROTECTIONS["a second look, behind a loop of links"] = (
        check_no_path_leads_out, "'loop/../away/secret.txt'", "real != real.resolve() or ", "")
PROTECTIONS = {**BASH_PROTECTIONS, **FILE_PROTECTIONS}


@pytest.mark.parametrize("protection", mark_slow(PROTECTIONS, lambda name: PROTECTIONS[name][0]))
def test_script_needs(protection, tmp_path):
    check, words, *texts = PROTECTIONS[protection]
    short = [SHORT] if check is check_bash_time_is_limited else []
    red(check, tmp_path, load(tmp_path, SOURCE, *zip(texts[::2], texts[1::2]), *short), words)


SCHEMAS = {  # a wrong describe_tool: (the check that sees it, its properties, its required)
    "types as they are": (check_describe_tool_reads_the_signature,
                          "{name: {'type': KINDS[hint]} for name, hint in hints.items()}",
                          "list(hints)[:-2]"),
    "everything is required": (check_describe_tool_knows_what_is_required,
                               "{name: {'type': 'string'} for name in hints}", "list(hints)"),
    "the session is the model's": (
        check_describe_tool_reads_the_signature,
        "{name: {'type': 'string'} for name in inspect.signature(function).parameters}", "[]"),
}
DESCRIBE = """
import inspect
KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array",
         dict: "object", list[str]: "array"}

def describe_tool(function):
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    parameters = {"type": "object", "properties": PROPERTIES, "required": REQUIRED}
    about = {"name": function.__name__, "description": " ".join(function.__doc__.split())}
    return {"type": "function", "function": {**about, "parameters": parameters}}
"""


@pytest.mark.parametrize("mistake", SCHEMAS)
def test_wrong_schema_is_refused(mistake, tmp_path):
    check, properties, required = SCHEMAS[mistake]
    module = load(tmp_path, DESCRIBE, ("PROPERTIES", properties), ("REQUIRED", required))
    with pytest.raises((AssertionError, KeyError)):
        check(module, tmp_path)

"""Claim: what append_jsonl wrote is on disk, and no damage to a log costs an undamaged record."""

import functools
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chapter
import pytest
import tinyharness

ROOT = Path(__file__).resolve().parent.parent
STUB = """
def append_jsonl(path, record): raise NotImplementedError
def read_jsonl(path): raise NotImplementedError
"""
FIRST = {"role": "user", "content": "修复 parse_date 🐞"}
SECOND = {"role": "assistant", "content": "好的 ✅ {\"role\": \"user\"} \\ café\u2028\u2029\u0085"}
THIRD = {"event": "turn", "state": "done", "ts": 1.5}
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": "修"}'}}
INNER = [{"role": "user", "content": "旧 {}", "nested": 1}, {"role": "tool", "nested": [{"b": 2}]}]
LOG = [{"event": "session", "format": 1, "cwd": "/工作"}, FIRST, THIRD,
       {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
       {"event": "checkpoint", "messages": INNER, "upto": 3},
       {"role": "tool", "tool_call_id": "c1", "content": "out: {\"event\": \"x\"}\n退出码 0"},
       {"event": "started", "tool_call_id": "c2", "tool": "bash"}, SECOND]


def line_of(record, **style):
    """A record as one line of bytes without its newline."""
    return json.dumps(record, ensure_ascii=False, **style).encode()


def import_file(path):
    """Import a file as a module of its own."""
    spec = importlib.util.spec_from_file_location("implementation_of_a_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_module(folder, source):
    """Write source to a file and import it: a check may load that file in another process."""
    (folder / "version.py").write_text(source, encoding="utf-8")
    return import_file(folder / "version.py")


def write_log(folder, data):
    """Write bytes to a log in the folder, and return its path."""
    path = folder / "log.jsonl"
    path.write_bytes(data)
    return path


def error_of(function, *arguments):
    """The error that a call raises, or None; a stub is no answer."""
    try:
        function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        return error


def measure_growth(function, small, big):
    """How many times as long a function takes on a bigger input: the ratio of two medians."""
    for _ in range(3):  # a busy machine makes a ratio a little too high by chance, but not thrice
        seconds = [], []
        for _ in range(3):
            for times, given in zip(seconds, (small, big)):
                began = time.process_time()
                function(given)
                times.append(time.process_time() - began)
        few, many = map(statistics.median, seconds)
        # Below a twentieth of a second no ratio can be trusted, and nobody waits.
        ratio = many / few if many > 0.05 else 0
        if not 14 < ratio < 30:
            break
    return ratio


PRELUDE = """import errno, importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("implementation", sys.argv[1])
impl, path = importlib.util.module_from_spec(spec), sys.argv[2]
spec.loader.exec_module(impl)
def attempt(function, *arguments):
    try:
        function(*arguments)
        print("no error")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def run_child(impl, path, code, *wrapper):
    """Run code on `impl` and `path` in a process of its own; return the lines that it printed."""
    command = [*wrapper, sys.executable, "-B", "-c", PRELUDE + code, impl.__file__, str(path)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    return child.stdout.splitlines()


# ─── what append_jsonl must do ───────────────────────────────────────────────────────────────────

def check_private_files(impl, folder):
    path = folder / "new" / "log.jsonl"
    before = os.umask(0o022)
    try:
        error = error_of(impl.append_jsonl, path, FIRST)
    finally:
        os.umask(before)
    assert error is None, f"the first session has no folder yet: make it ({error})"
    modes = [oct(each.stat().st_mode & 0o777) for each in (path.parent, path)]
    assert modes == ["0o700", "0o600"], f"others can read your session: its modes are {modes}"


def check_any_path(impl, folder):
    code = f"""
from pathlib import Path
os.chdir({str(folder)!r})
for name in ('a.jsonl', './b/a.jsonl', Path('c.jsonl'), Path('d/会话 🐞.jsonl').resolve()):
    attempt(impl.append_jsonl, name, {{'role': 'user'}})"""
    answers = run_child(impl, folder, code)
    assert answers == ["no error"] * 4, f"a path may be relative, or a Path: {answers}"


def check_readable_line(impl, folder):
    points = [chr(code) for code in [*range(0xA0, 0xD800), *range(0xE000, 0x10000), 0x1F41E]]
    text = "".join(set(points) - {"\u2028", "\u2029"})
    path, record = folder / "log.jsonl", {"role": "user", "content": text, "修复": "\n\x0b\x1c\u2028"}
    impl.append_jsonl(path, {**record, "more": "\u2029\u0085"})
    data = path.read_bytes()
    whole = data.endswith(b"\n") and data.count(b"\n") == 1
    assert whole, "one record is one line that ends in \\n"
    assert text.encode() in data, "a person cannot grep for 修复: the text is escaped in the file"
    assert len(data.decode().splitlines()) == 1, "other readers split at U+2028, U+2029, U+0085"
    assert json.loads(data) == {**record, "more": "\u2029\u0085"}, "the record came back changed"


def check_serializes_first(impl, folder):
    loop = []
    loop.append(loop)
    bad = [float("nan"), float("inf"), {1}, object(), b"x", loop]
    for value in [*bad, [{"deep": [value]} for value in bad]]:
        record, path = {"role": "user", "content": "修" * 9000, "value": value}, folder / "no.jsonl"
        error = error_of(impl.append_jsonl, path, record)
        assert error, f"{str(value)[:20]} is no JSON, and was written all the same"
        empty = not path.exists() or not path.read_bytes()
        assert empty, "half a record is in the file: serialise first"
        path = write_log(folder, line_of(FIRST) + b"\n" + line_of(SECOND)[:9])
        before = path.read_bytes()
        assert error_of(impl.append_jsonl, path, record), f"{str(value)[:20]} was written"
        assert path.read_bytes() == before, "the file was touched before the record was serialised"


def check_surrogates(impl, folder):
    path = folder / "log.jsonl"
    record = {"role": "user", "content": "修\ud83d复 \udc1e", "\ude00": ["🐞\ud83d"]}
    error = error_of(impl.append_jsonl, path, record)
    assert error is None, f"half a character in a text must not stop the session: {error!r}"
    got = json.loads(path.read_bytes().decode())
    want = {"role": "user", "content": "修\ufffd复 \ufffd", "\ufffd": ["🐞\ufffd"]}
    assert got == want, "half a character must become U+FFFD: no strict reader takes it"


def check_torn_tail_heals(impl, folder):
    line = line_of(FIRST)
    tails = [line[:cut] for cut in range(len(line), -1, -1)]
    tails += [line + b"\r", b"\0" * 512, b"\xe4\xbf"]
    for tail in tails:
        old = line_of(THIRD) + b"\n" + tail
        path = write_log(folder, old)
        impl.append_jsonl(path, SECOND)
        impl.append_jsonl(path, FIRST)
        data = path.read_bytes()
        assert data.startswith(old), "old bytes were changed: a log is only ever appended to"
        added = data[len(old):].split(b"\n")
        assert tail == b"" or added[0] == b"", "the torn line swallowed the new record"
        records = [json.loads(each) for each in added if each]
        assert records == [SECOND, FIRST] and added.count(b"") <= 2, "one line for each new record"


def check_old_bytes_stay(impl, folder):
    old = b"\xef\xbb\xbf" + b"\r\n".join(map(line_of, LOG))
    old += b"\n\n\0\0\n[1, 2]\nno json \xff\n" * 2
    path = write_log(folder, old)
    for number in range(50):
        node = path.stat().st_ino
        impl.append_jsonl(path, {"role": "user", "content": f"继续 {number}"})
        data = path.read_bytes()
        assert data.startswith(old), "old bytes were changed: a log is only ever appended to"
        assert len(data) < len(old) + 100, "more than the record was written"
        assert path.stat().st_ino == node, "the file was replaced: who holds it open loses the rest"
        old = data


def trace_calls(impl, path, code):
    """The (system call, path) pairs by which code wrote and synced files."""
    calls = "trace=write,pwrite64,writev,pwritev,ftruncate,fsync,fdatasync,sync,syncfs"
    trace = path.parent / "trace"
    run_child(impl, path, code, "strace", "-f", "-y", "-e", calls, "-o", str(trace))
    found = [line.split("(", 1) for line in trace.read_text(errors="replace").splitlines()]
    pairs = [(name.split()[-1], rest.partition("<")[2].partition(">")[0])
             for name, rest in (each for each in found if len(each) == 2)]
    sync = {"fsync": "sync", "fdatasync": "sync", "syncfs": "sync"}
    return [(sync.get(name, name), place) for name, place in pairs]


def check_one_write_one_sync(impl, folder):
    path = write_log(folder.resolve(), line_of(FIRST) + b"\n" + line_of(SECOND)[:20])
    calls = trace_calls(impl, path, f"for _ in range(3): impl.append_jsonl(path, {FIRST!r})")
    names = [name for name, place in calls if place == str(path)]
    assert "sync" in names, "without a sync the record is gone after a power loss"
    assert names == ["write", "sync"] * 3, f"one write, then one sync for each record, not {names}"


def check_new_name_is_synced(impl, folder):
    path = folder.resolve() / "new" / "log.jsonl"
    code = f"impl.append_jsonl(path, {FIRST!r})"
    (folder / "new").mkdir()
    synced = {place for name, place in trace_calls(impl, path, code) if name == "sync"}
    assert str(path) in synced, "without a sync the record is gone after a power loss"
    assert str(path.parent) in synced, "a new file is lost in a power loss: its folder has no sync"


def check_errors_travel(impl, folder):
    path = write_log(folder, b"")
    impl.append_jsonl(path, FIRST)
    for wrong in (folder, path / "log.jsonl"):
        error = error_of(impl.append_jsonl, wrong, FIRST)
        assert isinstance(error, OSError), f"a write that failed must raise OSError, not {error!r}"
    assert [json.loads(line) for line in path.open("rb")] == [FIRST]


def check_permission_errors_travel(impl, folder):
    # Not in pytest's own folder, which other users may not enter; root is no obstacle to itself.
    place = Path(tempfile.mkdtemp())
    try:
        path = write_log(place, line_of(FIRST) + b"\n")
        path.chmod(0o444)
        code = "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        code += "attempt(impl.append_jsonl, path, {'role': 'user', 'content': '继续'})\n"
        code += "attempt(impl.append_jsonl, path + '.new', {'role': 'user'})"
        place.chmod(0o555)
        answers = run_child(impl, path, code)
        assert answers == ["EACCES", "EACCES"], f"no permission must raise, not give {answers}"
        assert path.read_bytes() == line_of(FIRST) + b"\n" and len(list(place.iterdir())) == 1
    finally:
        place.chmod(0o755)
        shutil.rmtree(place)


def judge_full_disk(path, answer, old, code):
    """What must be true after a write that the disk took half of, and one with room again."""
    assert answer == [code, "no error"], (
        f"a full disk must raise {code}; it gave {answer}: "
        "write() may take only a part, so go on with the rest, and let the error travel")
    lines = path.read_bytes()[len(old):].split(b"\n")
    assert path.read_bytes().startswith(old), "old bytes were changed"
    assert line_of(FIRST) in lines, "the next append did not heal the torn tail: its record is lost"


def check_file_limit(impl, folder):
    old = line_of(THIRD) + b"\n"
    for room in (1, 40, len(line_of(SECOND))):
        path = write_log(folder, old)
        code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(old) + room}, resource.RLIM_INFINITY))
attempt(impl.append_jsonl, path, {SECOND!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
attempt(impl.append_jsonl, path, {FIRST!r})"""
        judge_full_disk(path, run_child(impl, path, code), old, "EFBIG")


def check_full_disk(impl, folder):
    # A file system of its own, in a mount namespace that ends with the child.
    record = {"role": "user", "content": "修" * 9999}
    old, disk = line_of(THIRD) + b"\n", folder / "disk"
    disk.mkdir()
    code = f"""
path, target = path + "/log.jsonl", {str(folder / "log.jsonl")!r}
open(path, "wb").write({old!r})
filler = open(path + ".filler", "wb", 0)
try:
    while True: filler.write(bytes(4096))
except OSError:
    os.truncate(path + ".filler", os.path.getsize(path + ".filler") - 8192)
attempt(impl.append_jsonl, path, {record!r})
os.unlink(path + ".filler"); filler.close()
attempt(impl.append_jsonl, path, {FIRST!r})
open(target, "wb").write(open(path, "rb").read())"""
    mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=256k none "$0" && exec "$@"']
    answer = run_child(impl, disk, code, *mount, str(disk))
    judge_full_disk(folder / "log.jsonl", answer, old, "ENOSPC")


# ─── what read_jsonl must do ─────────────────────────────────────────────────────────────────────

ONE, TWO, TREE = line_of(FIRST), line_of(SECOND), line_of(LOG[3])
DEEP = b'{"role": "user", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
DIGITS = b'{"role": "user", "content": "x", "number": ' + b"7" * 5000 + b"}"
KINDS = {  # what happened: (the file, the records that are whole in it, the lines to be reported)
    "U+2028, U+2029 and U+0085 in a text": (ONE + b"\n" + TWO + b"\n", [FIRST, SECOND], []),
    "an empty file": (b"", [], []),
    "no newline at the end": (ONE + b"\n" + TWO, [FIRST, SECOND], []),
    "byte order marks": (b"\xef\xbb\xbf%s\n\xef\xbb\xbf%s\n" % (ONE, TWO), [FIRST, SECOND], []),
    "CRLF": (ONE + b"\r\n" + TWO + b"\r\n", [FIRST, SECOND], []),
    "blank lines": (b"\n\n" + ONE + b"\n \t\r\n\n" + TWO + b"\n\n", [FIRST, SECOND], []),
    "a block of NUL as a line": (ONE + b"\n" + bytes(4096) + b"\n" + TWO, [FIRST, SECOND], [2]),
    "a block of NUL before a record": (ONE + b"\n" + bytes(512) + TWO, [FIRST, SECOND], None),
    "a block of NUL behind a record": (ONE + bytes(512) + b"\n" + TWO, [FIRST, SECOND], None),
    "a torn tail": (ONE + b"\n" + TWO[:-9], [FIRST], [2]),
    "a character torn in the middle": (ONE + b"\n" + ONE[:-7] + b"\n" + TWO, [FIRST, SECOND], [2]),
    "bytes that are no text": (ONE + b"\n\xff\xfe\x80\n" + TWO, [FIRST, SECOND], [2]),
    "garbage": (b"not json\n%s\n{]\n}{\n%s\n" % (ONE, TWO), [FIRST, SECOND], [1, 3, 4]),
    "two records on a line": (ONE + TWO + b"\n" + ONE, [FIRST, SECOND, FIRST], []),
    "four records on a line": (ONE + b" \r" + TWO + b"\0" + ONE + TREE,
                               [FIRST, SECOND, FIRST, LOG[3]], None),
    "records joined by commas": (ONE + b"," + TWO + b", " + TREE + b",\n" + TWO,
                                 [FIRST, SECOND, LOG[3], SECOND], None),
    "a torn record, then a whole one": (ONE + b"\n" + TWO[:40] + ONE + b"\n" + TWO,
                                        [FIRST, FIRST, SECOND], [2]),
    "a whole record, then a torn one": (ONE + TWO[:40] + b"\n" + TWO, [FIRST, SECOND], [1]),
    "two torn ones, then a whole one": (TREE[:90] + TWO[:40] + ONE + b"\n" + TWO,
                                        [FIRST, SECOND], [1]),
    "values that are no object": (b'null\n[]\n"{}"\n3\ntrue\nNaN\n-1e999\n[%s]\n%s' % (TWO, ONE),
                                  [FIRST], list(range(1, 9))),
    "brackets 100,000 deep": (b"[" * 100_000 + b"\n" + b'{"a":' * 100_000 + b"\n" + ONE,
                              [FIRST], [1, 2]),
    "a record 100,000 deep": (ONE + b"\n" + DEEP + b"\n" + TWO, [FIRST, SECOND], [2]),
    "a record behind one 100,000 deep": (DEEP + ONE + b"\n" + TWO, [FIRST, SECOND], [1]),
    "a number of 5,000 digits": (ONE + b"\n" + DIGITS + b"\n" + TWO, [FIRST, SECOND], None),
    "a record behind 5,000 digits": (DIGITS + ONE + b"\n" + TWO, [FIRST, SECOND], None),
    "a line of 15 MB": (ONE + b"\n" + line_of({"role": "tool", "content": "修" * 5_000_000}) + b"\n"
                        + b'{"' + b"x" * 15_000_000 + b"\n" + TWO, [FIRST, SECOND], [3]),
}


def check_damaged_lines(impl, folder):
    for kind, (data, want, _) in KINDS.items():
        path = write_log(folder, data)
        error = None
        try:
            records = impl.read_jsonl(path)
        except (ValueError, RecursionError, AttributeError) as problem:
            error = problem
        assert error is None, f"{kind}: reading must not raise {type(error).__name__}"
        assert all(isinstance(each, dict) for each in records), f"{kind}: a record is an object"
        kept = [each for each in records if each in (FIRST, SECOND, LOG[3])]
        assert kept == want, f"{kind}: {len(want)} records are whole, {len(kept)} came back"


def check_torn_line_costs_only_itself(impl, folder):
    """A log torn at every byte of every message, each time with the next record glued to it."""
    lines, want = [], []
    for record in LOG:
        line = line_of(record)
        for cut in range(len(line) + 1):
            # What stands where a value may stand is good JSON so far, and taken for that value.
            if line[:cut].rstrip().endswith((b":", b"[", b"},")):
                continue
            want.append({"role": "user", "content": f"继续 {len(want)}"})
            lines.append(line[:cut] + line_of(want[-1]))
    got = [each for each in impl.read_jsonl(write_log(folder, b"\n".join(lines))) if each in want]
    lost = [line for record, line in zip(want, lines) if record not in got]
    hint = f"{len(lost)} times, first: {lost and lost[0].decode('utf-8', 'replace')}"
    assert not lost, f"a torn record swallowed its neighbour, {hint}"
    assert got == want, "the records are not in the order of the file, or more than once"


def objects_in(value):
    """An object, and all objects in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] * isinstance(value, dict) + [each for item in inner for each in objects_in(item)]


NESTED = [each for record in LOG for each in objects_in(record)[1:]]


def check_nothing_inside_is_a_record(impl, folder):
    """Each byte of the lines with something inside overwritten, or the line torn there."""
    for record in (LOG[3], LOG[4]):
        line = line_of(record)
        lines = [line[:place] + damage + line[place + 1:] for place in range(len(line))
                 for damage in (b"\0", b"\xff", b"x", b'"', b"{", b"}", b",", b"\n")]
        lines += [line[:cut] for cut in range(len(line))] if "event" in record else []
        got = impl.read_jsonl(write_log(folder, b"\n".join([*lines, ONE])))
        found = [each for each in got if each in NESTED or "nested" in each]
        assert not found, f"the inside of a damaged record came back as a record: {found[0]}"
        assert got[-1] == FIRST, "the last record is lost"


def damage_line(dice, line):
    """A line with one random damage that does not reach its neighbours."""
    place = dice.randrange(len(line))
    length, junk = dice.choice([0, 1, 1, 3, 50]), dice.randbytes(dice.choice([0, 1, 1, 4, 40]))
    junk = dice.choice([junk, b"\0" * len(junk), b'{"' * len(junk), b"\xff" * len(junk)])
    return line[:place] + junk + line[place + length:]


def check_random_damage(impl, folder):
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    for _ in range(1000):
        log = [{**record, "n": number} for number, record in enumerate(LOG)]
        lines = [line_of(record, separators=dice.choice([(",", ":"), None])) for record in log]
        hit = set(dice.sample(range(len(lines)), dice.randrange(1, 4)))
        data = [damage_line(dice, line) if at in hit else line for at, line in enumerate(lines)]
        path = write_log(folder, b"\n".join(data) + dice.choice([b"", b"\n"]))
        got = impl.read_jsonl(path)
        want = [record for number, record in enumerate(log) if number not in hit]
        kept = [each for each in got if each in want]
        assert kept == want, f"a whole record is lost, seed {seed}: {path.read_bytes()}"
        found = [each for each in got if each in NESTED or "nested" in each]
        assert not found, f"seed {seed}: the inside of a damaged record came back: {found[0]}"


def check_reading_changes_nothing(impl, folder):
    path = write_log(folder, b"\n".join([*map(line_of, LOG), b"garbage", TWO[:30]]))
    before, state = path.read_bytes(), path.stat()
    assert impl.read_jsonl(path)[: len(LOG)] == LOG
    assert path.read_bytes() == before, "reading changed the file"
    assert path.stat().st_mtime_ns == state.st_mtime_ns, "reading touched the modification time"
    assert os.listdir(folder).count("log.jsonl") == 1 and impl.read_jsonl(folder / "none") == []
    assert not (folder / "none").exists(), "reading made a file"


TRAPS = [b'{"', b'{"a":', b'{"a":"', b'{"a":1,', b'{"a":[', b'\\"{', ONE, TWO[:30], ONE + TWO[:50],
         b'{"role":"user","x":', b'{"event":"x","y":[' + ONE + b",", bytes(8), b"\xff\xff"]


def check_reading_is_linear(impl, folder):
    for trap in TRAPS:
        paths = []
        # Both sizes of what is nested pass Python's recursion limit, which costs time of its own.
        for size in (50_000, 500_000) if b"[" in trap else (5_000, 50_000):
            (folder / str(size)).mkdir(exist_ok=True)
            paths.append(write_log(folder / str(size), trap * (size // len(trap)) + b"\n"))
        ratio = measure_growth(impl.read_jsonl, *paths)
        assert ratio <= 14, f"ten times {trap} takes {ratio:.0f} times as long"


# ─── the checks, and proofs that they can fail ───────────────────────────────────────────────────

TRACED = {check_one_write_one_sync: ["strace", "-o", "/dev/null", "true"],
          check_new_name_is_synced: ["strace", "-o", "/dev/null", "true"],
          check_full_disk: ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]}
APPEND = [check_private_files, check_any_path, check_readable_line, check_serializes_first,
          check_surrogates, check_torn_tail_heals, check_old_bytes_stay, check_one_write_one_sync,
          check_new_name_is_synced, check_errors_travel, check_permission_errors_travel,
          check_file_limit, check_full_disk]
READ = [check_damaged_lines, check_torn_line_costs_only_itself, check_nothing_inside_is_a_record,
        check_random_damage, check_reading_changes_nothing, check_reading_is_linear]


@functools.cache
def runs(*command):
    """Whether a command is here, and allowed."""
    here = shutil.which(command[0])
    return bool(here) and subprocess.run(command, capture_output=True).returncode == 0


def skip_without(check):
    """Skip, and say why, where the machine has not what a check needs."""
    if check in TRACED and not runs(*TRACED[check]):
        pytest.skip(f"needs {' '.join(TRACED[check])!r}, which does not run here")


@pytest.mark.parametrize("check", APPEND + READ, ids=lambda check: check.__name__)
def test_log(check, impl, tmp_path):
    skip_without(check)
    name, other = ("append_jsonl", "read_jsonl")[:: 1 if check in APPEND else -1]
    if hasattr(impl, other) and not hasattr(impl, name):
        pytest.skip(f"this file has no {name}")
    check(impl, tmp_path)


@pytest.mark.parametrize("check", APPEND + READ, ids=lambda check: check.__name__)
def test_stub_is_rejected(check, tmp_path):
    skip_without(check)
    with pytest.raises((NotImplementedError, AssertionError), match="^$|NotImplementedError"):
        check(write_module(tmp_path, STUB), tmp_path)


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row[2] is not None])
def test_each_skipped_line_is_reported_by_its_number(kind, tmp_path):
    data, _, numbers = KINDS[kind]
    skipped = []
    tinyharness.read_jsonl(write_log(tmp_path, data), skipped)
    assert [number for number, problem in skipped if problem] == numbers


def test_a_damaged_record_is_changed_or_reported_but_never_hidden(tmp_path):
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    for _ in range(300):
        lines = [line_of(record) for record in LOG]
        at = dice.randrange(len(lines))
        lines[at] = damage_line(dice, lines[at]).replace(b"\n", b"") or b"x"  # not a blank line
        skipped, path = [], write_log(tmp_path, b"\n".join(lines))
        records = tinyharness.read_jsonl(path, skipped)
        assert len(records) >= len(LOG) or [number for number, _ in skipped] == [at + 1], lines[at]
        assert all(number == at + 1 for number, _ in skipped), f"line {at + 1} is the bad one"


# Each version is code for the body of its function; what it gets wrong is its name.
APPEND_BODIES = {
    "dumped straight into the file": ("""
    with open(path, "a") as file:
        json.dump(record, file, allow_nan=False)
        file.write("\\n")""", check_serializes_first, "serialise first"),
    "a newline in front, none behind": ("""
    with open(path, "ab") as file:
        file.write(b"\\n" + json.dumps(record, ensure_ascii=False).encode())""",
                                        check_readable_line, "ends in"),
    "a newline in front in any case": ("""
    with open(path, "ab") as file:
        file.write(b"\\n" + json.dumps(record, ensure_ascii=False).encode() + b"\\n")""",
                                       check_readable_line, "one record is one line"),
    "the whole file written anew": ("""
    old, new = open(path, "rb").read(), os.fspath(path) + ".new"
    with open(new, "wb") as file:
        file.write(old + json.dumps(record, ensure_ascii=False).encode() + b"\\n")
        os.fsync(file.fileno())
    os.replace(new, path)""", check_old_bytes_stay, "replaced"),
    "the torn tail cut off": ("""
    with open(path, "rb+") as file:
        file.truncate(file.read().rfind(b"\\n") + 1)
        file.seek(0, 2)
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\\n")""",
                              check_torn_tail_heals, "old bytes"),
    "flushed, but not synced": ("""
    with open(path, "ab") as file:
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\\n")
        file.flush()""", check_one_write_one_sync, "power loss"),
    "the newline in a write of its own": ("""
    with open(path, "ab", 0) as file:
        file.write(json.dumps(record, ensure_ascii=False).encode())
        file.write(b"\\n")
        os.fsync(file.fileno())""", check_one_write_one_sync, "one write"),
    "errors swallowed": ("""
    try:
        with open(path, "a") as file:
            file.write(json.dumps(record) + "\\n")
    except OSError:
        print("could not save")""", check_errors_travel, "must raise OSError"),
}
READ_BODIES = {
    "splitlines": ("""
    for line in open(path, encoding="utf-8", errors="replace").read().splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            records.append(json.loads(line))""", check_damaged_lines, "U\\+2028"),
    "the whole file decoded at once": ("""
    for line in open(path, "rb").read().decode().split("\\n"):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            records.append(json.loads(line.strip("\\ufeff\\0\\r")))""",
                                       check_damaged_lines, "must not raise Unicode"),
    "ends at the first bad line": ("""
    for line in open(path, "rb"):
        try:
            records += [json.loads(line.strip(b"\\xef\\xbb\\xbf\\r\\n"))] if line.strip() else []
        except (ValueError, RecursionError):
            break""", check_damaged_lines, "NUL as a line"),
    "a bad line is lost with all that is on it": ("""
    for line in open(path, "rb").read().decode("utf-8", "replace").split("\\n"):
        with contextlib.suppress(ValueError, RecursionError):
            records.append(json.loads(line.strip("\\ufeff\\0\\r")))""",
                                                  check_damaged_lines, "two records on a line"),
    "each object on a bad line is a record": ("""
    for text in open(path, "rb").read().decode("utf-8", "replace").split("\\n"):
        position = text.find("{")
        while position >= 0:
            try:
                record, position = json.JSONDecoder().raw_decode(text, position)
                records.append(record)
            except (ValueError, RecursionError):
                position += 1
            position = text.find("{", position)""", check_nothing_inside_is_a_record, "the inside"),
    "the file mended while it is read": ("""
    for line in open(path, "rb"):
        with contextlib.suppress(ValueError, RecursionError):
            records.append(json.loads(line))
    with open(path, "w") as file:
        file.writelines(json.dumps(record) + "\\n" for record in records)""",
                                         check_reading_changes_nothing, "changed the file"),
    "one character further and try again": ("""
    for text in open(path, "rb").read().decode("utf-8", "replace").split("\\n"):
        while text:
            try:
                record, end = json.JSONDecoder().raw_decode(text)
                records, text = records + [record], text[end:]
            except (ValueError, RecursionError):
                text = text[1:]""", check_reading_is_linear, "times as long"),
}
HEAD = "import contextlib, json, os\ndef "
WRONG = {f"append: {name}": (f"{HEAD}append_jsonl(path, record):{body}", *row)
         for name, (body, *row) in APPEND_BODIES.items()}
READ_HEAD = HEAD + "read_jsonl(path):\n    records = []"
WRONG |= {f"read: {name}": (f"{READ_HEAD}{body}\n    return records", *row)
          for name, (body, *row) in READ_BODIES.items()}
CHAPTER = {check_torn_tail_heals: "swallowed", check_serializes_first: "no JSON, and was written",
           check_readable_line: "cannot grep", check_private_files: "has no folder yet",
           check_one_write_one_sync: "power loss", check_file_limit: "did not heal",
           check_damaged_lines: "must not raise", check_surrogates: "must become"}


@pytest.mark.parametrize("check", CHAPTER, ids=lambda check: check.__name__)
def test_the_chapter_is_rejected(check, tmp_path):
    skip_without(check)
    with pytest.raises(AssertionError, match=CHAPTER[check]):
        check(chapter, tmp_path)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_version_is_rejected(name, tmp_path):
    source, check, words = WRONG[name]
    skip_without(check)
    with pytest.raises(AssertionError, match=words):
        check(write_module(tmp_path, source), tmp_path)


# What protects the log in the script: (name, its text, the text without it, check, words).
REMOVED = [
    ("sync", 'getattr(os, "fdatasync", os.fsync)(file.fileno())', "pass",
     check_one_write_one_sync, "power loss"),
    ("sync of the folder", "    if not last:\n        sync_folders(path)\n", "",
     check_new_name_is_synced, "its folder has no sync"),
    ("newline before a new record", 'data if last in (b"", b"\\n") else b"\\n" + data', "data",
     check_torn_tail_heals, "swallowed"),
    ("mode of the file", "os.open(name, flags, 0o600)", "os.open(name, flags, 0o644)",
     check_private_files, "others can read"),
    ("mode of the folder", "mkdir(mode=0o700, parents", "mkdir(mode=0o755, parents",
     check_private_files, "others can read"),
    ("no NaN", "text = clean(json.dumps(record, ensure_ascii=False, allow_nan=False))",
     "text = clean(json.dumps(record, ensure_ascii=False))", check_serializes_first, "no JSON"),
    ("U+FFFD for half a character", "text = clean(json.dumps(record, ensure_ascii=False, ",
     "text = (json.dumps(record, ensure_ascii=False, ", check_surrogates, "must not stop"),
    ("readable text", "text = clean(json.dumps(record, ensure_ascii=False, ",
     "text = clean(json.dumps(record, ", check_readable_line, "cannot grep"),
    ("escaped separators", 'for separator in "\\u2028\\u2029\\u0085"', 'for separator in ""',
     check_readable_line, "other readers split"),
    ("the rest of a short write", "data[file.write(data) :]", "file.write(data) and b''",
     check_file_limit, "must raise EFBIG"),
    ("replacement of bytes that are no text", 'line.decode("utf-8", "replace")', "line.decode()",
     check_damaged_lines, "must not raise Unicode"),
    ("depth", "except (ValueError, RecursionError) as error:", "except ValueError as error:",
     check_damaged_lines, "must not raise Recursion"),
    ("the inside of a damaged record", "del records[trusted:]", "pass",
     check_nothing_inside_is_a_record, "the inside"),
    ("a limit for damages on a line", " and damages < DAMAGES", "",
     check_reading_is_linear, "times as long"),
    ("records only", "records += [value] if is_record(value) else []", "records.append(value)",
     check_damaged_lines, "a record is an object"),
]


@pytest.mark.parametrize("row", REMOVED, ids=[row[0] for row in REMOVED])
def test_without_this_protection_the_check_is_red(row, tmp_path):
    name, text, without, check, words = row
    skip_without(check)
    source = (ROOT / "tinyharness.py").read_text(encoding="utf-8")
    assert source.count(text) == 1, f"{name}: the script has changed, and this test must follow"
    with pytest.raises(AssertionError, match=words):
        check(write_module(tmp_path, source.replace(text, without)), tmp_path)

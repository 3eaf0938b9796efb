"""Figures, no verdict: a durable append and a repaired load beside the barest way to do the same.

    python tests/bench.py [--folder DIR]    DIR: on the disk to be measured; else the temporary one

An old session is resumed beside a young one of the same conversation.
Every figure is a ratio of medians. What is compared runs interleaved, in one run; what is loaded,
in a child process of its own, because memory that was once used is never given back.
"""

import argparse
import collections
import json
import os
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tinyharness  # noqa: E402  the script stands beside this folder
from crash_tools import load_module  # noqa: E402

COUNTS = (100, 1_000, 10_000, 100_000)
INSERT = "insert into messages (session, data) values (?, ?)"
AGES = (10_000, 1_000_000)  # records of two sessions with one conversation; the older has 2 GB
APPENDS, LOADS, SLOW_WRITES = 200, 5, 3
MESSAGE_CHARACTERS = 2_110  # with one short `started` in five records: 194 MB for 100,000 of them
CODE = 'for text, want in [("3 mar 2026", "2026-03-03")]:\n    assert parse_date(text) == want\n'
CHINESE = "会话记录只追加, 不改写: 断电之后, 用户看到的每一步都还在。修复 parse_date.py 的月份。\n"
EMOJI = CODE + "All dates are right now 🎉\n"


# ─── the log that is measured: turns of five records, three in four texts plain code ─────────────

def fill(text, characters) -> str:
    """Repeat a text up to a number of characters."""
    return (text * (characters // len(text) + 1))[:characters]


def make_turn(number) -> list[dict]:
    """Return one turn: Chinese from the user, a call, its intent, its result, the answer."""
    call_id, stamp = f"call_{number:08d}", 1_770_000_000.123 + number
    content = fill(CODE, MESSAGE_CHARACTERS - 350)
    arguments = json.dumps({"path": "parse_date.py", "content": content})
    function = {"name": "write_file", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    # One answer in four holds an emoji: CPython then takes four bytes for each of its characters.
    answer = CODE if number % 4 else EMOJI
    records = (
        {"role": "user", "content": fill(CHINESE, MESSAGE_CHARACTERS // 2)},
        {"role": "assistant", "content": None, "tool_calls": [call], "finish_reason": "tool_calls"},
        {"event": "started", "tool_call_id": call_id, "tool": "write_file",
         "path": "/w/parse_date.py", "before": "0" * 64, "after": "f" * 64, "read_only": False},
        {"role": "tool", "tool_call_id": call_id, "content": fill(CODE, MESSAGE_CHARACTERS)},
        {"role": "assistant", "content": fill(answer, MESSAGE_CHARACTERS), "finish_reason": "stop"})
    return [{**record, "ts": stamp} for record in records]


def write_log(path, count):
    """Write a log of that many records, a multiple of five, and wait until it is on disk."""
    with open(path, "wb") as file:
        head = {"event": "session", "format": 1, "cwd": "/w", "model": "bench", "ts": 1.0}
        file.write(tinyharness.encode_record(head))
        for number in range(count // 5):
            file.writelines(map(tinyharness.encode_record, make_turn(number)))
        file.flush()
        os.fsync(file.fileno())


def run_child(function, *arguments, tracer=()):
    """Call a function of this file in a process of its own, and return what it returns."""
    # The peak that the system reports of a process is never below its parent's: stay small here.
    command = [*tracer, sys.executable, __file__, "--child", function, *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


# ─── append: the same bytes in five ways, in turns ───────────────────────────────────────────────

def take_time(times, name, function, *arguments):
    """Call a function and put its seconds into times[name]."""
    start = time.perf_counter()
    function(*arguments)
    times[name].append(time.perf_counter() - start)


def time_appends(path) -> dict[str, float]:
    """Return the median seconds of each way to add a 2 KB record to a log and a copy of it."""
    bare_path, times = f"{path}.bare", collections.defaultdict(list)
    shutil.copyfile(path, bare_path)
    os.sync()
    record = {"role": "tool", "tool_call_id": "call_00000001", "content": fill(CODE, 1_900)}
    descriptor = os.open(bare_path, os.O_WRONLY | os.O_APPEND)
    data = tinyharness.encode_record(record)

    def append_bare():
        os.write(descriptor, data)
        take_time(times, "sync", os.fdatasync, descriptor)

    with tinyharness.Session(path, ".", "bench") as session:
        session.append(record)
        ways = [("bare", append_bare), ("append_jsonl", tinyharness.append_jsonl, path, record),
                ("Session.append", session.append, record),
                ("encode", tinyharness.encode_record, record)]
        for turn in range(APPENDS):
            # Each way goes first as often as any other: a slow disk is slow to all of them.
            for way in ways[turn % 4:] + ways[:turn % 4]:
                take_time(times, *way)
    os.close(descriptor)
    os.remove(bare_path)
    return {name: statistics.median(values) for name, values in times.items()}


def written_bytes() -> int:
    """Return how many bytes this process has handed to the system so far."""
    return int(re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())[1])


def measure_amplification(path) -> dict[str, float]:
    """Return the bytes written per byte of a message, for each way to keep a session."""
    record = {"role": "tool", "tool_call_id": "call_00000001", "content": fill(CODE, 1_900)}
    size, written = len(tinyharness.encode_record(record)), {}
    records = tinyharness.read_jsonl(path)
    database = sqlite3.connect(f"{path}.sqlite")
    database.execute("pragma journal_mode = wal")
    with database:
        database.execute("create table messages (number integer primary key, session, data)")
        database.execute("create index by_session on messages (session, number)")
        rows = [("otter", json.dumps(each, ensure_ascii=False)) for each in records]
        database.executemany(INSERT, rows)

    def insert_row():
        with database:
            database.execute(INSERT, ("otter", json.dumps(record, ensure_ascii=False)))

    def rewrite_whole():
        with open(f"{path}.json", "w", encoding="utf-8") as file:
            json.dump([*records, record], file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())

    for way in (lambda: tinyharness.append_jsonl(path, record), insert_row, rewrite_whole):
        before = written_bytes()
        for _ in range(SLOW_WRITES):
            way()
        written[way.__name__] = (written_bytes() - before) / SLOW_WRITES / size
    database.close()
    os.remove(f"{path}.sqlite")
    os.remove(f"{path}.json")
    return dict(zip(("append_jsonl", "SQLite row", "whole JSON"), written.values()))


def count_system_calls(path) -> dict[str, float]:
    """Return the system calls of one append, by name, as a tracer sees them."""
    trace = f"{path}.trace"
    run_child("append_marked", path, tracer=["strace", "-o", trace])
    inside = Path(trace).read_text().split('"/marker"')[1]
    names = re.findall(r"(?m)^(\w+)\(", inside.partition("\n")[2])
    os.remove(trace)
    # The second marker is a system call too, and no part of an append.
    return {name: number / APPENDS for name, number in collections.Counter(names[:-1]).items()}


def append_marked(path) -> list:
    """Append between two system calls that stand out in a trace."""
    record = {"role": "tool", "tool_call_id": "call_00000001", "content": fill(CODE, 1_900)}
    os.path.exists("/marker")
    for _ in range(APPENDS):
        tinyharness.append_jsonl(path, record)
    os.path.exists("/marker")
    return []


# ─── load: each way in child processes of its own ────────────────────────────────────────────────

def read_plainly(path):
    """Parse each line and keep nothing: the least that any reader does."""
    for line in open(path, encoding="utf-8"):
        json.loads(line)


def read_and_keep(path):
    """Parse each line and keep the records: the least that a reader holds."""
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def load_whole():
    """The script with §9, which is a patch so far, as a module."""
    import whole_script  # only here: it makes a copy of the script
    return load_module(whole_script.SCRIPT)


def resume(path):
    """Open a session as far as its first request."""
    with load_whole().Session(path) as session:
        return session.messages()


READERS = {"plain": read_plainly, "kept": read_and_keep, "load_session": tinyharness.load_session,
           "nothing": lambda path: None}


def load_once(name, path) -> list:
    """Return the seconds that a reader takes, and the peak of this process in bytes."""
    start = time.perf_counter()
    held = (READERS | {"resume": resume})[name](path)
    seconds = time.perf_counter() - start
    del held
    return [seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024]


def measure_loads(path) -> dict[str, tuple[float, float]]:
    """Return the median seconds and peak bytes above the interpreter's own, for each reader."""
    seconds, peaks = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(LOADS):
        for name in READERS:
            found = run_child("load_once", name, path)
            seconds[name].append(found[0])
            peaks[name].append(found[1])
    base = statistics.median(peaks["nothing"])
    return {name: (statistics.median(seconds[name]), statistics.median(peaks[name]) - base)
            for name in READERS}


# ─── checkpoints: how old a session is, and what they cost ───────────────────────────────────────

def write_aged(folder, *paths):
    """Write sessions of the AGES that end alike: a checkpoint of 2,000 messages, then 1,000."""
    path, whole = os.path.join(folder, "young.jsonl"), load_whole()
    write_log(path, 2_500)
    with whole.Session(path) as session:
        whole.add_checkpoint(session)
        for _ in range(1_000):
            session.append({"role": "user", "content": fill(CHINESE, MESSAGE_CHARACTERS)})
    with open(path, "rb") as file:
        head, *lines = file
    chunk, end = b"".join(lines[:2_500]), b"".join(lines[2_500:])
    os.remove(path)
    for count, aged in zip(AGES, paths):
        with open(aged, "wb") as file:
            file.write(head)
            for _ in range(count // 2_500):
                file.write(chunk)
            file.write(end)


def measure_resumes(paths) -> list[tuple[float, float]]:
    """Return the median seconds and peak bytes above the interpreter's own, for each session."""
    found = {("nothing", paths[0]): [], **{("resume", path): [] for path in paths}}
    for _ in range(LOADS):
        for name, path in found:
            found[name, path].append(run_child("load_once", name, path))
    base, *each = [[statistics.median(column) for column in zip(*runs)] for runs in found.values()]
    return [(seconds, peak - base[1]) for seconds, peak in each]


def measure_share(path, turns, thought) -> float:
    """Return the part of all bytes that is checkpoints, behind so many turns of such a thought."""
    reply = {"role": "assistant", "content": fill(CODE, MESSAGE_CHARACTERS)}
    reply["reasoning_content"], whole = fill(CODE, int(thought)), load_whole()
    with whole.Session(path, os.path.dirname(path), "bench") as session:
        for _ in range(int(turns)):
            whole.run_turn(session, fill(CHINESE, MESSAGE_CHARACTERS // 2),
                                 lambda messages, tools: reply, show=lambda text: None)
    with open(path, "rb") as file:
        found = [len(line) for line in file if line.startswith(whole.CHECKPOINT[1:])]
    return sum(found) / os.path.getsize(path)


# ─── the table ───────────────────────────────────────────────────────────────────────────────────

def list_append_rows(folder):
    """Yield the rows on appending, for each length of the log."""
    for count in COUNTS:
        path = os.path.join(folder, f"append-{count}.jsonl")
        write_log(path, count)
        for name, ratio in run_child("measure_amplification", path).items():
            aim = "1.00" if name == "append_jsonl" else ""
            yield f"bytes written / those of the message, {name}", count, ratio, aim, ""
        times = run_child("time_appends", path)
        for name in ("append_jsonl", "Session.append"):
            yield (f"{name} / write + fdatasync", count, times[name] / times["bare"], "<= 1.4",
                   f"{times[name] * 1e6:,.0f} us / {times['bare'] * 1e6:,.0f} us")
        yield ("encoding / fdatasync", count, times["encode"] / times["sync"], "< 0.1",
               f"{times['encode'] * 1e6:,.0f} us / {times['sync'] * 1e6:,.0f} us")
        if shutil.which("strace"):
            calls = count_system_calls(path)
            names = ", ".join(f"{number:g} {name}" for name, number in sorted(calls.items()))
            yield "system calls of one append_jsonl", count, sum(calls.values()), "", names
        os.remove(path)


def list_load_rows(folder):
    """Yield the rows on loading, for each length of the log."""
    for count in COUNTS[2:]:
        path = os.path.join(folder, f"load-{count}.jsonl")
        write_log(path, count)
        size, found = os.path.getsize(path), measure_loads(path)
        for name in ("load_session", "kept"):
            (seconds, peak), plain = found[name], found["plain"][0]
            yield (f"{name} / plain loop of json.loads", count, seconds / plain,
                   "<= 1.0" if name == "load_session" else "", f"{seconds:.3f} s / {plain:.3f} s")
            yield (f"peak memory / file, {name}", count, peak / size,
                   "<= 1.6" if name == "load_session" else "",
                   f"{peak / 1e6:,.0f} MB / {size / 1e6:,.0f} MB, above the interpreter's own")
        os.remove(path)


def list_checkpoint_rows(folder):
    """Yield the rows on checkpoints: an old session beside a young one, and what they cost."""
    for kind, turns, thought in (("summed up", 400, 0), ("grown", 60, 100 * MESSAGE_CHARACTERS)):
        path = os.path.join(folder, f"{kind}.jsonl")
        share = run_child("measure_share", path, str(turns), str(thought))
        yield (f"bytes of checkpoints / all bytes, {kind}", turns * 3, share, "<= 0.1",
               f"of {os.path.getsize(path) / 1e6:.1f} MB")
        os.remove(path)
    if shutil.disk_usage(folder).free > 3e9:
        paths = [os.path.join(folder, f"aged-{count}.jsonl") for count in AGES]
        run_child("write_aged", folder, *paths)
        (young, less), (old, more) = measure_resumes(paths)
        yield (f"resume / that of {AGES[0]:,} records", AGES[1], old / young, "<= 1.5",
               f"{old:.3f} s / {young:.3f} s, of {os.path.getsize(paths[1]) / 1e6:,.0f} MB")
        yield (f"its peak memory / that of {AGES[0]:,} records", AGES[1], more / less, "<= 1.5",
               f"{more / 1e6:.1f} MB / {less / 1e6:.1f} MB, above the interpreter's own")
        for path in paths:
            os.remove(path)


def list_look_rows(folder):
    """Yield the rows on looking at a thousand sessions: the list of them, and a search in them."""
    session = tinyharness.Session(os.path.join(folder, "many", "-"))
    os.mkdir(session.folder)
    turn = b"".join(map(tinyharness.encode_record, [{"event": "session", "cwd": "/w"}, *make_turn(0)]))
    for number in range(1_000):
        name = f"2026-11-30_{number:06d}_otter.jsonl"
        with open(os.path.join(session.folder, name), "wb") as file:
            file.write(turn * 16 + b'{"event": "turn", "state": "done"}\n')
    def look():
        for entry in os.scandir(session.folder):
            entry.stat()
    def parse():
        for path in tinyharness.list_paths(session.folder):
            tinyharness.describe_state(tinyharness.read_jsonl(path))
    def find():
        tinyharness.search_sessions(session, "needle")
    ways = {"look": look, "list": lambda: tinyharness.list_sessions(session), "search": find}
    grep = ["grep", "-cir", "needle", session.folder]
    ways |= {"parse": parse, "grep": lambda: subprocess.run(grep, stdout=subprocess.DEVNULL)}
    times = {name: [] for name in ways}
    for _ in range(LOADS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    times = {name: statistics.median(each) for name, each in times.items()}
    for name, other, aim in ("list", "look", "<= 6"), ("parse", "look", ""), ("search", "grep", "<= 2"):
        yield (f"1,000 sessions: {name} / {other}", 80_000, times[name] / times[other], aim,
               f"{times[name]:.3f} s / {times[other]:.3f} s")
    shutil.rmtree(session.folder)


def print_table(folder):
    """Measure, and print each row as soon as it is known."""
    print(f"| {'figure':50} | {'records':>9} | {'ratio':>9} | target | measured |")
    print(f"|{'-' * 52}|{'-' * 10}:|{'-' * 10}:|{'-' * 8}|{'-' * 10}|")
    for rows in (list_append_rows, list_load_rows, list_look_rows, list_checkpoint_rows):
        for figure, count, ratio, aim, measured in rows(folder):
            row = f"| {figure:50} | {count:9,} | {ratio:9,.2f} | {aim:6} | {measured} |"
            print(row, flush=True)


def main():
    """Print the table, or measure one thing as a child."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, *arguments = options.child
        print(json.dumps(globals()[name](*arguments)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print_table(folder)


if __name__ == "__main__":
    main()

"""Claim: cut or damaged at any byte, killed at any system call, a session loses nothing."""

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from crash_tools import (RENAMES, SCRIPT, SPAWNS, Place, check_killed, check_resumed, fast_folder,
                         list_kill_points, load_module, needs_strace, run_served, run_traced,
                         write_copy)
from strict_server import StrictServer, judge


# ─── every byte ──────────────────────────────────────────────────────────────────────────────────

def say(role, content, **more):
    return {"role": role, "content": content, **more}


def ask(content, *calls):
    functions = [(call_id, {"name": name, "arguments": json.dumps(given, ensure_ascii=False)})
                 for call_id, name, given in calls]
    listed = [{"id": call_id, "type": "function", "function": function}
              for call_id, function in functions]
    return say("assistant", content, tool_calls=listed, ts=2.5)


def begin(call_id, tool, **more):
    return {"event": "started", "tool_call_id": call_id, "tool": tool, **more, "ts": 2.6}


def answer(call_id, content, **more):
    return say("tool", content, tool_call_id=call_id, **more, ts=2.7)


def use(call_id, name, **given):
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def give(call_id, content):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


# (record, the number of the record whose call it answers); 〔…〕 marks what the model must see.
ROWS = (
    ({"event": "session", "format": 1, "id": "修复", "cwd": "/工作 🐞", "ts": 1.5}, None),
    (say("user", "修复 parse_date 🐞〔a〕", ts=2.1), None),
    (ask("先看 👩‍🚀〔b〕", ("c1", "bash", {"command": "echo 修 > 甲"}),
         ("c2", "write_file", {"path": "乙 🚀", "content": "一\n二"})), None),
    (begin("c1", "bash", read_only=False), None),
    (answer("c1", "第一行\u2028第二行\u0085\n[exit code 0]〔c〕"), 2),
    (begin("c2", "write_file", path="/工作 🐞/乙 🚀", before="no file", after="e3b0c442"), None),
    (answer("c2", "wrote 7 bytes 〔d〕"), 2),
    (ask(None, ("c3", "edit_file", {"path": "乙", "old": "一", "new": "〔e〕"}),
         ("c4", "bash", {"command": "printf '🚀\\n'"})), None),
    (begin("c3", "edit_file", path="/工作 🐞/乙", before="no file", after="e3b0c442"), None),
    (answer("c3", "the harness stopped while it ran; applied 〔f〕", verdict="applied"), 7),
    (answer("c4", "it never ran; call it again 〔g〕", verdict="not started"), 7),
    ({"event": "turn", "state": "aborted", "reason": "KeyboardInterrupt", "ts": 3}, None),
    (say("user", "用章节的方言继续〔h〕"), None),
    (say("assistant", [{"type": "text", "text": "好 ✅〔i〕"}, use("t1", "read_file", path="修.txt"),
                       use("t2", "bash", command='echo "🚀"')]), None),
    (say("user", [give("t1", "raw\u2028separator 〔j〕"),
                  give("t2", [{"type": "text", "text": "🚀\n[exit code 0]〔k〕"}])]), 13),
    (say("assistant", "完成〔l〕", ts=4.1), None),
    (say("user", "再来一次 🔁〔m〕", ts=5), None),
    (ask("并行〔n〕", ("c5", "bash", {"command": "sleep 9"}), ("c6", "read_file", {"path": "甲"})),
     None),
    (begin("c5", "bash", read_only=False), None),
)
RECORDS = [record for record, _ in ROWS]
# Our own lines escape U+2028; the chapter's lines may hold it raw, where other readers split.
LINES = [json.dumps(record, ensure_ascii=False) for record in RECORDS]
LINES = [line.replace("\u2028", "\\u2028").replace("\u0085", "\\u0085")
         if '"ts"' in line else line for line in LINES]
DATA = "".join(line + "\n" for line in LINES).encode()
ENDS = [position for position, byte in enumerate(DATA) if byte == 10]
NEW = say("user", "接着做 🐞〔z〕")


def marks_of(rows):
    """The marks of some records: what a model must be shown of them."""
    text = json.dumps(rows, ensure_ascii=False)
    return {text[place + 1] for place, letter in enumerate(text) if letter == "〔"}


def check_history(impl, path, marks, what):
    """The history loads twice alike, is valid, shows these marks, and nothing touched the file."""
    before, state = path.read_bytes(), os.stat(path)
    messages = impl.load_session(path)
    assert messages == impl.load_session(path), f"{what}: a second load gives another history"
    assert path.read_bytes() == before and os.stat(path).st_mtime_ns == state.st_mtime_ns, (
        f"{what}: loading changed the file")
    assert not messages or judge(messages) == [], (
        f"{what}: {judge(messages)[0]}: it is not enough to look at the last message; a call may "
        "dangle anywhere, alone or in a parallel batch")
    lost = marks - marks_of(messages)
    assert not lost, f"{what}: the model is not shown {sorted(lost)}, which is whole on disk"


def is_line(line, record):
    """Whether a line holds this record and nothing else, as any other program reads it."""
    try:
        return json.loads(line) == record
    except ValueError:
        return False


def read_reported(impl, path):
    """The records, and the numbers of the lines that the reader reports as skipped."""
    skipped = []
    return impl.read_jsonl(path, skipped), sorted({number for number, _ in skipped})


def check_cuts(impl, folder, step=1):
    """Cut after each byte: complete records stay, and what is appended then stays too."""
    path = folder / "cut.jsonl"
    for size in range(0, len(DATA) + 1, step):
        path.write_bytes(DATA[:size])
        whole, what = sum(end <= size for end in ENDS), f"cut after byte {size}"
        torn = size > (ENDS[whole - 1] + 1 if whole else 0)
        records, reported = read_reported(impl, path)
        assert records == RECORDS[:whole], f"{what}: complete records are lost or changed"
        assert reported == ([whole + 1] if torn else []), f"{what}: reported are lines {reported}"
        check_history(impl, path, marks_of(RECORDS[:whole]), what)
        impl.append_jsonl(path, NEW)
        after = path.read_bytes()
        assert after.startswith(DATA[:size]), f"{what}: the append changed old bytes"
        assert is_line(after.split(b"\n")[-2], NEW) and after.endswith(b"\n"), (
            f"{what}: the new record stands on the torn line, not on one of its own")
        assert impl.read_jsonl(path) == [*RECORDS[:whole], NEW], f"{what}: a record was lost"
        check_history(impl, path, marks_of([*RECORDS[:whole], NEW]), f"{what}, then appended")
    return len(range(0, len(DATA) + 1, step))


def check_damage(impl, folder, step=1):
    """Overwrite each byte: only that record and its pair may change, and the line is named.
    Return how many damaged files that were."""
    path, tried = folder / "damaged.jsonl", 0
    for place in range(0, len(DATA), step):
        for byte in (b"\0", b"\xff", b"\n"):
            if DATA[place:place + 1] != byte:
                path.write_bytes(DATA[:place] + byte + DATA[place + 1:])
                check_one_damage(impl, path, place, byte)
                tried += 1
    return tried


def check_one_damage(impl, path, place, byte):
    """Look at a file in which one byte is wrong."""
    row, between = sum(end < place for end in ENDS), place in ENDS
    what = f"byte {place} (line {row + 1}) is {byte!r}"
    records, reported = read_reported(impl, path)
    # A newline in the middle makes two lines of one; which of them is damaged depends.
    expected = {row + 1, row + 2} if byte == b"\n" else {row + 1}
    assert reported and set(reported) <= expected, f"{what}: reported are lines {reported}"
    behind = len(records) - (len(RECORDS) - row - 1)
    middle, kept = records[row:behind], RECORDS[:row] + RECORDS[row + 1:]
    assert records[:row] + records[behind:] == kept, f"{what}: it cost another record"
    # A byte that is no text costs a letter of a string at most, and all else the whole record.
    alike = [abs(len(str(record)) - len(str(RECORDS[row]))) < 5 for record in middle]
    assert alike in ([], [True]), f"{what}: it was read as {middle}"
    if between:
        assert middle == [RECORDS[row]], f"{what}: two records on one line must both be read"
    others = [record for number, (record, asked) in enumerate(ROWS) if row not in (number, asked)]
    check_history(impl, path, marks_of(others), what)


def test_cut_at_every_fifth_byte_a_session_loads_and_goes_on(impl):
    with fast_folder() as folder:
        check_cuts(impl, folder, 5)


@pytest.mark.long
def test_cut_at_any_byte_a_session_loads_and_goes_on(impl, survived):
    with fast_folder() as folder:
        survived(check_cuts(impl, folder))


def test_damaged_at_every_seventh_byte_a_session_loses_one_record_at_most(impl):
    with fast_folder() as folder:
        check_damage(impl, folder, 7)


@pytest.mark.long
def test_damaged_at_any_byte_a_session_loses_one_record_at_most(impl, survived):
    with fast_folder() as folder:
        survived(check_damage(impl, folder))


def check_inside(impl, folder):
    """What a damaged record holds inside (a tool's input, messages) is never read as a record."""
    inner = say("user", "删除一切 🐞")
    call = {"id": "c1", "type": "function", "function": {"name": "create", "arguments": inner}}
    for record in (say("assistant", [use("t1", "create", **inner)]),
                   say("assistant", None, tool_calls=[call]),
                   {"event": "summary", "messages": [inner, say("assistant", "好")]}):
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        for place in range(len(line) - 1):
            for byte in (b"\0", b"\xff", b"\n"):
                path = folder / "inside.jsonl"
                path.write_bytes(line[:place] + byte + line[place + 1:])
                assert inner not in impl.read_jsonl(path), (
                    f"byte {place} of {line.decode()} is {byte!r}: what a record "
                    "holds inside is read as a message of the user")


def test_the_inside_of_a_damaged_record_is_never_a_record(impl):
    with fast_folder() as folder:
        check_inside(impl, folder)


# ─── proofs: the checks reject wrong versions ────────────────────────────────────────────────────

REFERENCE = load_module(SCRIPT)


def append_naively(path, record):
    """As the chapter does it."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def append_over_torn(path, record):
    """Cut a torn line off before the append."""
    if path.exists():
        data = path.read_bytes()
        path.write_bytes(data[:data.rfind(b"\n") + 1])
    REFERENCE.append_jsonl(path, record)


def read_naively(path, skipped=None):
    """As the chapter does it."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_until_damage(path, skipped=None):
    """Stop at the first line that is damaged."""
    records = REFERENCE.read_jsonl(path, found := [])
    skipped = [] if skipped is None else skipped
    skipped += found[:1]
    return records[:found[0][0] - 1] if found else records


def read_lines_of_text(path, skipped=None):
    """Split the text where str.splitlines does, which includes U+2028; keep what parses."""
    records, skipped = [], [] if skipped is None else skipped
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            skipped.append((number, "damaged"))
    return records


def read_silently(path, skipped=None):
    """Drop what is damaged, and do not say so."""
    return REFERENCE.read_jsonl(path)


def make_version(read=REFERENCE.read_jsonl, append=REFERENCE.append_jsonl):
    return SimpleNamespace(read_jsonl=read, append_jsonl=append,
                           load_session=lambda path: REFERENCE.repair(read(path)))


def not_written(*_):
    raise NotImplementedError


WRONG = {  # kind: (words of the failure, the check that rejects it, a version)
    "the chapter's code": ("Expecting|Unterminated", check_cuts,
                           make_version(read_naively, append_naively)),
    "stops at the first damaged line": ("another record", check_damage,
                                        make_version(read_until_damage)),
    "splits at U+2028": ("reported are lines|lost", check_cuts, make_version(read_lines_of_text)),
    "skips silently": ("reported are lines", check_cuts, make_version(read_silently)),
    "cuts the torn line off": ("changed old bytes", check_cuts,
                               make_version(append=append_over_torn)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_the_checks_reject(kind):
    words, check, version = WRONG[kind]
    with fast_folder() as folder, pytest.raises((AssertionError, ValueError), match=words):
        check(version, folder, 5)


@pytest.mark.parametrize("check", [check_cuts, check_damage, check_inside])
def test_the_checks_reject_a_stub(check):
    stub = make_version(not_written, not_written)
    with fast_folder() as folder, pytest.raises(NotImplementedError):
        check(stub, folder)


def test_without_newline_healing_the_cut_check_is_red(tmp_path):
    broken = write_copy(tmp_path, ('data if last in (b"", b"\\n") else b"\\n" + data', "data"))
    with fast_folder() as folder, pytest.raises(AssertionError, match="stands on the torn line"):
        check_cuts(load_module(broken), folder)


def test_with_a_repair_of_the_last_message_only_the_cut_check_is_red(tmp_path):
    old = 'result = call.result or f"no result'
    # Once a result of the batch is there, the last message is no longer the one with the calls.
    guard = "if not call.result and any(each.result for each in calls):"
    broken = write_copy(tmp_path, (old, f"{guard}\n                    continue\n                {old}"))
    with fast_folder() as folder, pytest.raises(AssertionError, match="parallel batch"):
        check_cuts(load_module(broken), folder)


# ─── every system call ───────────────────────────────────────────────────────────────────────────

def kill_and_resume(module, server, folder, first, second=None):
    """Kill a rehearsal at a call, perhaps its resume too, and then let it end.
    Return how it went on, or what was wrong."""
    try:
        place = Place(folder, module)
        facts = check_killed(place, kill_traced(place, first, module.TASK).out)
        if second:
            run = kill_traced(place, second, *place.go_on()[1])
            facts = check_resumed(place, server, facts, run, done=False)
        heard, arguments = place.go_on()
        check_resumed(place, server, facts, run_served(place, server, *arguments))
        return "resumed" if heard else "afresh"
    except AssertionError as error:
        return f"killed at {first} {second or ''}: {error}"


def kill_traced(place, kill_at, *arguments):
    """Run a rehearsal that is killed at a call, and see to it that it was killed there."""
    run = run_traced(place, *arguments, "--rehearse", kill_at=kill_at)
    last = run.trace[-1]
    assert (run.returncode, last.name, last.result) == (-9, kill_at[0], None), (
        f"the run was not killed there, but ended with {run.returncode} behind {last.name}")
    return run


def list_points(folder, module, after=None):
    """All points to kill a rehearsal at, from a run that is not killed."""
    place = Place(folder / "whole", module)
    run = run_traced(place, module.TASK, "--rehearse")
    assert run.returncode == 0 and place.stage() == len(place.stages) - 1, run.err
    return list_kill_points(place, run, after)


def sweep_kills(folder, module, plans):
    """Carry out plans of one kill or two, two at a time; return the outcomes."""
    # The same depth of folders as the whole run: each one is synced, and counts.
    folders = [folder / f"kill{number}" for number in range(len(plans))]
    with StrictServer(module.rehearsal_model) as server, ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda folder, plan: kill_and_resume(module, server, folder, *plan),
                             folders, plans))


def format_table(points, outcomes):
    """The table: each call, how many points, how they went on, and how many survived."""
    lines = [f"{'killed at':12} {'points':>7} {'resumed':>8} {'afresh':>7} {'survived':>9}"]
    for name in [*dict.fromkeys(name for name, _ in points), "all"]:
        ended = [outcome for (call, _), outcome in zip(points, outcomes) if name in (call, "all")]
        resumed, afresh = ended.count("resumed"), ended.count("afresh")
        lines.append(f"{name:12} {len(ended):7} {resumed:8} {afresh:7} {resumed + afresh:9}")
    return "\n".join([*lines, "afresh: the task itself was not on disk yet, and was given again"])


def check_sweep(points, outcomes, capsys):
    """Print the table, and fail with what went wrong; return how many kills that were."""
    with capsys.disabled():
        print(f"\n{format_table(points, outcomes)}")
    wrong = [outcome for outcome in outcomes if outcome not in ("resumed", "afresh")]
    assert not wrong, "\n".join(wrong)
    return len(outcomes)


def is_first_rename(call):
    return call.name in RENAMES


@needs_strace
def test_killed_at_a_sample_of_system_calls_the_session_goes_on(capsys):
    with fast_folder() as folder:
        points = list_points(folder, REFERENCE)
        points = points[5::len(points) // 8]
        check_sweep(points, sweep_kills(folder, REFERENCE, [(point,) for point in points]), capsys)


@needs_strace
@pytest.mark.long
def test_killed_at_every_system_call_the_session_goes_on(capsys, survived):
    with fast_folder() as folder:
        points = list_points(folder, REFERENCE)
        outcomes = sweep_kills(folder, REFERENCE, [(point,) for point in points])
        survived(check_sweep(points, outcomes, capsys))


@needs_strace
@pytest.mark.long
def test_killed_again_at_every_system_call_that_settles_an_edit_the_session_goes_on(
        capsys, survived):
    with fast_folder() as folder:
        first = list_points(folder, REFERENCE, is_first_rename)[0]
        place = Place(folder / "again", REFERENCE)
        kill_traced(place, first, REFERENCE.TASK)
        run = run_traced(place, *place.go_on()[1], "--rehearse")
        points = list_kill_points(place, run)
        # As far as the first tool: what follows is the same as in any run.
        # Up to the first tool: the first process is git, which says the commit.
        points = points[:[n for n, (name, _) in enumerate(points) if name in SPAWNS][1] + 1]
        points = [point for point in points if point[0] != "openat"]  # which changes nothing here
        outcomes = sweep_kills(folder, REFERENCE, [(first, point) for point in points])
        survived(check_sweep(points, outcomes, capsys))


BROKEN = {  # what is wrong: (words of the failure, behind which call to kill, changes)
    "no `started`": (
        "whose `started` is not in the log", is_first_rename,
        ("session.append(attempt(make_intent, call, tool, *change))", "pass")),
    "shown before it is on disk": (
        "printed as done, but not in the log",
        lambda call: call.name == "write" and b"read_file {" in call.texts[0],
        ('session.append({"role": "tool", "tool_call_id": call.id, "content": result})', "pass"),
        ('show(f"  {call.name} {str(json.loads(call.arguments))[:60]} -> {last_line[:80]}")', """show(f"  {call.name} {str(json.loads(call.arguments))[:60]} -> {last_line[:80]}")
                session.append({"role": "tool", "tool_call_id": call.id, "content": result})""")),
    "written in place": (
        "neither old nor new", lambda call: "O_TRUNC" in call.arguments,
        ("temporary.replace(path)", "path.write_bytes(data)")),
    "no probe": (
        "edit_file was applied, told: not applied", is_first_rename,
        ('seen.get(probe(str(call.started["path"])), DIFFERS)', "NOT_APPLIED")),
}


@needs_strace
@pytest.mark.parametrize("kind", BROKEN)
def test_the_sweep_is_red_for_a_script_with(kind, tmp_path):
    words, after, *changes = BROKEN[kind]
    broken = load_module(write_copy(tmp_path, *changes))
    with fast_folder() as folder:
        point = list_points(folder, broken, after)[0]
        assert words in sweep_kills(folder, broken, [(point,)])[0]


# ─── random times ────────────────────────────────────────────────────────────────────────────────

def kill_at_random(server, folder, seed, seconds):
    """Kill a served run and perhaps its resume, then let it end.
    Return the number of kills, or what was wrong."""
    dice, kills = random.Random(seed), 0
    try:
        place = Place(folder, REFERENCE)
        run = run_served(place, server, REFERENCE.TASK, kill_after=dice.uniform(0, seconds))
        facts = check_killed(place, run.out, last_words="to go on:")
        for kill_after in (dice.choice([None, dice.uniform(0, seconds)]), None):
            kills += run.killed
            if run.killed:
                run = run_served(place, server, *place.go_on()[1], kill_after=kill_after)
                facts = check_resumed(place, server, facts, run, done=not run.killed)
        return kills
    except AssertionError as error:
        return f"seed {seed}: {error}"


def time_served(server, folder):
    """The seconds of a served run that is not killed."""
    began = time.monotonic()
    assert run_served(Place(folder, REFERENCE), server, REFERENCE.TASK).returncode == 0
    return time.monotonic() - began


def check_random_kills(runs, capsys):
    """Kill runs at random times, two at a time."""
    seeds = range(first := random.randrange(10**6), first + runs)
    with fast_folder() as folder, StrictServer(REFERENCE.rehearsal_model) as server:
        # The first one may wait for the import of openai, which the others share.
        seconds = min(time_served(server, folder / f"whole{number}") for number in range(2))
        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(
                lambda seed: kill_at_random(server, folder / str(seed), seed, seconds), seeds))
    wrong = [text for text in ended if isinstance(text, str)]
    kills = sum(kills for kills in ended if kills not in wrong)
    with capsys.disabled():
        print(f"\nseeds {seeds[0]} to {seeds[-1]}: {runs} runs, {len(wrong)} lost, "
              f"{kills} kills at random times")
    assert not wrong, "\n".join(wrong)
    return runs


def test_killed_at_6_random_times_the_session_goes_on(capsys):
    check_random_kills(6, capsys)


@pytest.mark.long
def test_killed_at_200_random_times_the_session_goes_on(capsys, survived):
    survived(check_random_kills(200, capsys))

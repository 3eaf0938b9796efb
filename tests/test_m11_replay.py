"""Claim: a session is shown, checked and forked; the old file stays, and no kill leaves a half."""

import itertools
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from crash_tools import (PROBLEM, Place, fast_folder, list_kill_points, load_module, needs_strace,
                         run_served, run_traced)
from strict_server import StrictServer, judge
from test_m07_resume import (BEGUN, GOOD, ONE, OPENED, TWO, answer, ask, say, take_stamp,
                             write_session)
from test_m11_search import DAY, SESSIONS, add_records, take_stamps, write_day
from test_main import SHOUT
from test_models import SCRIPT, break_script, call_tool, folder, run_forked, run_script


# ─── show ─────────────────────────────────────────────────────────────────────────────────────────

def show(folder, target, script=SCRIPT) -> list:
    done = run_script(folder, "--show", target, script=script)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_show(script, folder):
    begun, name = {**BEGUN, "ts": 100.0}, call_tool("bash", "c1", command="sleep 7")
    path = write_day(folder, 1, say("做 " + SHOUT), ask(name), tail=b'{"torn": "\n')
    add_records(path, begun, {**answer("c1", "一\n[exit code 3]"), "ts": 107.5}, GOOD)
    before, rows = take_stamps(folder), show(folder, path, script)
    numbers = [int(row.split()[0]) for row in rows if re.match(r"\s*\d+ ", row)]
    assert numbers == [1, 2, 3, 4, 5, 6, 7], rows
    clock = time.strftime("%H:%M:%S", time.localtime(100))
    for row, words in zip(rows, (["session"], ["user", "红"], ["assistant", "bash"], ["skipped"],
                                 ["started", "bash", clock], ["tool", "7.5", "code 3"], ["好"])):
        assert all(word in row for word in words), f"{words} are not all in {row!r}"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\n".join(rows)), "a terminal obeys it"
    assert take_stamps(folder) == before


def check_show_of_a_kill(script, folder):
    assert run_script(folder, "--demo", script=script).returncode == 0
    rows = show(folder, "last", script)
    resumed = next((row for row in rows if "resumed" in row), "")
    assert "in tool edit_file" in resumed, f"where it crashed is not shown: {resumed!r}"
    verdict = rows[rows.index(resumed) + 1]
    assert "applied" in verdict and "tool" in verdict, verdict
    assert "done" in rows[-1]


def check_show_is_linear(script, folder):
    module, seconds = load_module(script), []
    kinds = {"results": lambda n: [ask(call_tool("x", f"c{n}")), answer(f"c{n}", "好")],
             "resumes": lambda n: [{"event": "resumed"}, say("做"), GOOD, PARENT[-1]]}
    for kind, make in kinds.items():
        for size in (400, 3_200):
            path = write_day(folder, 1, *itertools.chain(*map(make, range(size))))
            start = time.perf_counter()
            module.show_session(module.Session(path), str(path))
            seconds.append(time.perf_counter() - start)
        ratio = seconds[-1] / seconds[-2]
        assert ratio < 20, f"8 times as many {kind} take {ratio:.0f} times as long"


def test_show_is_a_line_for_each_record(folder):
    check_show(SCRIPT, folder)


def test_show_says_where_it_was_killed_and_resumed(folder):
    check_show_of_a_kill(SCRIPT, folder)


@pytest.mark.long
def test_show_takes_linear_time(folder):
    check_show_is_linear(SCRIPT, folder)


# ─── check ────────────────────────────────────────────────────────────────────────────────────────

def test_all_words_behind_a_command_belong_to_it(folder):
    write_day(folder, 1, say("修复 tests"), say("修复"))
    assert run_script(folder, "--search", "修复", "tests").stdout.count("line") == 1
    assert run_script(folder, "--show", "last", "修复").returncode == 2


FILES = {  # kind: (records, the bytes behind them, exit code, words of the verdict)
    "sound": ([say("做"), ask(ONE), BEGUN, answer("c1", "一"), GOOD], b"", 0, ["sound:", "6 records"]),
    "empty": (None, b"", 0, ["0 records"]),
    "torn": ([say("做")], b'{"role": "assist', 1, ["damaged:", "line 3"]),
    "no text": ([say("做")], b"\0\0\xff\xfe\n\n[1]\n", 1, ["line 3", "line 5"]),
    "no session": (None, "# 说明\n不是 JSON\n".encode(), 1, ["line 1", "line 2"]),
    "open call": ([say("做"), ask(ONE), BEGUN], b"", 1, ["open:", "bash", "outcome unknown"]),
}


def check_check(script, folder):
    for kind, (records, tail, code, words) in FILES.items():
        path = folder / f"{kind} 🐞.jsonl"
        write_session(path, *([] if records is None else [OPENED, *records]), tail=tail)
        before = take_stamps(folder)
        done = run_script(folder, "--check", path, script=script)
        assert (done.returncode, done.stderr) == (code, ""), (kind, done.stdout)
        assert all(word in done.stdout for word in words), (kind, done.stdout)
        assert take_stamps(folder) == before, f"{kind}: to check is to look"


@pytest.mark.parametrize("arguments, words", [
    (["--resume", ""], "fits none"), (["--resume", "空.jsonl"], "state: empty"),
    (["--sessions", "", "--fork", "里.jsonl"], "damaged lines")])
def test_an_empty_word_or_file_means_nothing_else(arguments, words, folder):
    """An unset variable of a shell; what a process leaves that was killed before its first record."""
    (folder / "空.jsonl").touch()
    write_day(folder, 1, *PARENT).rename(folder / "里.jsonl")
    done = run_script(folder, *arguments)
    assert words in done.stdout + done.stderr and not (folder / "空.jsonl").stat().st_size
    made = [path for path in (folder, Path("/")) for path in path.glob("20*.jsonl")]
    assert [path.parent for path in made] == [folder] * ("--fork" in arguments)


def test_an_empty_session_is_not_the_last_one(folder):
    """A fork that was killed or met a full disk leaves one behind."""
    path = write_day(folder, 1, *PARENT)
    (folder / SESSIONS / f"{DAY.format(2)}.jsonl").touch()
    assert f"sound: {path}" in run_script(folder, "--check", "last").stdout


def test_check_is_a_verdict_and_an_exit_code(folder):
    check_check(SCRIPT, folder)


@pytest.mark.parametrize("option", ["--show", "--check", "--fork", "--salvage"])
def test_a_target_that_is_not_there_is_one_line(option, folder):
    os.mkfifo(folder / "fifo")
    for target in ("没有.jsonl:3", "fifo"):
        done = run_script(folder, option, target)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert not list(folder.rglob("*.jsonl")), "there is nothing, and something was made of it"


# ─── fork and salvage ─────────────────────────────────────────────────────────────────────────────

PARENT = [say("修复 🐞"), {**ask(ONE, TWO), "tracked": True}, BEGUN, answer("c1", "一"),
          {**BEGUN, "tool_call_id": "c2"}, answer("c2", "二"), GOOD,
          {"event": "turn", "state": "done"}]


def fork(folder, option, target, script=SCRIPT) -> Path:
    """The new session that a fork made, and named on its last line."""
    before = take_stamps(folder)
    done = run_script(folder, option, target, script=script)
    assert done.returncode == 0, done.stderr
    after = take_stamps(folder)
    assert before.items() <= after.items(), "the old session was touched"
    made, = after.keys() - before.keys()
    assert str(made) in done.stdout, f"it is not said where the new session is: {done.stdout}"
    return made


def check_fork_history(module, path, parent, line):
    """A valid history; what the copied part leaves open may have run, for the parent went on."""
    messages, kept = module.load_session(path), parent[:line]
    assert judge(messages) == [], f"forked at line {line}: {judge(messages)}"
    results = {each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"}
    real = {each["tool_call_id"]: each["content"] for each in kept if each.get("role") == "tool"}
    assert real.items() <= results.items(), f"forked at line {line}: a real result is lost"
    for call_id in results.keys() - real.keys():
        assert "outcome unknown" in results[call_id], f"forked at line {line}: {results[call_id]}"
    assert [each["content"] for each in messages if each["role"] == "user"][:-1] == [
        each["content"] for each in kept if each.get("role") == "user"]
    note = messages[-1]["content"]
    assert "not rolled back" in note and DAY.format(1) in note and "still be at work" in note


def check_fork_at_each_line(script, folder):
    module, path = load_module(script), write_day(folder, 1, *PARENT)
    before = take_stamp(path)
    for line in range(1, len(PARENT) + 2):
        told = module.fork_session(module.Session(folder / SESSIONS / "none"), f"{path}:{line}")
        made = told.splitlines()[-1]
        check_fork_history(module, made, [OPENED, *PARENT], line)
        assert oct(os.stat(made).st_mode)[-3:] == "600", "others can read it"
        os.unlink(made)
    assert take_stamp(path) == before


def check_fork_goes_on(script, folder):
    path = write_day(folder, 1, *PARENT[:3])
    with load_module(script).Session(path), StrictServer([GOOD]) as server:  # it is still at work
        made = fork(folder, "--fork", f"{DAY.format(1)}:3", script)
        done = run_forked(folder, "--resume", made, "继续", server=server, script=script)
    assert done.returncode == 0 and server.refusals == [], (done.stderr, server.refusals)
    texts = " ".join(each["content"] or "" for each in server.requests[0]["messages"])
    assert "outcome unknown" in texts and "never ran" not in texts, texts
    assert "not rolled back" in texts and "继续" in texts


def check_fork_is_no_crash(script, folder):
    write_day(folder, 1, *PARENT)
    made = fork(folder, "--fork", "last", script)
    said = run_script(folder, "--check", made, script=script).stdout
    assert "(forked)" in said, f"nothing crashed, it was forked from what is done: {said}"


def check_salvage(script, folder):
    path = write_day(folder, 1, say("一"), tail=b'{"role": "user", "con\n' + b"\0" * 50)
    add_records(path, say("三"), ask(ONE), BEGUN, say("二"))
    assert run_script(folder, "--check", path, script=script).returncode == 1
    made = fork(folder, "--salvage", path, script)
    done = run_script(folder, "--check", made, script=script)
    assert done.returncode == 0, f"what was salvaged is damaged: {done.stdout}"
    texts = [each["content"] for each in load_module(script).load_session(made)]
    assert re.search(r"which has [1-9]\d* damaged lines", texts[-1]), f"nothing is left out: {texts[-1]}"
    assert texts[:2] == ["一", "三"] and "二" in texts, f"what was good is lost: {texts}"


def test_a_fork_at_each_line_is_a_valid_history(folder):
    check_fork_at_each_line(SCRIPT, folder)


def test_a_fork_of_a_session_at_work_goes_on(folder):
    check_fork_goes_on(SCRIPT, folder)


def test_a_fork_of_what_is_done_is_no_crash(folder):
    check_fork_is_no_crash(SCRIPT, folder)


def test_a_salvaged_session_is_sound(folder):
    check_salvage(SCRIPT, folder)


# ─── killed, or on a full disk ────────────────────────────────────────────────────────────────────

def check_killed_fork(place, server, parent, before, whole):
    """The old file as it was; the new one absent, empty, or whole, and then it goes on."""
    assert take_stamp(parent) == before, "the old file was touched"
    new = [path for path in place.sessions.glob("*.jsonl") if path != parent]
    assert len(new) < 2, new
    for path in (path for path in new if path.stat().st_size):
        assert place.module.load_session(path) == whole, "the new session is there in part"
        run = run_served(place, server, "--resume", str(path), "继续")
        assert run.returncode == 0 and server.refusals == [], (run.err, server.refusals)
        return "whole"
    return "empty" if new else "absent"


def check_fork_kills(script, folder, step=1):
    """Kill a fork at each system call, or at each `step`-th; how the new session was left."""
    outcomes = {}
    with fast_folder() as memory, StrictServer(lambda messages, tools: GOOD) as server:
        place = Place(memory, load_module(script))
        parent = write_session(place.sessions / f"{DAY.format(1)}.jsonl", OPENED, *PARENT[:4])
        before, arguments = take_stamp(parent), ("--fork", str(parent))
        run = run_traced(place, *arguments)
        assert run.returncode == 0, run.err
        made, = set(place.sessions.glob("*.jsonl")) - {parent}
        whole = place.module.load_session(made)
        for point in list_kill_points(place, run)[::step]:
            for path in set(place.sessions.iterdir()) - {parent}:
                path.unlink()
            assert run_traced(place, *arguments, kill_at=point).returncode == -9, point
            outcomes[point] = check_killed_fork(place, server, parent, before, whole)
    assert {"absent", "whole"} <= set(outcomes.values()), outcomes
    return [*outcomes.values()]


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def check_fork_on_a_full_disk(script, folder):
    path = write_day(folder, 1, *[say("修" * 1_000)] * 20, PARENT[1])
    before = take_stamp(path)
    done = run_script(folder, "--fork", path, script=script, python=(sys.executable, "-c", LIMITED))
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert take_stamp(path) == before
    new = [each for each in (folder / SESSIONS).iterdir() if each != path and each.stat().st_size]
    assert not new, f"half a session, whose calls are not told what is true: {new}"


@needs_strace
def test_a_fork_killed_at_a_sample_of_system_calls_leaves_the_old_and_no_half(folder):
    check_fork_kills(SCRIPT, folder, 4)


@needs_strace
@pytest.mark.long
def test_a_fork_killed_at_each_system_call_leaves_the_old_and_no_half(folder, capsys, survived):
    outcomes = check_fork_kills(SCRIPT, folder)
    survived(len(outcomes))
    with capsys.disabled():
        print(f"\n{len(outcomes)} kills of a fork; the new session was", ", ".join(
            f"{kind} {outcomes.count(kind)} times" for kind in ("absent", "empty", "whole")))


def test_a_fork_that_does_not_fit_on_the_disk_leaves_no_half(folder):
    check_fork_on_a_full_disk(SCRIPT, folder)


# ─── any JSON in any field ────────────────────────────────────────────────────────────────────────

ODD = [None, True, -1, 10**30, 1e300, float("nan"), float("inf"), "", SHOUT, "\ud800", [], [1], {},
       {"a": [1]}, "修" * 10_000, json.loads("[" * 400 + "]" * 400)]
TURN = [{**OPENED, "build": "b", "canary": "k"}, say("修"),
        {**ask(ONE), "tracked": True, "finish_reason": "stop"},
        {**BEGUN, "path": "/没有", "before": "a", "after": "b"},
        {**answer("c1", "一"), "verdict": "applied"},
        {"event": "turn", "state": "aborted", "reason": "x"},
        {"event": "resumed", "cwd": "/", "build": "b"}, {"event": "more", "role": "nobody"}]


def make_odd_turns(value):
    """Turns in which one field of one record is odd, each with and without its result."""
    for number, record in enumerate(TURN):
        for key in [*record, "ts"]:
            odd = {**record, key: value}
            yield from [*TURN[:number], odd, *TURN[number + 1:]]
            yield from [each for each in [*TURN[:number], odd, *TURN[number + 1:]]
                        if each is not TURN[4]]


def check_odd_values(script, folder):
    module, path, wrong = load_module(script), write_day(folder, 1), set()
    nobody = module.Session(folder / SESSIONS / "none")
    for value in ODD:
        path.write_text("", encoding="utf-8")
        add_records(path, *({"ts": 1, **each} for each in make_odd_turns(value)))
        for ask_for in (module.show_session, module.check_session, module.search_sessions,
                        module.fork_session):
            try:
                said = ask_for(nobody, "修" if ask_for is module.search_sessions else str(path))
                if ask_for is module.fork_session:
                    said = said.splitlines()[-1]
                    assert judge(module.load_session(said)) == []
                    os.unlink(said)
            except Exception as error:
                wrong.add(f"{ask_for.__name__} of {str(value)[:20]!r}: {error!r}")
    assert not wrong, "\n".join(sorted(wrong))


def test_any_json_in_any_field_raises_nothing(folder):
    check_odd_values(SCRIPT, folder)


# ─── each protection is seen when it is gone ──────────────────────────────────────────────────────

WRITE = 'replace_file(pathlib.Path(path), b"".join(map(encode_record, records)))'
TELL = '{**told, "tool_call_id": call.id} for call in open_calls(records)'
REMOVED = {  # name: (the check that has to see it, the protection, what is there instead)
    "the number of a skipped line": (check_show, '.format(*row)', '.format(0, row[1])'),
    "the seconds": (check_show, ':.1f} s)"', ':.0f})"'),
    "where it crashed": (check_show_of_a_kill, 'kind == "resumed" and', 'kind == "" and'),
    "escapes": (check_show, 'f"\\\\x{ord(found[0]):02x}"', "found[0]"),
    "the exit code": (check_check, 'not said.startswith("sound")', "False"),
    "open calls in the verdict": (check_check, "\"open\" if open_calls(seen.records) else \"sound\"", '"sound"'),
    "the line": (check_fork_at_each_line, 'float(last)', 'float("inf")'),
    "what may have run": (check_fork_at_each_line, TELL, ""),
    "what a copy is": (check_fork_at_each_line, '{"role": "user", "content": note}, ', ""),
    "a file of its own": (
        check_fork_at_each_line, "path = new_session_path(session.folder)", "path = source"),
    "one write": (check_fork_kills, WRITE,
                  "[append_jsonl(path, each) for each in records]"),
    "what is good on a damaged line": (
        check_salvage, "for record in records)\n\ndef", "for record in records if not problem)\n\ndef"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_the_check_sees_that_this_is_removed(name, folder, tmp_path):
    check, old, new = REMOVED[name]
    if check is check_fork_kills and PROBLEM:
        pytest.skip(PROBLEM)
    script = break_script(tmp_path / "broken", (old, new))
    with pytest.raises(AssertionError):
        check(script, folder)

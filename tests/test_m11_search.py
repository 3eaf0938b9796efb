"""Claim: what was said in any session is found, by the model too, and looking changes nothing."""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import bench
import pytest
from crash_tools import fast_folder, load_module
from strict_server import StrictServer
from test_m07_resume import (GOOD, ONE, OPENED, UNPRIVILEGED, answer, ask, open_folder, say,
                             take_stamp, write_session)
from test_main import talk
from test_models import SCRIPT, break_script, call_tool, folder, run_forked, run_script

SESSIONS = Path(".tinyharness", "sessions")
DAY = "2026-01-{:02d}_120000_獭"


def write_day(folder, day, *records, **more) -> Path:
    """The session of one day of January, in the folder's own place for sessions."""
    return write_session(folder / SESSIONS / f"{DAY.format(day)}.jsonl", OPENED, *records, **more)


def add_records(path, *records):
    """Append records with the times that they say."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def take_stamps(folder) -> dict:
    """The bytes and the time of every session below a folder."""
    return {path: take_stamp(path) for path in Path(folder).rglob("*.jsonl") if path.is_file()}


# ─── search ───────────────────────────────────────────────────────────────────────────────────────

def read_hits(text) -> list:
    """(id, line numbers) of each session in what a search said; [] if nothing was found."""
    hits = []
    for line in text.splitlines():
        if line.startswith(" "):
            hits[-1][1].append(int(re.search(r"\d+", line)[0]))
        elif re.match(r"2026-\S+$", line):
            hits.append((line, []))
    return hits


def write_diary(folder):
    """Sessions in which the words of the queries stand, each in another way."""
    write_day(folder, 1, say("请修复 Parse_Date.py 🐞"), say('say "quoted\\path" 完', "assistant"))
    write_day(folder, 2, say("parse_date.py 的月份"), ask(ONE), answer("c1", "ÜBUNG [exit code 0]"))
    write_day(folder, 3, say([{"type": "text", "text": "PARSE_DATE\u2028修复\n好"}], "assistant"),
              tail=b'{"role": "user", "content": "\xe4\xbf\n{"role":"user","content":"late"}\n')
    path = write_day(folder, 4, tail=json.dumps(say("glued one")).encode())
    add_records(path, say("glued two", "assistant"), say("late"))


QUERIES = {  # what is asked for: the (day, lines) where it stands, the newest first
    "parse_date 修复": [(3, [2]), (1, [2])],
    "PARSE_date.PY": [(2, [2]), (1, [2])],
    "修复 🐞": [(1, [2])],
    '"QUOTED\\path"': [(1, [3])],
    "übung": [(2, [4])],
    "Übung exit": [(2, [4])],
    "LATE": [(4, [3]), (3, [4])],
    "glued": [(4, [2, 2])],
    "glued one": [(4, [2])],
    "assistant": [],
    "修复 glued": [],
    " \t ": [],
}


def check_search(script, folder):
    write_diary(folder)
    before, module = take_stamps(folder), load_module(script)
    for query, want in QUERIES.items():
        found = module.search_sessions(module.Session(folder / SESSIONS / "none"), query)
        want = [(DAY.format(day), lines) for day, lines in want]
        assert read_hits(found) == want, f"{query!r}: {found}"
    done = run_script(folder, "--search", "月份", script=script)
    assert done.returncode == 0 and read_hits(done.stdout) == [(DAY.format(2), [2])], done.stderr
    assert "parse_date.py 的月份" in done.stdout, "there is no snippet around the word"
    assert take_stamps(folder) == before, "to search is to look, and it changed something"


def check_search_finds_escapes(script, folder):
    path = write_day(folder, 1)
    add_records(path, say("修复 ✅"), say("好 Ü", "assistant"))
    for query, lines in ("修复", [2]), ("✅", [2]), ("ü", [3]):
        done = run_script(folder, "--search", query, script=script)
        assert read_hits(done.stdout) == [(path.stem, lines)], (
            f"{query} stands in the file as an escape, as the chapter's json.dumps writes it")


def check_search_is_fresh(script, folder):
    module, path = load_module(script), folder / SESSIONS / f"{DAY.format(5)}.jsonl"
    with module.Session(path) as session:
        session.append(say("刚才说的"))
        done = run_script(folder, "--search", "刚才", script=script)
    assert read_hits(done.stdout) == [(path.stem, [2])], "what was just written is not found"


def check_search_as_tool(script, folder, said="暗号 Otter-7", query="otter-7 暗号"):
    write_day(folder, 1, say(said))
    call = ask(call_tool("search_sessions", query=query))
    with StrictServer([call, GOOD]) as server:
        done = run_forked(folder, f"{said} 是什么?", server=server, script=script)
    assert done.returncode == 0 and server.refusals == [], done.stderr
    told = server.requests[1]["messages"][-1]["content"]
    assert read_hits(told) == [(DAY.format(1), [2])], f"the running session is no past: {told}"
    names = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert "search_sessions" in names


def check_search_is_bounded(script, folder):
    module = load_module(script)
    for day in range(1, 21):
        write_day(folder, day, *[say(f"{day} 常用 word {number}") for number in range(1_000)])
    with module.Session(folder / SESSIONS / "2026-02-01_now.jsonl", folder) as session:
        result = module.search_sessions(session, "word")
    assert len(result.encode()) <= 60_000, f"{len(result):,} characters go to the model at once"
    assert DAY.format(20) in result, "of what is too much, the newest is what is wanted"


def test_search_finds_all_words_in_any_case_and_changes_nothing(folder):
    check_search(SCRIPT, folder)


def test_search_finds_what_is_escaped_in_the_file(folder):
    check_search_finds_escapes(SCRIPT, folder)


def test_search_finds_what_was_written_a_moment_ago(folder):
    check_search_is_fresh(SCRIPT, folder)


def test_the_model_searches_other_sessions_without_asking(folder):
    check_search_as_tool(SCRIPT, folder)


def test_the_running_session_is_left_out_where_case_changes_bytes_too(folder):
    check_search_as_tool(SCRIPT, folder, "Übung 1", "übung")


def test_what_a_search_tells_the_model_is_bounded(folder):
    check_search_is_bounded(SCRIPT, folder)


def test_before_the_first_session_there_is_nothing_and_no_error(folder):
    done = run_script(folder, "--search", "词")
    assert (done.returncode, done.stderr) == (0, "") and list(folder.iterdir()) == []


def check_exit_code_is_of_the_check_alone(script, folder):
    write_session(folder / SESSIONS / "damaged_獭.jsonl", OPENED, say("词"), GOOD)
    for arguments in (["--search", "词"], ["--show", "damaged"]):
        done = run_script(folder, *arguments, script=script)
        assert done.returncode == 0, f"{arguments}: a name is no verdict: {done.stdout}"


def test_a_session_named_damaged_is_no_failure_of_a_search(folder):
    check_exit_code_is_of_the_check_alone(SCRIPT, folder)


def check_unreadable_costs_only_itself(script, folder):
    for day in (1, 3):
        write_day(folder, day, say("找得到"), GOOD)
    write_day(folder, 2, say("找得到")).chmod(0)
    os.mkfifo(folder / SESSIONS / "2026-01-04_fifo.jsonl")
    (folder / SESSIONS / "2026-01-05_folder.jsonl").mkdir()
    (folder / SESSIONS / "2026-01-06_link.jsonl").symlink_to("没有")
    for path in (folder / ".tinyharness", folder / SESSIONS):
        path.chmod(0o777)
    done = run_script(folder, "--search", "找得到", script=script,
                      python=(sys.executable, "-c", UNPRIVILEGED))
    assert [name for name, _ in read_hits(done.stdout)] == [DAY.format(3), DAY.format(1)], (
        f"one file that cannot be read hides the others: {done.stdout or done.stderr}")


def test_what_cannot_be_read_hides_no_other_session(open_folder):
    check_unreadable_costs_only_itself(SCRIPT, open_folder)


RATIOS = {"needle": 12, "修复缺陷": 20, "zebra": 12, "dates": 20, "Übung": 500}  # upper limits


def time_run(command, **options) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, **options)
    return time.perf_counter() - start


@pytest.mark.long
def test_search_of_a_thousand_sessions_beside_grep(capsys):
    turns = [b"".join(map(bench.tinyharness.encode_record, bench.make_turn(n))) for n in range(12)]
    found = bench.tinyharness.encode_record(say("Needle 在这里: 修复缺陷 🐞"))
    with fast_folder() as folder:
        for number in range(1_000):
            path = folder / f"2026-01-01_{number:06d}_otter.jsonl"
            path.write_bytes(b"".join(turns) + found * (number % 100 == 7))
        paths, ratios = sorted(folder.iterdir()), {}
        size = sum(path.stat().st_size for path in paths)
        for word in RATIOS:
            search = [sys.executable, SCRIPT, "--sessions", folder, "--search", word]
            # Interleaved, so that what else the machine does is slow to both.
            pairs = [(time_run(search), time_run(["grep", "-ci", word, *paths])) for _ in range(5)]
            ours, grep = map(statistics.median, zip(*pairs))
            ratios[word] = ours / grep
            with capsys.disabled():
                print(f"\n{size / 1e6:.0f} MB, --search {word} {ours:.2f} s, grep -ci {grep:.2f} s, "
                      f"ratio {ours / grep:.1f} (wanted: 2)", end="")
    assert all(ratios[word] <= RATIOS[word] for word in RATIOS), ratios


# ─── commands at the prompt ───────────────────────────────────────────────────────────────────────

def type_lines(folder, lines, replies, script) -> tuple:
    """What was shown after each line that a person typed at the prompt, and the requests."""
    with StrictServer(replies) as server:
        typed = [("> ", f"{line}\n") for line in lines]
        seen = talk(folder, typed, server=server, script=script).replace("\r", "")
    shown = [part.partition("\n") for part in seen.split("> ")[1:]]
    assert [line for line, _, _ in shown] == lines, f"not each line has a prompt: {seen}"
    return {line: text for line, _, text in shown}, server.requests


def check_commands(script, folder):
    past, prompt = write_day(folder, 1, say("坏了 Otter-7"), GOOD), "/usr/bin is broken 坏了"
    lines = [prompt, "/help", "/search OTTER-7", "/search 坏了", f"/show {past.stem}",
             "/show", "/fork", "/exit"]
    shown, requests = type_lines(folder, lines, [GOOD], script)
    assert [each["messages"][-1]["content"] for each in requests] == [prompt], "what was asked"
    assert all(word in shown["/help"] for word in ("/search", "/show", "/fork", "/exit"))
    for query in lines[2:4]:  # the running session holds the second word too
        assert read_hits(shown[query]) == [(past.stem, [2])], shown[query]
    assert "坏了 Otter-7" in shown[lines[4]] and prompt in shown["/show"], shown
    new = {str(path): load_module(script).read_jsonl(path)
           for path in (folder / SESSIONS).iterdir() if path != past}
    copy = shown["/fork"].strip().splitlines()[-1]
    forked = [records for path, records in new.items() if path == copy]
    (own,) = [records for path, records in new.items() if path != copy]
    assert len(forked) == 1 and forked[0][:len(own)][1]["content"] == prompt
    said = [record["content"] for record in own if record.get("role") == "user"]
    assert said == [prompt], "a command is no part of what was said"


MISTYPED = {"/show 没有": "没有", "/fork 没有:3": "没有", "/check": "sound", "/search": "nothing",
            "/help ": "/exit", "/exit": ""}


def check_mistyped_commands(script, folder):
    shown, requests = type_lines(folder, [*MISTYPED], [GOOD], script)
    assert requests == [], f"a mistyped command went to the model: {requests}"
    assert all(word in shown[line] for line, word in MISTYPED.items()), shown


def test_commands_at_the_prompt(folder):
    check_commands(SCRIPT, folder)


def test_a_mistyped_command_ends_nothing(folder):
    check_mistyped_commands(SCRIPT, folder)


# ─── each protection is seen when it is gone ──────────────────────────────────────────────────────

REMOVED = {  # name: (the check that has to see it, the protection, what is there instead)
    "all of the words": (check_search, "all(word in text.lower()", "any(word in text.lower()"),
    "any case": (check_search, "clean(query).lower()", "clean(query)"),
    "bytes as they are in the file": (
        check_search, "encode_record(word)[1:-2]", "json.dumps(word)[1:-1].encode()"),
    "letters with another case": (check_search, "word == word.upper()", "word"),
    "files with escapes": (check_search_finds_escapes, 'b"\\\\u" in data', "False"),
    "the newest first": (check_search, "reverse=True", "reverse=False"),
    "the running session left out": (
        check_search_as_tool, "path != own and", "True and"),
    "ordinary prompts": (check_commands, "if name not in COMMANDS:", 'if name[:1] != "/":'),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_the_check_sees_that_this_is_removed(name, folder, tmp_path):
    check, old, new = REMOVED[name]
    script = break_script(tmp_path / "broken", (old, new))
    with pytest.raises(AssertionError):
        check(script, folder)

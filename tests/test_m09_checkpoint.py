"""Claim: a session resumes as fast as its conversation is long, and none is too long to go on."""

import contextlib
import json
import os
import random
import re
import shutil
import statistics
import sys
import time
import tracemalloc

import bench
import pytest
from crash_tools import (PROBLEM, Place, fast_folder, list_kill_points, load_module, needs_strace,
                         run_served, run_traced)
from strict_server import StrictServer, judge
from test_crash_histories import Generator
from test_m07_resume import BEGUN, GOOD, ONE, OPENED, answer, ask, say, write_session
from test_models import FOLDER, break_script, call_tool, run_forked, run_script
from whole_script import SCRIPT

pytestmark = pytest.mark.long  # the sections are a patch so far

CODE = 'say("修复 🐞", {"a": \'b\\n\'})\n' * 100  # what costs most within a string within a string
DEEP = "想" * 40_000  # 120 kB of reasoning: in the log, and in no request
LAST_WORDS = "总结: 修了 🐞"


def quiet(text, **_):
    """Show nothing."""


def is_asked_to_sum_up(module, messages):
    """Whether a request is the one for a summary."""
    return messages[0]["content"].startswith(module.SUMMARY)


def make_model(module, reply=GOOD, summary=LAST_WORDS):
    """A model that gives one reply, and one summary; each history that it is sent must be valid."""
    def model(messages, tools):
        assert judge(messages) == [], f"a provider refuses the history: {judge(messages)}"
        model.requests.append(messages)
        if is_asked_to_sum_up(module, messages):
            return say(summary, "assistant")
        return reply(messages) if callable(reply) else reply
    model.requests = []
    return model


def take_turns(module, path, model, *prompts, **given):
    """Take a turn for each prompt in one session, and return what its memory holds then."""
    with module.Session(path, path.parent, "m", **given) as session:
        for prompt in prompts:
            try:
                module.run_turn(session, prompt, model, show=quiet)
            except module.Failure as failure:
                raise AssertionError(str(failure)) from failure
        return session.messages()


def read_lines(path):
    """Each line of a log: (its number, its bytes, its record)."""
    lines = enumerate(path.read_bytes().splitlines(keepends=True), 1)
    return [(number, line, json.loads(line)) for number, line in lines]


def find_checkpoints(path):
    """The lines of a log that are checkpoints."""
    return [each for each in read_lines(path) if each[2].get("event") == "checkpoint"]


def read_plainly(module, path):
    """The messages as if there were no checkpoint: all that was said."""
    records = module.read_jsonl(path)
    return module.repair([each for each in records if each.get("event") != "checkpoint"])


def users(messages):
    """What the user said."""
    return [each["content"] for each in messages if each["role"] == "user"]


def share(path):
    """The bytes of checkpoints per byte of a log."""
    return sum(len(line) for _, line, _ in find_checkpoints(path)) / path.stat().st_size


@pytest.fixture
def folder():
    """A folder in memory: no test here looks at what a power loss would leave."""
    with fast_folder() as path:
        (path / FOLDER).mkdir()
        yield path / FOLDER


# ─── growth ───────────────────────────────────────────────────────────────────────────────────────

def check_growth(script, folder):
    module, path = load_module(script), folder / "长.jsonl"
    model = make_model(module, {**GOOD, "reasoning_content": DEEP})
    held = take_turns(module, path, model, *[f"做 {number} 🐞" for number in range(20)])
    found, sizes = find_checkpoints(path), [len(line) for _, line, _ in read_lines(path)]
    assert len(found) == 2, f"2.4 MB were written, and {len(found)} checkpoints"
    for begin, (number, _, record) in zip([0, found[0][0]], found):
        grown = sum(sizes[begin:number - 1])
        assert grown > module.CHECKPOINT_BYTES, f"a checkpoint after {grown} bytes"
        assert record["line"] == number, "a checkpoint does not know its own line"
    assert len(model.requests) == 20, "a model was asked for what it need not know"
    loaded = module.load_session(path)
    assert loaded == read_plainly(module, path), "a checkpoint changes what was said"
    assert loaded == held[1:] == take_turns(module, path, model)[1:], "memory holds something else"


def check_cost(script, folder):
    module, path = load_module(script), folder / "贵.jsonl"
    model = make_model(module, {**GOOD, "reasoning": DEEP})
    take_turns(module, path, model, CODE * 40, *["继续"] * 30)
    assert find_checkpoints(path), "a log of 3.6 MB has none"
    assert share(path) <= 0.1, f"{share(path):.1%} of all bytes are checkpoints"


def check_cost_of_summaries(script, folder):
    module, path = load_module(script), folder / "总.jsonl"
    (folder / "码.py").write_text(bench.CODE * 30, encoding="utf-8")  # 2.6 kB

    def reply(messages):
        read = call_tool("read_file", f"c{len(model.requests)}", path="码.py")
        return say(bench.CODE * 30, "assistant") if messages[-1]["role"] == "tool" else ask(read)
    model = make_model(module, reply, bench.CODE * 10)
    take_turns(module, path, model, *["修复 🐞"] * 36, context=20_000)
    assert len(find_checkpoints(path)) > 2, "200 kB were said in 60 kB, and not summed up"
    assert share(path) <= 0.1, f"{share(path):.1%} of all bytes are checkpoints"


def check_only_the_end_is_read(script, folder):
    module, path = load_module(script), folder / "尾.jsonl"
    model = make_model(module, {**GOOD, "reasoning_content": DEEP})
    held, data = take_turns(module, path, model, *["做 🐞"] * 12), path.read_bytes()
    last = sum(len(line) for number, line, _ in read_lines(path)
               if number < find_checkpoints(path)[-1][0])
    path.write_bytes(b"\0" * (last - 1) + data[last - 1:])
    assert module.load_session(path) == held[1:], "what lies before the last checkpoint is read"


def check_who_wrote_last(script, folder):
    module, path = load_module(script), folder / "别处" / "谁.jsonl"
    opened = {**OPENED, "cwd": str(folder), "build": "甲"}
    write_session(path, opened, say("做"), {**GOOD, "reasoning_content": DEEP * 10})
    take_turns(module, path, make_model(module), "继续")
    with module.Session(path) as session:
        assert find_checkpoints(path) and session.workspace == str(folder), "not where it began"
        assert "of build" not in module.write_receipt(session), "another build wrote last, it says"


def repair_behind_memory(module, records):
    """The messages behind the last extraction."""
    places = [place for place, each in enumerate(records) if each.get("event") == "memory"]
    return module.repair(records[places[-1]:] if places else records)


def check_watermark(script, folder):
    """What was extracted is not extracted again, and what was not still is."""
    module, path = load_module(script), folder / "记.jsonl"
    def use(session, number):
        session.append(ask(call_tool("bash", f"c{number}", command="echo 一")))
        session.append(answer(f"c{number}", "一" * 400))
    with module.Session(path, folder, "m") as session:
        session.append(say(FIRST))
        for number in range(20):
            number == 12 and session.append({"event": "memory", "line": 27, "content": "记住"})
            use(session, number)
        before = repair_behind_memory(module, session.records)
        module.add_checkpoint(session)
        after = repair_behind_memory(module, session.records)
        assert len(before) == 16 and after == before, (
            f"{len(after)} messages are new to the memory, and not the {len(before)} that were")


# ─── compaction ───────────────────────────────────────────────────────────────────────────────────

FIRST, SECOND = "修复 parse_date.py 🐞", "继续, 还有测试"
SAID = "好的, 我看了 「{}」。" + "字" * 700  # about 2.1 kB


def write_long(folder, turns=30):
    """A session that waits for a prompt, and is long: 65 kB in 30 turns, each with a call."""
    records = [{**OPENED, "cwd": str(folder)}]
    for turn in range(turns):
        call = call_tool("bash", f"c{turn}", command=f"echo {turn}")
        records += [say(f"{FIRST} {turn}"), ask(call), answer(f"c{turn}", f"{turn}\n[exit code 0]"),
                    say(SAID.format(turn), "assistant"), {"event": "turn", "state": "done"}]
    return write_session(folder / "长.jsonl", *records)


def check_compacted(module, path, sent, before, room):
    """What is sent in place of a long history: less, valid, and what must stay is there."""
    sent = [each for each in sent if each["role"] != "system"]
    assert judge(sent) == [], f"a pair was split: {judge(sent)}"
    said, plain = users(sent), read_plainly(module, path)
    assert said[0] == f"{FIRST} 0", f"the first request is lost: {said[0]}"
    assert said[-1] == SECOND, f"the last request is lost: {said[-1]}"
    summaries = [text for text in said if text.startswith(module.SUMMED)]
    assert len(summaries) == 1 and LAST_WORDS in summaries[0], f"not one summary: {summaries}"
    kept = [each for each in sent if each["content"] not in summaries]
    assert all(each in plain for each in kept), "a message was changed"
    tail = sent[sent.index({"role": "user", "content": summaries[0]}) + 1:]
    end = plain.index(tail[-1]) + 1
    assert tail == plain[end - len(tail):end], "the last turns did not stay as they were"
    size = len(json.dumps(tail, ensure_ascii=False).encode())
    assert size <= room, f"{size} bytes of the last turns stay, where {room} fit"
    assert len(tail) > 1 and size > room - 3_000, f"only {size} bytes stay, where {room} fit"
    assert path.read_bytes().startswith(before), "the original is not in the log any more"
    assert len(find_checkpoints(path)) == 1


def check_estimate(script, folder):
    module, path = load_module(script), write_long(folder)
    before = path.read_bytes()
    with StrictServer([say(LAST_WORDS, "assistant"), GOOD]) as server:
        done = run_forked(folder, "--resume", path, "--context", "20000", SECOND, server=server,
                          script=script)
    assert done.returncode == 0 and server.refusals == [], (done.stderr, server.refusals)
    assert len(server.requests) == 2, f"{len(server.requests)} requests: one summary, one answer"
    assert is_asked_to_sum_up(module, server.requests[0]["messages"]), "no summary was asked for"
    assert "tools" not in server.requests[0], "who sums up is offered tools"
    for number in 0, 9:
        asked = server.requests[0]["messages"][0]["content"]
        assert f"「{number}」" in asked, f"turn {number} is left out, and in no summary"
    check_compacted(module, path, server.requests[1]["messages"], before, 20_000 * 3 // 15)
    loaded = module.load_session(path)
    assert loaded == [*server.requests[1]["messages"][1:], GOOD], "it is resumed as something else"
    return server


def refuse_longer(module, most, summary=LAST_WORDS):
    """A provider that takes so many bytes of a history, and no more."""
    def model(messages, tools):
        if len(json.dumps(messages, ensure_ascii=False).encode()) > most:
            return {"status": 400, "error": "This model's maximum context length is exceeded 🐞"}
        return say(summary, "assistant") if is_asked_to_sum_up(module, messages) else GOOD
    return model


def run_refused(script, folder, most, *options, **more):
    """Go on with a long session at a provider that takes so many bytes."""
    module, path = load_module(script), write_long(folder)
    before = path.read_bytes()
    with StrictServer(refuse_longer(module, most, **more)) as server:
        done = run_forked(folder, "--resume", path, *options, SECOND, server=server, script=script)
    assert server.refusals == [] and "Traceback" not in done.stderr, done.stderr
    assert path.read_bytes().startswith(before), "old bytes must be a prefix of the new file"
    return module, path, before, done, server


def check_refusal(script, folder):
    module, path, before, done, server = run_refused(script, folder, 60_000)
    assert done.returncode == 0, f"a context that is too long ends it: {done.stderr}"
    kinds = [is_asked_to_sum_up(module, each["messages"]) for each in server.requests]
    assert kinds == [False, True, False], f"not refused, summed up, answered: {kinds}"
    check_compacted(module, path, server.requests[2]["messages"], before, 20_000)


FAILED = {  # kind: (what the provider takes, options, whether each request is for a summary)
    "the summary is refused": (16_000, [], [False, True]),
    "it is refused again": (60_000, [], [False, True, False]),
    "it is too long all the same": (80_000, ["--context", "20000"], [True, False]),
}


def check_failed_again(script, folder, kinds=("it is refused again",)):
    for kind in kinds:
        most, options, requests = FAILED[kind]
        module, path, _, done, server = run_refused(
            script, folder, most, *options, summary=LAST_WORDS + "长" * 30_000)
        plain = [line for line in done.stderr.splitlines() if line.startswith("tinyharness: ")]
        assert done.returncode == 1 and len(plain) == 1, f"{kind}: no plain error: {done.stderr}"
        assert "context length" in plain[0], plain
        asked = [is_asked_to_sum_up(module, each["messages"]) for each in server.requests]
        assert asked == requests, f"{kind}: more than one attempt, or none: {asked}"
        assert len(find_checkpoints(path)) == (kind != "the summary is refused")
        messages = module.load_session(path)
        assert judge(messages) == [] and users(messages)[-1] == SECOND
        assert users(messages)[0] == f"{FIRST} 0"


def fail(text):
    """A model's reply that never comes."""
    raise ConnectionError(text)


NO_SUMMARIES = {  # kind: what the model does where it is to sum up
    "fails": lambda: fail("忙"), "is empty": lambda: say("", "assistant"),
    "is blank": lambda: say(" \n\t", "assistant"), "is a call": lambda: ask(ONE),
    "is interrupted": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
}


def check_no_summary(script, folder):
    module = load_module(script)
    for kind, reply in NO_SUMMARIES.items():
        path = write_long(folder)
        before = module.load_session(path)
        with module.Session(path, context=20_000) as session:
            try:
                module.run_turn(session, SECOND, lambda messages, tools: reply(), show=quiet)
            except (module.Failure, KeyboardInterrupt):
                pass
            else:
                raise AssertionError(f"a summary that {kind} is taken for one")
            changed = session.messages()[1:] != [*before, say(SECOND)]
            assert not changed, f"a summary that {kind} changes what is in memory"
        assert module.load_session(path) == [*before, say(SECOND)], f"one that {kind} is kept"
        assert not find_checkpoints(path) and read_lines(path)[-1][2]["event"] == "turn"


def check_one_summary(script, folder):
    module, path, found = load_module(script), folder / "多.jsonl", []
    replies = iter(range(10**9))
    model = make_model(module, lambda messages: say(SAID.format(next(replies)), "assistant"))
    for turn in range(30):
        prompt = f"{FIRST} {turn}"
        messages = take_turns(module, path, model, prompt, context=3_000)[1:]
        said = users(messages)
        assert said[0] == f"{FIRST} 0" and prompt in said, f"turn {turn}: a request is lost"
        found.append(sum(text.startswith(module.SUMMED) for text in said))
    count = len(find_checkpoints(path))
    assert count > 3 and set(found) == {0, 1}, f"{count} compactions leave summaries: {found}"
    old = [each for each in model.requests if is_asked_to_sum_up(module, each)]
    assert all(LAST_WORDS in each[0]["content"] for each in old[1:]), "an old summary is dropped"


def check_long_turn(script, folder):
    """Summed up in the middle of a turn, and again: what it is all for stays."""
    module, path = load_module(script), folder / "一轮.jsonl"
    (folder / "码.py").write_text(bench.CODE * 10, encoding="utf-8")

    def reply(messages):
        said, number = users(messages), len(model.requests)
        assert said[0] == FIRST, f"the first request is lost: {said}"
        assert SECOND in said, f"the last request is lost: {said}"
        assert sum(text.startswith(module.SUMMED) for text in said) <= 1, f"two summaries: {said}"
        return ask(call_tool("read_file", f"c{number}", path="码.py")) if number < 60 else GOOD
    model = make_model(module, lambda messages: GOOD)
    take_turns(module, path, model, FIRST)
    model = make_model(module, reply)
    take_turns(module, path, model, SECOND, context=3_000)
    found = find_checkpoints(path)
    assert len(found) > 3, "50 kB were read in 9 kB, and not summed up"
    for number, _, record in found:
        kept = map(json.loads, record["records"].splitlines())
        objections = judge([each for each in kept if "role" in each])
        assert objections == [], f"a pair is split in line {number}: {objections}"


def check_nothing_to_sum_up(script, folder):
    module, path = load_module(script), folder / "一.jsonl"
    model = make_model(module)
    take_turns(module, path, model, CODE * 10, context=3_000)
    assert len(model.requests) == 1 and not find_checkpoints(path), "one request is summed up"
    refusing = make_model(module, lambda messages: fail("maximum context length exceeded"))
    with contextlib.suppress(AssertionError):
        take_turns(module, folder / "二.jsonl", refusing, CODE)
    assert len(refusing.requests) == 1, "what is refused is asked again, though nothing changed"


def check_history(module, path, seed):
    """A random history, compacted in three turns in a row."""
    generator = Generator(seed)
    path.write_bytes(generator.file(generator.history()))
    first, model = users(module.load_session(path))[:1], make_model(module)
    with module.Session(path, path.parent, "m", context=9) as session:
        for number in range(3):
            module.run_turn(session, f"继续 {number}", model, show=quiet)
            loaded = module.load_session(path)
            assert judge(loaded) == [] and loaded == module.repair(session.records), (
                "memory and file differ, or strict providers refuse it")
            said = users(loaded)
            assert not first or first[0] in said, f"the first request is lost: {said}"
            assert f"继续 {number}" in said, f"the last request is lost: {said}"
            assert sum(text.startswith(module.SUMMED) for text in said) <= 1, "two summaries"


def check_histories(script, folder, seeds=range(30)):
    module = load_module(script)
    for seed in seeds:
        try:
            check_history(module, folder / "历史.jsonl", seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# ─── torn and damaged ─────────────────────────────────────────────────────────────────────────────

def write_two(module, folder):
    """A log with two checkpoints, a summary in each, and records behind; where the second is."""
    path, model = folder / "二.jsonl", make_model(module)
    path.unlink(missing_ok=True)
    with module.Session(path, folder, "m", context=500) as session:
        for turn in range(3):
            for part in range(3):
                session.append(say(f'"{FIRST}" {turn}{part}\n{{"event": "checkpoint", '))
                session.append(say(f"好 {turn}{part} " * 5, "assistant"))
            turn < 2 and module.add_checkpoint(session, model)
    (_, first, _), (number, line, _) = find_checkpoints(path)
    assert first in path.read_bytes() and len(line) > 500
    return path, path.read_bytes(), path.read_bytes().index(line), len(line)


def list_damages(data, start, size, step):
    """(place, what, bytes): each way to damage the line of a checkpoint."""
    for place in range(start - 1, start + size, step):
        for byte in (b"\0", b"\xff", b"\n"):
            if data[place:place + 1] != byte:
                yield place - start, byte, data[:place] + byte + data[place + 1:]


def keep_records(module, path):
    """The records of a log that are no checkpoints, not even one whose name is damaged."""
    return [each for each in module.read_jsonl(path) if not {"line", "records"} & each.keys()]


def check_damage(script, folder, step=1):
    """Any byte of the last checkpoint is damaged: the one before is used, and all behind it."""
    module = load_module(script)
    path, data, start, size = write_two(module, folder)
    records, whole = keep_records(module, path), module.load_session(path)
    path.write_bytes(data[:start] + data[start + size:])
    fallen, tried = module.load_session(path), 0
    assert fallen != whole and fallen[-1] == whole[-1], "the two must tell themselves apart"
    for place, byte, damaged in list_damages(data, start, size, step):
        path.write_bytes(damaged)
        loaded = module.load_session(path)
        assert loaded == fallen, f"byte {place} is {byte!r}: not what the one before leads to"
        assert keep_records(module, path) == records, f"byte {place} is {byte!r}: records differ"
        tried += 1
    inner = data.index(b'\\n{', start) + 2
    path.write_bytes(data[:inner] + b"x" + data[inner + 1:])
    assert module.load_session(path) == fallen, "a checkpoint that is torn inside is used"
    first = data.index(module.CHECKPOINT) + 5
    path.write_bytes(data[:first] + b"\0" + data[first + 1:start] + b"\0" + data[start + 1:])
    assert module.load_session(path) == read_plainly(module, path), "without any, not all is read"
    return tried


def check_cuts(script, folder, step=1):
    """The last checkpoint is torn behind any byte: what is appended then stays too."""
    module = load_module(script)
    path, data, start, size = write_two(module, folder)
    new, tried = say("接着做 🐞"), 0
    path.write_bytes(data[:start])
    module.append_jsonl(path, new)
    fallen = module.load_session(path)
    for place in range(start, start + size - 1, step):
        path.write_bytes(data[:place])
        assert module.load_session(path) == fallen[:-1], f"torn at byte {place - start}"
        module.append_jsonl(path, new)
        assert module.load_session(path) == fallen, f"torn at byte {place - start}, then appended"
        tried += 1
    for place in start + size - 1, start + size:  # without its newline it is whole
        path.write_bytes(data[:place])
        module.append_jsonl(path, new)
        assert module.load_session(path)[-1] == new and not path.read_bytes().count(b"\n\n")
        assert LAST_WORDS in str(module.load_session(path)), "a whole checkpoint is not used"
        path.write_bytes(data[:start + size - 1] + b" " + json.dumps(new).encode() + b"\n")
        assert module.load_session(path)[-1] == new, "a record on the same line is lost"
    return tried


# ─── open calls ───────────────────────────────────────────────────────────────────────────────────

def write_checkpoint(path, before, inside, behind=()):
    """A log made by hand: records, a checkpoint that holds some, records behind it."""
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in inside)
    event = {"event": "checkpoint", "line": len(before) + 1, "records": text}
    return write_session(path, *before, event, *behind)


TRACKED = {**ask(ONE), "tracked": True}
OPEN = {  # kind: (records in the checkpoint, and behind it; what the model is told of the call)
    "begun": ([say("做"), TRACKED, BEGUN], [], "outcome unknown"),
    "not begun": ([say("做"), TRACKED], [], "not started"),
    "begun behind it": ([say("做"), TRACKED], [BEGUN], "outcome unknown"),
    "another program's": ([say("做"), ask(ONE)], [], "outcome unknown"),
    "answered behind it": ([say("做"), TRACKED, BEGUN], [answer("c1", "一 🐞")], "一 🐞"),
}


def check_open(script, folder):
    module = load_module(script)
    for kind, (inside, behind, told) in OPEN.items():
        before = [{**OPENED, "cwd": str(folder)}, *inside]
        path = write_checkpoint(folder / f"{kind}.jsonl", before, [before[0], *inside], behind)
        messages = module.load_session(path)
        assert judge(messages) == [] and told in messages[-1]["content"], f"{kind}: {messages}"
        assert len(messages) == 3, f"{kind}: read twice, before a checkpoint and in it"
        with module.Session(path) as session:
            is_open = bool(module.open_calls(session.records))
            assert is_open == (told != "一 🐞"), f"a call that is {kind} does not stay open"
            module.run_turn(session, "继续", make_model(module), show=quiet)
            assert told in session.messages()[3]["content"]
        records = module.read_jsonl(path)
        assert sum("verdict" in each for each in records) == is_open, f"{kind}: no verdict, or two"


def check_settled(script, folder):
    """A call that a kill left open, then a checkpoint: what was told of it stays."""
    module = load_module(script)
    path = write_session(folder / "杀.jsonl", {**OPENED, "cwd": str(folder)}, say("做"),
                         {**GOOD, "reasoning_content": DEEP * 10}, say("再做"), TRACKED, BEGUN)
    take_turns(module, path, make_model(module), "继续")
    told = [each["content"] for each in module.load_session(path) if each["role"] == "tool"]
    assert find_checkpoints(path) and len(told) == 1 and "outcome unknown" in told[0], told
    assert "the harness stopped" in told[0], f"what it was told is not on record: {told}"


# ─── show, check, fork ────────────────────────────────────────────────────────────────────────────

def check_looks(script, folder):
    module = load_module(script)
    path, data, start, size = write_two(module, folder)
    nobody, count = module.Session(folder / "none"), data.count(b"\n")
    rows = module.show_session(nobody, str(path)).splitlines()[:-1]
    assert [int(row.split()[0]) for row in rows] == [*range(1, count + 1)], "not a row a record"
    for name in [f"{turn}{part}" for turn in range(3) for part in range(3)]:
        assert sum(f'"{FIRST}" {name}' in row for row in rows) == 1, f"{name} is not shown once"
        assert sum(f"好 {name}" in row for row in rows) == 1, f"{name} is not shown once"
    assert module.check_session(nobody, str(path)).startswith("sound: ")
    early, late = data.index(b"\n") + 20, start + size + 20
    path.write_bytes(data[:early] + b"\0" + data[early + 1:late] + b"\0" + data[late + 1:])
    line = data[:late].count(b"\n") + 1
    checked = module.check_session(nobody, str(path))
    assert re.findall(r"skipped line (\d+)", checked) == ["2", str(line)], checked
    with module.Session(path) as session:
        told = re.findall(r"skipped line (\d+)", module.write_receipt(session))
        assert told == [str(line)], f"of what is read line {line} is damaged, it says {told}"


def check_fork(script, folder):
    module = load_module(script)
    path, data, start, _ = write_two(module, folder)
    nobody = module.Session(folder / "none")
    for line in ["", f":{data[:start].count(10)}", ":4"]:
        made = folder / module.fork_session(nobody, f"{path}{line}").splitlines()[-1]
        cut = data.splitlines(keepends=True)[:int(line[1:] or data.count(b"\n"))]
        (folder / "part").write_bytes(b"".join(cut))
        want, loaded = module.load_session(folder / "part"), module.load_session(made)
        assert loaded[:-1] == want and module.FORKED in loaded[-1]["content"], f"forked at {line}"
        assert judge(loaded) == []
        made.unlink()


# ─── how long a resume takes ──────────────────────────────────────────────────────────────────────

def write_old(module, folder, count, characters):
    """A session of so many records, with the same conversation and the same end at any age."""
    path, turn = folder / f"{count}.jsonl", []
    with module.Session(folder / "new.jsonl", folder, "m") as session:
        for number in range(50):
            session.append(say(f"{number} " + "修" * 300))
            session.append(say(f"{number} " + "好" * 300, "assistant"))
        module.add_checkpoint(session)
        for number in range(50):
            session.append(say(f"还有 {number}"))
    lines = (folder / "new.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "new.jsonl").unlink()
    for number in range(500):
        turn += [say(f"{number} " + "x" * characters), say("y" * characters, "assistant")]
    body = b"".join(map(module.encode_record, turn))
    with open(path, "wb") as file:
        file.write(lines[0])
        for _ in range(count // 1_000):
            file.write(body)
        file.writelines(lines[101:])
    return path


def open_once(module, path):
    """Resume a session as far as its first request, and let go of it."""
    with module.Session(path) as session:
        return session.messages(), module.write_receipt(session)


def check_resume(script, folder, counts=(1_000, 100_000), characters=20, most=2.0):
    """A session with a hundred times the records is resumed in about the same time and memory."""
    module, seconds, peaks = load_module(script), {}, {}
    paths = [write_old(module, folder, count, characters) for count in counts]
    for path in paths * 9:  # in turns
        start = time.perf_counter()
        messages, _ = open_once(module, path)
        seconds.setdefault(path, []).append(time.perf_counter() - start)
        assert len(messages) == 151, f"{len(messages)} messages"
    for path in paths:
        tracemalloc.start()
        open_once(module, path)
        peaks[path] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    short, long = (statistics.median(seconds[path]) for path in paths)
    assert long / short <= most, f"{counts[1]:,} records take {long / short:.1f} times as long"
    ratio = peaks[paths[1]] / peaks[paths[0]]
    assert ratio <= 1.1, f"{counts[1]:,} records take {ratio:.1f} times the memory"
    return [path.stat().st_size for path in paths], short, long


# ─── killed, or on a full disk ────────────────────────────────────────────────────────────────────

KINDS = {  # why a checkpoint is written: what the assistant said before, and options
    "grown": ({**GOOD, "reasoning_content": DEEP * 10}, []),
    "summed up": (say("字" * 2_000, "assistant"), ["--context", "2000"]),
}


class OldPlace(Place):
    """A place with a session that writes a checkpoint before its next request."""

    def __init__(self, folder, module, kind, visible=0):
        super().__init__(folder, module)
        reply, self.options = KINDS[kind]
        self.kind, self.path = kind, self.sessions / "修复.jsonl"
        opened = {**OPENED, "cwd": str(self.workspace), "model": "rehearsal"}
        self.records = [opened, say(module.TASK), say("看 " * visible + "一眼", "assistant"),
                        say("然后?"), reply, {"event": "turn", "state": "done"}]
        write_session(self.path, *self.records)
        self.before = self.path.read_bytes()

    def go_on_with(self):
        """The arguments of a run that goes on."""
        return ["--resume", str(self.path), *self.options, "continue"]

    def check_kept(self):
        """What was on disk is there, the history is valid, and says what was said."""
        module, data = self.module, self.path.read_bytes()
        assert data.startswith(self.before), "old bytes must be a prefix of the new file"
        records, loaded = module.read_jsonl(self.path), module.load_session(self.path)
        assert judge(loaded) == [] and loaded[0] == say(module.TASK), "the first request is lost"
        plain = read_plainly(module, self.path)
        summed = [each for each in loaded if str(each["content"]).startswith(module.SUMMED)]
        assert len(summed) <= (self.kind == "summed up"), "a summary that nobody asked for, or two"
        missing = [each for each in loaded if each not in summed and each not in plain]
        assert not missing, f"never said: {missing}"
        assert summed or loaded == plain, "a record that was on disk is lost"
        assert loaded[-1] == plain[-1], "the last record that was on disk is lost"
        return sum(each.get("event") == "checkpoint" for each in records)


def is_first_prompt(call):
    """Whether a system call writes the prompt: what follows is a checkpoint's."""
    return call.name == "write" and any(b'"content": "continue"' in text for text in call.texts)


def list_checkpoint_points(place):
    """The points between the prompt and the first tool at which a whole run can be killed."""
    run = run_traced(place, *place.go_on_with(), "--rehearse")
    assert run.returncode == 0 and place.stage() == 2 and find_checkpoints(place.path), run.err
    points, calls = list_kill_points(place, run, is_first_prompt), {}
    for call in run.trace:
        calls[call.name] = calls.get(call.name, 0) + 1
        if any(b'"event": "started"' in text for text in call.texts):
            return points[:points.index((call.name, calls[call.name])) + 1]


def kill_at_checkpoint(module, folder, kind, point, server):
    """Kill a run while it writes a checkpoint, look, and let the session go on."""
    place = OldPlace(folder, module, kind)
    run = run_traced(place, *place.go_on_with(), "--rehearse", kill_at=point)
    assert run.returncode == -9, f"not killed at {point}: {run.returncode}, {run.err}"
    try:
        found, data = place.check_kept(), place.path.read_bytes()
        if server:
            again = run_served(place, server, *place.go_on_with())
        else:
            again = run_traced(place, *place.go_on_with(), "--rehearse", calls=("kill",))
        assert again.returncode == 0 and place.stage() == 2, f"it does not go on: {again.err}"
        assert not server or server.refusals == [], f"refused: {server.refusals}"
        assert place.path.read_bytes().startswith(data), "old bytes are no prefix of the new ones"
        assert place.check_kept() >= 1, "no checkpoint was written when it went on"
    except AssertionError as error:
        raise AssertionError(f"{kind}, killed at {point}: {error}") from error
    return "whole" if found else "absent"


def sample_points(points):
    """Where the checkpoint is written, and not synced yet: what syncs before it is the prompt."""
    return [[point for point in points if point[0] == "fdatasync"][1]]


def check_kills(script, folder, kinds=KINDS, served=True):
    """Kill at each system call from the prompt to the first tool; how the checkpoint was left."""
    module, outcomes = load_module(script), []
    with fast_folder() as memory, contextlib.ExitStack() as stack:
        server = stack.enter_context(StrictServer(module.rehearsal_model)) if served else None
        for number, kind in enumerate(kinds):
            points = list_checkpoint_points(OldPlace(memory / f"全{number}", module, kind))
            for place, point in enumerate(points if served else sample_points(points)):
                here = memory / f"{number}-{place}"
                outcomes.append((kind, kill_at_checkpoint(module, here, kind, point, server)))
    return outcomes


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_faulty(place, *python):
    """Go on with a session, on a Python to which something happens; and what it says of that."""
    python = python or (sys.executable,)
    done = run_script(place.folder, *place.arguments(*place.go_on_with(), "--rehearse")[1:],
                      script=place.module.__file__, python=python)
    return done, [each for each in done.stderr.splitlines() if each.startswith("tinyharness: ")]


def check_full_disk(script, folder, kinds=("grown",), parts=(0.5,)):
    """There is room for the prompt, and for a part of the checkpoint only."""
    module = load_module(script)
    for kind in kinds:
        whole = OldPlace(folder / f"{kind} all", module, kind, visible=1_000)
        assert run_faulty(whole)[0].returncode == 0
        line, data = find_checkpoints(whole.path)[0][1], whole.path.read_bytes()
        for number, part in enumerate(parts, 100):
            place = OldPlace(folder / f"{kind} {number}", module, kind, visible=1_000)
            limit = data.index(line) + int(part * len(line))
            full, plain = run_faulty(place, sys.executable, "-c", LIMITED, str(limit))
            assert place.path.stat().st_size == limit, "the write did not fail in the middle"
            assert place.check_kept() == 0, "the checkpoint is there: the disk was not full"
            check_goes_on(place, full, plain)


def check_goes_on(place, failed, plain):
    """One plain line, nothing lost; and when the fault is gone, it goes on."""
    assert failed.returncode == 1 and len(plain) == 1, f"no plain line: {failed.stderr}"
    assert "cannot write" in plain[0] and "Traceback" not in failed.stderr, failed.stderr
    place.check_kept()
    again, _ = run_faulty(place)
    assert again.returncode == 0 and place.stage() == 2, f"it does not go on: {again.stderr}"
    assert place.check_kept() >= 1, "no checkpoint, though there is room again"


# Of the log the third one is the checkpoint: before it come the opening and the prompt.
FAULTS = ("write:error=ENOSPC:when=3+", "write:error=EIO:when=3", "fdatasync:error=EIO:when=3")


def check_fault(script, folder, kind, fault):
    place = OldPlace(folder, load_module(script), kind)
    name, tracer = fault.partition(":")[0], ["strace", "-o", os.devnull, "-P", str(place.path)]
    tracer += ["-e", f"trace={name}", "-e", f"inject={fault}", "-e", "signal=none"]
    failed, plain = run_faulty(place, *tracer, sys.executable)
    assert place.check_kept() == (name == "fdatasync"), "another record was refused"
    check_goes_on(place, failed, plain)


# ─── the claims ───────────────────────────────────────────────────────────────────────────────────

CLAIMS = [check_growth, check_cost, check_cost_of_summaries, check_only_the_end_is_read,
          check_who_wrote_last, check_watermark, check_estimate, check_refusal, check_failed_again,
          check_no_summary, check_one_summary, check_long_turn, check_nothing_to_sum_up,
          check_histories, check_open, check_settled, check_looks, check_fork, check_resume,
          check_full_disk]
(GROWTH, COST, SUMMARIES, END, WHO, WATERMARK, ESTIMATE, REFUSAL, AGAIN, NO_SUMMARY, ONE_SUMMARY,
 LONG_TURN, NOTHING, HISTORIES, OPEN_CALLS, SETTLED, LOOKS, FORK, RESUME, FULL_DISK) = CLAIMS


@pytest.mark.parametrize("check", CLAIMS)
def test_checkpoint(check, folder):
    check(SCRIPT, folder)


@pytest.mark.long
def test_many_new_random_histories_are_compacted_into_valid_ones(folder, survived):
    start = random.SystemRandom().randrange(100, 10**9)
    print(f"seeds from {start} on")
    check_histories(SCRIPT, folder, range(start, start + 2_000))
    survived(2_000)


def test_a_checkpoint_torn_or_damaged_at_a_sample_of_bytes_falls_back(folder):
    check_damage(SCRIPT, folder, 29)
    check_cuts(SCRIPT, folder, 29)


@pytest.mark.long
def test_a_checkpoint_torn_or_damaged_at_any_byte_falls_back(folder, survived):
    survived(check_damage(SCRIPT, folder) + check_cuts(SCRIPT, folder))


@pytest.mark.long
def test_a_session_of_1_000_000_records_is_resumed_like_one_of_10_000(capsys, tmp_path):
    if shutil.disk_usage(tmp_path).free < 3 * 10**9:
        pytest.skip(f"a log of more than 1 GB needs 3 GB of room in {tmp_path}")
    try:
        sizes, short, long = check_resume(SCRIPT, tmp_path, (10_000, 1_000_000), 1_100, 1.5)
    finally:
        for path in tmp_path.glob("*.jsonl"):
            path.unlink()
    assert sizes[1] > 10**9
    with capsys.disabled():
        print(f"\nresumed: {sizes[1] / 1e6:,.0f} MB in {long * 1e3:.1f} ms, "
              f"{sizes[0] / 1e6:,.0f} MB in {short * 1e3:.1f} ms, {long / short:.2f} times as long")


@needs_strace
def test_killed_where_a_checkpoint_is_written_the_session_goes_on(folder):
    outcomes = check_kills(SCRIPT, folder, ["summed up"], served=False)
    assert len(outcomes) == 1


@needs_strace
@pytest.mark.long
def test_killed_at_each_system_call_around_a_checkpoint_the_session_goes_on(
        folder, capsys, survived):
    outcomes = check_kills(SCRIPT, folder)
    assert set(outcomes) == {(kind, left) for kind in KINDS for left in ("whole", "absent")}
    survived(len(outcomes))
    counts = [f"{' and '.join(each)}: {outcomes.count(each)}" for each in sorted(set(outcomes))]
    with capsys.disabled():
        print(f"\n{len(outcomes)} kills around a checkpoint:", ", ".join(counts))


@pytest.mark.long
@pytest.mark.parametrize("kind", FAILED)
def test_a_context_that_stays_too_long_is_one_plain_error(kind, folder):
    check_failed_again(SCRIPT, folder, [kind])


@needs_strace
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_while_a_checkpoint_is_written_loses_nothing(kind, fault, folder):
    check_fault(SCRIPT, folder, kind, fault)


@pytest.mark.long
def test_a_disk_that_is_full_anywhere_in_a_checkpoint_loses_nothing(folder):
    check_full_disk(SCRIPT, folder, KINDS, [part / 10 for part in range(1, 10)])


FIND = "kept, *start = find_checkpoint(path)"
ADD = "        add_checkpoint(session, model if long else None)"
WRITE = '    session.append({"event": "checkpoint"'
ASKED, REQUEST = "asked[:1] + asked[-1:]", 'if not each["content"].startswith(SUMMED)]'
STARTS = 'enumerate(messages) if each["role"] != "tool"]'
AGAIN_TOO = """raise
        with contextlib.suppress(Failure):
            return attempt(model, session.messages(), tools)
        return"""
EVENTS = '[record for record in session.records if "role" not in record]'
SHOWN = "number_records(path, rows):  # what is sk"
CHECKED = "read_jsonl(seen.path, seen.skipped)"
COPIED, FAR = "in number_records(source, skipped", "*find_checkpoint({})[1:]"
REFUSED = 'raise SessionError(f"cannot write {self.path}: {error.strerror}") from error'
REMOVED = {  # name: (the check that has to see it, words of its complaint, the protection, instead)
    "a checkpoint": (
        GROWTH, "and 0 checkpoints", ADD, "        long and add_checkpoint(session, model)"),
    "what grew since": (
        GROWTH, "checkpoints|after", "getsize(session.path) - start", "getsize(session.path)"),
    "its line": (
        GROWTH, "its own line", "count_lines(session.path) + 1", "count_lines(session.path)"),
    "twenty times": (COST, "of all bytes", "20 * size", "5 * size"),
    "a 15th": (SUMMARIES, "of all bytes", "TOKEN_BYTES // KEPT", "TOKEN_BYTES // 2"),
    "the end of the file": (END, "is read", FIND, "kept, *start = [], 0, 0"),
    "who wrote last": (WHO, "another build", "del kept[1:-1]", "del kept[1:]"),
    "who began": (WHO, "where it began", "del kept[1:-1]", "del kept[:-1]"),
    "the watermark": (
        WATERMARK, "new to the memory", "+ memory + messages[place:]", "+ messages[place:]"),
    "its place": (WATERMARK, "new to the memory", "place = max(len(messages)", "place = min(0, len(messages)"),
    "the estimate": (
        ESTIMATE, "requests", "long = size > session.context", "long = 0 > session.context"),
    "the last turns": (
        ESTIMATE, "bytes stay", "cut = starts[bisect", "cut = starts[-1] or [bisect"),
    "the first request": (ESTIMATE, "first request", ASKED, "asked[-1:]"),
    "the last request": (LONG_TURN, "last request", ASKED, "asked[:1]"),
    "a summary is no request": (LONG_TURN, "request|two", REQUEST, "]"),
    "whole pairs": (LONG_TURN, "pair is split", STARTS, "enumerate(messages)]"),
    "one summary": (
        ONE_SUMMARY, "old summary", "SUMMARY, messages[:cut])", "SUMMARY, messages[cut:])"),
    "a provider's word": (REFUSAL, "ends it", "or not TOO_LONG.search(str(failure))", "or True"),
    "one attempt": (AGAIN, "more than one", "raise\n        return", AGAIN_TOO),
    "no attempt for nothing": (
        NOTHING, "asked again", "or not add_checkpoint(", "or add_checkpoint("),
    "a part to sum up": (NOTHING, "is summed up", "if cut <= len(stay) + 1:", "if False:"),
    "an answer": (
        NO_SUMMARY, "is taken for one", '"content")).strip()):', '"content")).strip() or "?"):'),
    "events only": (
        lambda *given: check_histories(*given, [47]), "first request",
        EVENTS, '[{"event": "", **record} for record in session.records]'),
    "what is open": (OPEN_CALLS, "stay open", "yield from kept\n", "yield from repair(kept)\n"),
    "where to read on": (OPEN_CALLS, "read twice", "file.seek(offset)", "file.seek(0)"),
    "verdicts": (SETTLED, "on record", "settle_calls(session)\n        yield", "yield"),
    "all rows": (LOOKS, "not a row", SHOWN, SHOWN.replace(")", f", {FAR.format('path')})")),
    "all lines": (
        LOOKS, "skipped", CHECKED, CHECKED.replace("read_jsonl", "0 or [*load_records") + "]"),
    "line numbers": (LOOKS, "it says", "enumerate(file, behind + 1)", "enumerate(file, 1)"),
    "a whole copy": (FORK, "forked at", COPIED, f"{COPIED}, {FAR.format('source')}"),
    "time": (RESUME, "times", FIND, f"count_lines(path)\n    {FIND}"),
    "memory": (RESUME, "times", FIND, f"open(path, 'rb').read()\n    {FIND}"),
    "a failed write": (FULL_DISK, "plain line", REFUSED, "pass"),
    "the last one": (
        check_damage, "tell themselves", "log.rfind(CHECKPOINT", "log.find(CHECKPOINT"),
    "damage": (check_damage, "the one before", 'b"" if problem else', 'b"" if not found else'),
    "damage inside": (check_damage, "torn inside", "if kept and not torn and", "if kept and"),
    "a record on its line": (check_cuts, "same line", "return kept + found[1:],", "return kept,"),
    "old bytes": (check_kills, "old bytes", WRITE, f"    os.truncate(session.path, 0)\n{WRITE}"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_check_sees_that_this_is_removed(name, folder):
    check, words, *change = REMOVED[name]
    if check is check_kills and PROBLEM:
        pytest.skip(PROBLEM)
    with pytest.raises(AssertionError, match=words):
        check(break_script(folder / "broken", change, script=SCRIPT), folder)

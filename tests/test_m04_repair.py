"""Claim: `repair` turns any list of records into a history that strict providers accept."""

import copy
import functools
import itertools
import json
import os
import random
import re
import types
from pathlib import Path

import chapter
import pytest
import tinyharness
from strict_server import judge
from test_m03_log import measure_growth, objects_in, write_module

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "session-files.jsonl"
CASES = [json.loads(line) for line in DATA.read_bytes().splitlines()]
UNKNOWN = re.compile("outcome unknown|结果未知", re.IGNORECASE)
FALSE_WORDS = re.compile("not (been )?executed|cancel|未执行|取消", re.IGNORECASE)

# ─── histories in short: `user:a calls:c1,c2 c1=one c2~made-up say:done` ─────────────────────────
# c1=one is a real result, c1~one a synthetic one, "-" an id that is missing. A call has the name of
# its id, so that a result with that text can be seen to stand at the right call.


def read_steps(steps):
    """Each step of a short history as (kind, id or text, text)."""
    for step in steps.split(" "):
        kind, _, text = step.partition(":")
        if kind in ("user", "say", "calls", "system"):
            yield kind, text, ""
        else:
            call_id, mark, text = re.fullmatch("([^=~]*)([=~])(.*)", step, re.DOTALL).groups()
            yield ("result" if mark == "=" else "synthetic"), call_id, text


def with_id(key, value, **fields):
    """Fields, and an id unless it is to be missing."""
    return fields if value == "-" else {**fields, key: value}


def make_call(call_id, arguments='{"path": "修复 🐞"}'):
    name = call_id if re.fullmatch("[a-z0-9]+", call_id) else "run"
    return with_id("id", call_id, type="function", function={"name": name, "arguments": arguments})


def as_chat(steps):
    """A short history as Chat Completions messages."""
    for kind, text, result in read_steps(steps):
        if kind == "calls":
            calls = [make_call(call_id) for call_id in text.split(",")]
            yield {"role": "assistant", "content": None, "tool_calls": calls}
        elif kind in ("result", "synthetic"):
            mark = {"verdict": "outcome unknown"} if kind == "synthetic" else {}
            yield with_id("tool_call_id", text, role="tool", content=result, **mark)
        else:
            yield {"role": "assistant" if kind == "say" else kind, "content": text}


def as_blocks(steps):
    """A short history as the chapter's code writes it, in content blocks."""
    for kind, text, result in read_steps(steps):
        role = {"say": "assistant", "calls": "assistant", "result": "user"}.get(kind, kind)
        content = text if kind in ("user", "system") else [{"type": "text", "text": text}]
        if kind == "calls":
            content = [with_id("id", each, type="tool_use", input={"path": "修复"},
                               name=make_call(each)["function"]["name"])
                       for each in text.split(",")]
        elif kind == "result":
            said = result if len(result) % 2 else [{"type": "text", "text": result}]
            content = [with_id("tool_use_id", text, type="tool_result", content=said)]
        yield {"role": role, "content": content, "timestamp": 1718400000}


def as_merged_blocks(steps):
    """Content blocks in which the results, and what the user says then, are one message."""
    merged = []
    for record in as_blocks(steps):
        blocks = record["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        first = merged[-1]["content"][0] if merged else {}
        if record["role"] == "user" and first.get("type") == "tool_result":
            merged[-1]["content"] += blocks
        else:
            merged.append({**record, "content": list(blocks)})
    return merged


def read_want(want):
    """What is wanted in short, as the cases have it: (role, text), ("calls", n), ("set", texts)."""
    pairs = [step.split(":", 1) for step in want.split(" ")] if want else []
    readers = {"calls": int, "set": lambda text: text.split(",")}
    return [(kind, readers.get(kind, str)(text)) for kind, text in pairs]


# ─── what came back, and what was wanted ─────────────────────────────────────────────────────────

def load(impl, path, hint="loading must not raise"):
    """Load a session; a file that has only `repair` is helped with the reading."""
    try:
        if hasattr(impl, "load_session"):
            return impl.load_session(path)
        return impl.repair(tinyharness.read_jsonl(path))
    except NotImplementedError:
        raise
    except Exception as error:
        raise AssertionError(f"{hint}\nloading raised {error!r}") from error


def load_records(impl, folder, records, hint=""):
    """Load records, or the bytes of a file, through a file; an error fails, with the hint."""
    path = folder / "session.jsonl"
    lines = records if isinstance(records, bytes) else b"".join(
        json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
    path.write_bytes(lines)
    return load(impl, path, hint)


def fits(text, want):
    """Whether a text is as wanted: word for word, or one of the two marks."""
    if want in ("UNK", "?"):
        return bool(UNKNOWN.search(text or "") if want == "UNK" else (text or "").strip())
    return text == want or (want == "UNK|partial" and (text == "partial" or fits(text, "UNK")))


def is_as_wanted(messages, want):
    """Whether a request is as wanted: roles, texts, the number of calls, each at its place."""
    messages = list(messages)
    for kind, text in want:
        taken, messages = messages[: len(text)] if kind == "set" else messages[:1], messages
        del messages[: len(taken)]
        if kind == "set":
            left = [each.get("content") for each in taken if each.get("role") == "tool"]
            for each in sorted(text, key=lambda one: one in ("UNK", "?")):
                found = [one for one in left if fits(one, each)]
                if not found:
                    return False
                left.remove(found[0])
        elif not taken:
            return False
        elif kind == "calls" and len(taken[0].get("tool_calls") or ()) != text:
            return False
        elif kind != "calls" and (taken[0].get("role") != kind or "tool_calls" in taken[0]
                                  or not fits(taken[0].get("content"), text)):
            return False
    return not messages


def misplaced(messages):
    """The results that name a call of their batch, and stand at another one."""
    names = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id"))
        if message.get("content") in names.values() and message["content"] != name:
            yield message


def describe(messages):
    """A request in short, for the message of a check that failed."""
    return [f"calls:{len(each['tool_calls'])}" if isinstance(each, dict) and each.get("tool_calls")
            else f"{each.get('role')}:{each.get('content')}"[:60] if isinstance(each, dict)
            else repr(each)[:60] for each in messages]


def check_request(messages, want, hint):
    """Fail, with a hint, unless a request is as wanted and the strict judge takes it."""
    objections = judge(messages) if messages else []
    assert not objections, f"{hint}\na provider refuses it: {objections[0]}\n{describe(messages)}"
    if isinstance(want, str):
        texts = [str(each.get("content")) for each in messages]
        lost = [text for text in want.partition(":")[2].split(",") if text not in "\n".join(texts)]
        assert not lost, f"{hint}\nlost: {lost}"
        return
    assert is_as_wanted(messages, want), (
        f"{hint}\nwanted {want}\ngot    {describe(messages)}\n"
        "(UNK: a text that says that the outcome is unknown; ?: any text but a blank one)")
    assert not list(misplaced(messages)), f"{hint}\na result stands at the call of another one"


def check_cases(impl, folder):
    failed = {}
    for case in CASES:
        try:
            messages = load_records(impl, folder, case["file"].encode("latin-1"), case["case"])
            check_request(messages, case["want"], case["case"])
        except AssertionError as error:
            failed[case["case"]] = str(error)
    first = next(iter(failed.values()), "")
    names = ", ".join(failed)
    assert not failed, f"{len(failed)} of {len(CASES)} files fail: {names}\nfirst: {first}"


# ─── the repair table, row by row: three more files of each kind, in both dialects ───────────────

ROWS = {  # row: (what is to be learned, (short history, what is wanted) ...)
    "call without result": (
        "each call needs a result behind its batch: to look at the last message only is not enough",
        ("user:a calls:c1,c2,c3", "user:a calls:3 tool:UNK tool:UNK tool:UNK"),
        ("user:修 calls:c1,c2 c2=c2 say:done user:b",
         "user:修 calls:2 set:UNK,c2 assistant:done user:b"),
        ("user:a calls:c1 calls:c2 c2=c2 user:b", "user:a calls:1 tool:UNK calls:1 tool:c2 user:b"),
        ("calls:c1 user:a calls:c2 say:x calls:c3 user:b",
         "calls:1 tool:UNK user:a calls:1 tool:UNK assistant:x calls:1 tool:UNK user:b")),
    "results in another order": (
        "results of one batch stay in the order of the log: they pair by id, not by place",
        ("user:a calls:c1,c2,c3 c3=c3 c1=c1 c2=c2", "user:a calls:3 tool:c3 tool:c1 tool:c2"),
        ("calls:c1,c2 c2=c2 c1=c1 calls:d1,d2 d2=d2 d1=d1",
         "calls:2 tool:c2 tool:c1 calls:2 tool:d2 tool:d1"),
        ("calls:c1,c2,c3 c3=c3 user:b", "calls:3 set:UNK,UNK,c3 user:b")),
    "result twice": (
        "the first real result stands, a second one is not sent",
        ("calls:c1 c1=one c1=two c1=三", "calls:1 tool:one"),
        ("calls:c1,c2 c1=one c2=two c1=late say:x", "calls:2 tool:one tool:two assistant:x"),
        ("calls:c1 c1=one user:b say:x c1=again", "calls:1 tool:one user:b assistant:x")),
    "synthetic result and real one": (
        "a real result beats a synthetic one, and the field tells which is which, not the words",
        ("calls:c1 c1~outcome-unknown c1=real", "calls:1 tool:real"),
        ("calls:c1,c2 c1~不知道 c2~gone user:b c2=real", "calls:2 set:不知道,real user:b"),
        ("calls:c1 c1=real c1~late user:b", "calls:1 tool:real user:b"),
        ("calls:c1 c1=outcome-unknown c1=second", "calls:1 tool:outcome-unknown"),
        ("calls:c1 c1~applied c1=real c1=twice", "calls:1 tool:real")),
    "message between call and result": (
        "a result moves up to its call: nothing may stand between them",
        ("calls:c1 user:b c1=one", "calls:1 tool:one user:b"),
        ("calls:c1,c2 c1=c1 say:嗯 c2=c2 user:b", "calls:2 tool:c1 tool:c2 assistant:嗯 user:b"),
        ("calls:c1 user:b calls:c2 user:c c2=c2 c1=c1",
         "calls:1 tool:c1 user:b calls:1 tool:c2 user:c")),
    "result without a call": (
        "a result that no call asked for is not sent",
        ("c1=one user:a", "user:a"), ("user:a say:b x=1 x=2 user:c", "user:a assistant:b user:c"),
        ("calls:c1 c1=one c2=alien user:b", "calls:1 tool:one user:b"),
        ("c1=early calls:c1 c1=one", "calls:1 tool:one")),
    "one id used again": (
        "an id means its last use: to pair by id over the whole file gives a call the wrong result",
        ("calls:k k=1 user:b calls:k user:c", "calls:1 tool:1 user:b calls:1 tool:UNK user:c"),
        ("calls:k calls:k k=2 say:x calls:k k=3",
         "calls:1 tool:UNK calls:1 tool:2 assistant:x calls:1 tool:3"),
        ("calls:k,k,k k=1 k=2", "calls:3 tool:1 tool:2 tool:UNK"),
        ("calls:k,other k=1 other=1 calls:other,k other=2 k=2",
         "calls:2 tool:1 tool:1 calls:2 tool:2 tool:2")),
    "empty or missing ids": (
        "a call without an id gets a fresh one, and its result finds it",
        ("calls: =one calls: =two", "calls:1 tool:one calls:1 tool:two"),
        ("calls:-,- -=one -=二 user:b", "calls:2 tool:one tool:二 user:b"),
        ("calls:- user:b calls:- -=two", "calls:1 tool:UNK user:b calls:1 tool:two"),
        ("calls:c1,- c1=c1 -=two", "calls:2 tool:c1 tool:two"),
        (f"calls:{'x' * 65} {'x' * 65}=one", "calls:1 tool:one")),
    "empty message": (
        "an empty message is dropped: providers refuse it",
        ("user: user:b", "user:b"), ("user:a say: user:b say:\n\t", "user:a user:b"),
        ("calls:c1 user: c1=one say:", "calls:1 tool:one"), ("user:\n", "")),
    "empty tool content": (
        "a result is never empty: say (no output)",
        ("calls:c1 c1=", "calls:1 tool:?"),
        ("calls:c1,c2 c2=\r\n c1=\t user:b", "calls:2 tool:? tool:? user:b"),
        ("calls:c1 user:b c1=\n\n", "calls:1 tool:? user:b")),
    "second system message": (
        "there is one system message, and it is the first",
        ("user:a system:p say:b", "system:p user:a assistant:b"),
        ("system:p system:p user:a", "system:p user:a"),
        ("system:p calls:c1 system:q c1=one", "system:? calls:1 tool:one")),
}
DIALECTS = (as_chat, as_blocks, as_merged_blocks)


def histories(rows=ROWS):
    """Each history of the table in each dialect that can say it: (hint, records, want)."""
    for row in rows:
        hint, *pairs = ROWS[row]
        for steps, want in pairs:
            for dialect in DIALECTS[:1] if "~" in steps else DIALECTS:
                yield f"{hint} [{steps}, {dialect.__name__}]", list(dialect(steps)), read_want(want)


def check_row(impl, folder, row):
    for hint, records, want in histories([row]):
        check_request(load_records(impl, folder, records, hint), want, hint)


def check_unknown_keys(impl, folder):
    """Keys that the API does not know stay in the file: every history again, full of them."""
    junk = {"ts": 1.5, "uuid": "修", "name": "x", "refusal": None, "annotations": [], "index": 0,
            "reasoning_content": "嗯", "function_call": None, "cache_control": {"type": "ephemeral"}}
    for hint, records, want in histories():
        loud = [{**junk, **record} for record in records]
        for record in loud:
            if "tool_calls" in record:
                record["tool_calls"] = [{**junk, **call, "function": {**junk, **call["function"]}}
                                        for call in record["tool_calls"]]
            elif isinstance(record["content"], list):
                record["content"] = [{"cache_control": {}, **block} for block in record["content"]]
        hint = f"keys that the API does not know never reach the request; {hint}"
        check_request(load_records(impl, folder, loud, hint), want, hint)


def check_events_are_no_messages(impl, folder):
    """An event between any two messages, also of a kind from the future, changes nothing."""
    events = [{"event": "turn"}, {"event": "来自未来", "messages": [{"role": "user", "content": "x"}]}]
    for hint, records, want in histories():
        mixed = [each for record in records for each in (*events, record)]
        hint = f"an event is no message; {hint}"
        check_request(load_records(impl, folder, mixed, hint), want, hint)


SAID = [  # what stands in the file as arguments, what is wanted as an object; None: any object
    ("", {}), (" \n", {}), ("null", {}), (None, {}), ('{"cmd": "ls', None), ("{'cmd': 1}", None),
    ("[1]", None), ("3", None), ('"修"', None), ("true", None), ([1], None), (5, None), (True, None),
    ('{"a": NaN}', None), ('{"a": NaN, "a": 1}', None), ('{"a": -1e999}', None),
    ('{"a":' * 90_000, None), ("{} {}", None),
    ('{"n": ' + "7" * 5000 + "}", None), ({"cmd": "修复 🐞", "n": [1]}, {"cmd": "修复 🐞", "n": [1]}),
    ('{"cmd": "\\ud83d"}', {"cmd": "\ufffd"}), ({"cmd": "\ud83d"}, {"cmd": "\ufffd"}),
    ('{ "cmd" :"\\u4fee\\u590d" }', {"cmd": "修复"}), ({}, {}), ("{}", {})]


def check_arguments(impl, folder):
    for said, want in SAID:
        function = {"name": "bash", "arguments": said}
        calls = {"tool_calls": [{"id": "c1", "type": "function", "function": function}]}
        chat = {"role": "assistant", "content": None, **calls}
        blocks = [{"type": "tool_use", "id": "c1", "name": "bash", "input": said}]
        for record in (chat, {"role": "assistant", "content": blocks}):
            messages = impl.repair([record, {"role": "tool", "tool_call_id": "c1", "content": "好"}])
            hint = f"arguments are a string that holds an object, whatever was said: {said!r:.20}"
            check_request(messages, [("calls", 1), ("tool", "好")], hint)
            got = json.loads(messages[0]["tool_calls"][0]["function"]["arguments"])
            assert want is None or got == want, f"{hint} became {got}"


def check_mixed_dialects(impl, folder):
    """A call in one dialect and its result in the other; blocks that are no text and no call."""
    call, result = list(as_chat("calls:c1 c1=c1"))
    [use], [answer] = as_blocks("calls:c1"), as_blocks("c1=c1")
    image = {"type": "image", "source": {"data": "iVBORw0K"}}
    thought = {"type": "thinking", "thinking": "嗯", "signature": "x"}
    text = {"type": "text", "text": "我看看 👀"}
    empty = [{**answer, "content": [{**answer["content"][0], "content": content}]}
             for content in (None, [], "", [image], {"a": 1})]
    found = read_want("calls:1 tool:c1")
    for records, want in (
            ([call, answer], found), ([use, result], found), ([use, answer, result], found),
            ([{**use, "content": [thought, text, *use["content"]]}, answer], found),
            ([{**use, "content": [thought, text]}], [("assistant", "我看看 👀")]),
            ([{"role": "user", "content": [image, text]}], [("user", "我看看 👀")]),
            ([use, {**answer, "content": [*answer["content"], text]}], [*found, ("user", "我看看 👀")]),
            *[([use, each], read_want("calls:1 tool:?")) for each in empty]):
        hint = f"both dialects may stand in one file: {records}"
        check_request(load_records(impl, folder, records, hint), want, hint)
    beside = impl.repair([{**use, "content": [text, *use["content"]]}])[0]["content"]
    assert beside == text["text"], f"the words beside a call are lost: {beside}"


# ─── what holds for every history ────────────────────────────────────────────────────────────────

def make_valid(dice):
    """A random history that a strict provider accepts."""
    words = ["修复 🐞", " as it is \n", "outcome unknown", "{}", "a\u2028b", "\tx", "not executed"]
    spellings = ['{}', '{ "路径" :"修.py" , "n":1.50}', '{"a": "\\u4fee\\n"}', '{"a":\n [1e3, null]}']
    history = [{"role": "system", "content": dice.choice(words)}] if dice.random() < 0.3 else []
    for number in range(dice.randrange(1, 6)):
        history.append({"role": dice.choice(["user", "assistant"]), "content": dice.choice(words)})
        prefixes = dice.choices(["call_", "调用", "", "call0000", " "], k=dice.randrange(4))
        ids = [f"{prefix}{number}{at}" for at, prefix in enumerate(prefixes)]
        if ids:
            calls = [make_call(each, dice.choice(spellings)) for each in ids]
            content = dice.choice([None, dice.choice(words)])
            history.append({"role": "assistant", "content": content, "tool_calls": calls})
            dice.shuffle(ids)
            history += [{"role": "tool", "tool_call_id": each, "content": dice.choice(words)}
                        for each in ids]
    return history


def check_valid_is_unchanged(impl, folder):
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    for _ in range(500):
        history = make_valid(dice)
        assert judge(history) == [], "the test itself is wrong"
        got = impl.repair(copy.deepcopy(history))
        wrong = [pair for pair in zip(history, got) if pair[0] != pair[1]] or [(history, got)]
        hint = f"{wrong[0]}, seed {seed}"
        assert got == history, f"a valid history must stay letter for letter: {hint}"


LEAVES = [None, True, False, 0, -1.5, 10**5000, float("nan"), float("inf"), "", " ", "修 🐞", "{}",
          "c1", "k", "user", "assistant", "tool", "tool_use", "tool_result", "\ud83d", "x" * 99]
KEYS = ["role", "content", "tool_calls", "tool_call_id", "id", "function", "name", "arguments",
        "type", "event", "text", "input", "tool_use_id", "verdict", "finish_reason", "format", "ts"]


def make_junk(dice, depth=4):
    """A random value of any JSON type."""
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(LEAVES)
    items = [make_junk(dice, depth - 1) for _ in range(dice.randrange(4))]
    return dice.choice([items, {dice.choice(KEYS): item for item in items}])


def make_junk_records(dice):
    """Records that were sound, and then were lost, doubled, moved, or got junk into any field."""
    records = [copy.deepcopy(each) for _ in range(2) for each in dice.choice(SOUND)]
    for _ in range(dice.randrange(1, 8)):
        at = dice.randrange(len(records) + 1)
        records[at:at + dice.randrange(2)] = dice.choice([[], records[:1], [make_junk(dice)]])
        target = dice.choice(objects_in(records) or [{}])
        target[dice.choice([*target, *KEYS])] = make_junk(dice)
    if dice.random() < 0.3:
        dice.shuffle(records)
    return records


SOUND = [records for _, records, _ in histories()]


def check_any_records(impl, folder):
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    for number in range(2000):
        records = make_junk_records(dice)
        before, hint = copy.deepcopy(records), f"seed {seed}, list {number}"
        try:
            got = impl.repair(records)
            again = impl.repair(copy.deepcopy(got))
        except NotImplementedError:
            raise
        except Exception as error:
            raise AssertionError(f"any list of records must do: {error!r}, {hint}") from error
        objections = judge(got) if got else []
        assert not objections, f"junk in, but no valid history out: {objections[0]} {hint}"
        assert again == got, f"a second repair changes the first one: {hint}"
        assert records == before, f"repair must not change its input: {hint}"


def nest(kind, inner, depth=100_000):
    """A value 100,000 levels deep."""
    for _ in range(depth):
        inner = [inner] if kind == "list" else {kind: inner}
    return inner


def check_depth(impl, folder):
    for kind in ("list", "content", "text", "function"):
        deep, call = nest(kind, "x"), make_call("c1")
        fields = ("role", "content", "tool_calls", "tool_call_id", "event", "verdict")
        records = [{**each, field: deep} for field in fields
                   for each in as_chat("user:a calls:c1 c1=one")]
        calls = [{**call, field: deep} for field in ("id", "type", "function")]
        calls += [{**call, "function": {field: deep}} for field in ("name", "arguments")]
        records += [{"role": "assistant", "tool_calls": [each]} for each in calls]
        block = {"type": "tool_use", "id": "c2", "name": "x", "input": deep}
        records += [deep, {"role": "assistant", "content": [block]}, *as_chat("user:继续")]
        error = None
        try:
            got = impl.repair(records)
        except RecursionError as problem:
            error = problem
        assert error is None, "a value 100,000 deep must not end the session"
        assert judge(got) == [] and got[-1]["content"] == "继续", judge(got)


def check_idempotent_and_pure(impl, folder):
    for hint, records, _ in histories():
        before = copy.deepcopy(records)
        once = impl.repair(records)
        assert records == before, f"repair must not change its input; {hint}"
        again = impl.repair(copy.deepcopy(once))
        assert again == once, f"a second repair changes the first one; {hint}"


SHAPES = {  # shape: the steps of a log of about this size
    "good turns": lambda size: [f"user:a calls:c{each} c{each}=1" for each in range(size // 3)],
    "one id for every call": lambda size: ["calls:k k=1"] * (size // 2),
    "one id, no results": lambda size: ["calls:k user:a"] * (size // 2),
    "one big batch": lambda size: [
        "calls:" + ",".join(f"c{each}" for each in range(size)),
        *[f"c{each}=1" for each in range(size)]],
    "one big batch of one id": lambda size: ["calls:" + ",".join("k" * size)] + ["k=1"] * size,
    "one big batch without ids": lambda size: ["calls:" + ",".join("-" * size)] + ["-=1"] * size,
    "ids as if minted": lambda size: [
        *[f"calls:call{each:05d},c{each:08d}" for each in range(size // 2, size)],
        *["calls:-"] * (size // 2)],
    "results without calls": lambda size: ["x=1"] * size,
    "results at the end": lambda size: [
        *[f"calls:c{each}" for each in range(size)], *[f"c{each}=1" for each in range(size)]],
    "system messages": lambda size: [f"system:{each}" for each in range(size)],
}


def check_linear(impl, folder):
    for shape, make in SHAPES.items():
        logs = [list(as_chat(" ".join(make(size)))) for size in (300, 3000)]
        ratio = measure_growth(impl.repair, *logs)
        assert ratio <= 14, f"{shape}: 10 times the log takes {ratio:.0f} times as long"


# ─── what an interrupted call is told, and by which id ───────────────────────────────────────────

def check_synthetic_is_known_by_its_field(impl, folder):
    open_call = list(as_chat("user:a calls:c1"))
    made_up = impl.repair(open_call)[-1]["content"]
    assert UNKNOWN.search(made_up), f"the outcome is unknown, and the text must say so: {made_up!r}"
    real = {"role": "tool", "tool_call_id": "c1", "content": made_up}
    more = {"role": "tool", "tool_call_id": "c1", "content": "别的 result"}
    hint = "a tool may print these very words: only the field makes a result synthetic"
    want = [*read_want("user:a calls:1"), ("tool", made_up)]
    check_request(impl.repair([*open_call, real, more]), want, hint)
    want, hint = [*want[:2], ("tool", "别的 result")], "the real result beats the synthetic one"
    for text in (made_up, "applied", "ok 修好了"):
        synthetic = {**real, "content": text, "verdict": "outcome unknown"}
        for order in ([synthetic, more], [more, synthetic], [synthetic, more, synthetic]):
            check_request(impl.repair([*open_call, *order]), want, hint)


def check_words(impl, folder):
    for hint, records, _ in histories():
        for message in impl.repair(records):
            found = FALSE_WORDS.search(message.get("content") or "")
            assert not found, f"{found and found[0]!r} claims more than the log knows; {hint}"


def ids_of(messages):
    """The ids of all calls."""
    return [call.get("id") for each in messages for call in each.get("tool_calls", ())]


def check_minted_ids(impl, folder):
    log = "calls:-,,a user:x calls:a,a =1 calls:call00000,c00000001 a=2 calls:call00001 calls: calls:"
    records, before = list(as_chat(log + "x" * 65)), []
    for size in range(1, len(records) + 1):
        sent = ids_of(impl.repair(records[:size]))
        assert len(set(sent)) == len(sent), f"one id for two calls: {sent}"
        assert sent[: len(before)] == before, (
            "an id changed when records were appended: the model was told another one")
        before = sent
    for said, sent in zip(ids_of(records), before):
        fresh = re.fullmatch("[a-zA-Z0-9]{9}", sent)
        assert sent == said or fresh, f"a fresh id has nine letters or digits, not {sent!r}"
    assert before[2] == "a" and len(before) == 10, "an id that is good is kept"


def check_many_minted_ids(impl, folder):
    sent = ids_of(impl.repair(list(as_chat("calls:" + ",".join("-" * 100_001)))))
    long = [each for each in sent if not re.fullmatch("[a-zA-Z0-9]{9}", each)]
    assert not long, f"a fresh id has nine letters or digits behind 100,000 calls too, not {long[0]}"


def check_missing_file(impl, folder):
    path = folder / "none" / "no.jsonl"
    hint = "a session that does not exist yet is empty"
    assert load(impl, path, hint) == [], hint
    assert not path.parent.exists(), "loading made something"


def check_loading_changes_nothing(impl, folder):
    path, last = folder / "session.jsonl", {"role": "user", "content": "继续"}
    for _, records, _ in histories(["call without result", "one id used again"]):
        load_records(impl, folder, records)
        with path.open("ab") as file:
            file.write(b"garbage\n\xff{\n" + json.dumps(last).encode() + b'\n{"role": "us')
        before, state = path.read_bytes(), path.stat()
        messages = load(impl, path)
        assert messages == load(impl, path) and messages[-1] == last, "a second load differs"
        assert path.read_bytes() == before, "loading changed the file"
        assert path.stat().st_mtime_ns == state.st_mtime_ns, "loading touched the modification time"
        assert os.listdir(folder) == ["session.jsonl"] or "version.py" in os.listdir(folder)


# ─── the checks, and proofs that they can fail ───────────────────────────────────────────────────

CHECKS = [check_cases, check_unknown_keys, check_events_are_no_messages, check_arguments,
          check_valid_is_unchanged, check_any_records, check_depth, check_idempotent_and_pure,
          check_linear, check_mixed_dialects, check_synthetic_is_known_by_its_field, check_words,
          check_minted_ids, check_missing_file, check_loading_changes_nothing]
CHECKS += [pytest.param(check_many_minted_ids, marks=pytest.mark.long, id="check_many_minted_ids")]
CHECKS += [functools.partial(check_row, row=row) for row in ROWS]


def name_of(check):
    return getattr(check, "__name__", None) or check.keywords["row"].replace(" ", "_")


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_repair(check, impl, tmp_path):
    check(impl, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_stub_is_rejected(check, tmp_path):
    def repair(records):
        raise NotImplementedError
    with pytest.raises(NotImplementedError):
        check(types.SimpleNamespace(repair=repair), tmp_path)


def test_the_chapter_fails_on_most_files_and_on_the_first_row(tmp_path):
    with pytest.raises(AssertionError, match=r"^(2[4-9]|3\d|4\d) of 46 files fail"):
        check_cases(chapter, tmp_path)
    with pytest.raises(AssertionError, match="the last message only is not enough"):
        check_row(chapter, tmp_path, "call without result")


def test_the_chapter_works_while_nothing_goes_wrong(tmp_path):
    replies = [[{"type": "tool_use", "id": "t1", "name": "bash", "input": {}}],
               [{"type": "text", "text": "修好了"}]]
    seen = []
    for prompt in ("修 🐞", "again"):
        chapter.run_agent(tmp_path / "s.jsonl", prompt, lambda history: seen.append(len(history)) or
                          replies[len(seen) % 2 - 1], lambda block: "ok ✅")
    want = read_want("user:修 calls:1 tool:ok assistant:修好了")
    want[0], want[2] = ("user", "修 🐞"), ("tool", "ok ✅")
    again = [("user", "again"), *want[1:]]
    check_request(tinyharness.load_session(tmp_path / "s.jsonl"), want + again, "the chapter")
    assert seen == [1, 3, 5, 7]


def is_made_up(message):
    return message["role"] == "tool" and bool(UNKNOWN.search(message["content"]))


def say_not_executed(records):
    return [{**each, "content": "The call was not executed."} if is_made_up(each) else each
            for each in tinyharness.repair(records)]


def drop_dangling_calls(records):
    messages = tinyharness.repair(records)
    lost = {each["tool_call_id"] for each in messages if is_made_up(each)}
    for message in messages:
        if "tool_calls" in message:
            calls = message["tool_calls"]
            message["tool_calls"] = [each for each in calls if each["id"] not in lost]
    return [each for each in messages if each.get("tool_calls") != [] and not is_made_up(each)]


def pair_over_the_whole_file(records):
    results = {each.get("tool_call_id"): each for each in records if each.get("role") == "tool"}
    messages = []
    for record in (each for each in records if each.get("role") in ("user", "assistant")):
        messages.append(record)
        for call in record.get("tool_calls", ()):
            unknown = {"role": "tool", "tool_call_id": call["id"], "content": "outcome unknown"}
            messages.append(results.get(call["id"], unknown))
    return messages


def put_made_up_results_at_the_end(records):
    return sorted(tinyharness.repair(records), key=is_made_up)


def know_synthetic_ones_by_words(records):
    def mark(record):
        plain = {key: value for key, value in record.items() if key != "verdict"}
        found = UNKNOWN.search(str(record.get("content")))
        return {**plain, "verdict": "x"} if found else plain
    return tinyharness.repair([mark(each) if isinstance(each, dict) else each for each in records])


def believe_the_last_result(records):
    last = {each.get("tool_call_id"): each for each in records if each.get("role") == "tool"}
    return tinyharness.repair([last.get(each.get("tool_call_id"), each) for each in records])


def sort_results(records):
    def is_tool(message):
        return message["role"] == "tool"
    return [message for tools, group in itertools.groupby(tinyharness.repair(records), is_tool)
            for message in sorted(group, key=lambda each: each.get("tool_call_id", ""))]


def repair_in_place(records):
    records[:] = tinyharness.repair(records)
    return records


def mint_random_ids(records):
    messages, names, said = tinyharness.repair(records), {}, ids_of(records)
    for message in messages:
        for call in message.get("tool_calls", ()):
            if call["id"] not in said:
                call["id"] = names[call["id"]] = f"{random.randrange(10**9):09d}"
        if message.get("tool_call_id") in names:
            message["tool_call_id"] = names[message["tool_call_id"]]
    return messages


def spell_arguments_anew(records):
    messages = tinyharness.repair(records)
    for call in (call for each in messages for call in each.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
    return messages


def search_the_whole_file_for_each_message(records):
    return [each for each in tinyharness.repair(records) if records.count(object()) == 0]


WRONG = [  # (the wrong version, the check or the row that rejects it, words of its message)
    (chapter.repair, "call without result", "the last message only is not enough"),
    (say_not_executed, check_words, "'not executed' claims more than the log knows"),
    (drop_dangling_calls, "call without result", "each call needs a result"),
    (pair_over_the_whole_file, "one id used again", "over the whole file"),
    (put_made_up_results_at_the_end, "call without result", "behind its batch"),
    (know_synthetic_ones_by_words, check_synthetic_is_known_by_its_field, "these very words"),
    (believe_the_last_result, "result twice", "the first real result stands"),
    (sort_results, "results in another order", "stay in the order of the log"),
    (repair_in_place, check_idempotent_and_pure, "must not change its input"),
    (mint_random_ids, check_minted_ids, "an id changed"),
    (spell_arguments_anew, check_valid_is_unchanged, "letter for letter"),
    (search_the_whole_file_for_each_message, check_linear, "10 times the log"),
]


@pytest.mark.parametrize("repair, check, words", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_wrong_version_is_rejected(repair, check, words, tmp_path):
    check = functools.partial(check_row, row=check) if isinstance(check, str) else check
    with pytest.raises(AssertionError, match=words):
        check(types.SimpleNamespace(repair=repair), tmp_path)


# What protects the history in the script: (name, its text, the text without it, check, words).
REMOVED = [
    ("a result for each open call", "result = call.result or", "result = call.result or '' and",
     "call without result", "each call needs a result"),
    ("a real result beats a synthetic one", "if not call and not synthetic", "if False",
     "synthetic result and real one", "a real result beats"),
    ("synthetic is a field", '"verdict" in record', '"outcome unknown" in result',
     check_synthetic_is_known_by_its_field, "these very words"),
    ("results in the order of the log", "sorted(calls, key=lambda call: call.arrived)", "calls",
     "results in another order", "stay in the order of the log"),
    ("fresh ids", "while not sent_id or sent_id in sent_ids", "while False and sent_id in sent_ids",
     "empty or missing ids", "a provider refuses it"),
    ("an id means its last use", "by_id[key] = (iter(same), iter(same), iter(same))",
     "by_id.setdefault(key, (iter(same), iter(same), iter(same)))",
     "one id used again", "its last use"),
    ("arguments hold an object", 'arguments_text(function.get("arguments"))',
     'function.get("arguments")', check_arguments, "a string that holds an object"),
    ("no half characters", "clean(spelled) == spelled", "True", check_arguments, "a provider refuses it"),
    ("no NaN in arguments", "parse_constant=int", "", check_arguments, "a provider refuses it"),
    ("no number that is too large", "json.dumps(value, ensure_ascii=False, allow_nan=False)",
     "json.dumps(value, ensure_ascii=False)", check_arguments, "a provider refuses it"),
    ("empty messages dropped", "and (text.strip() or calls)", "", "empty message", "is dropped"),
    ("(no output)", 'result if result.strip() else "(no output)"', 'result or " "',
     "empty tool content", "never empty"),
    ("one system message", 'if role in ("user", "assistant"):', 'if role != "orphan":',
     "second system message", "the first"),
    ("depth", "contextlib.suppress(ValueError, TypeError, RecursionError)",
     "contextlib.suppress(ValueError, TypeError)", check_depth, "must not end the session"),
    ("a missing file is empty", "with contextlib.suppress(FileNotFoundError), open(path",
     "with contextlib.suppress(ZeroDivisionError), open(path", check_missing_file, "is empty"),
]


@pytest.mark.parametrize("row", REMOVED, ids=[row[0] for row in REMOVED])
def test_without_this_protection_the_check_is_red(row, tmp_path):
    name, text, without, check, words = row
    source = Path(tinyharness.__file__).read_text(encoding="utf-8")
    assert source.count(text) == 1, f"{name}: the script has changed, and this test must follow"
    check = functools.partial(check_row, row=check) if isinstance(check, str) else check
    with pytest.raises(AssertionError, match=words):
        check(write_module(tmp_path, source.replace(text, without)), tmp_path)

"""Claim: any history, however mangled, becomes one that every provider accepts, in linear time."""

import collections
import json
import random
import re
import time
from types import SimpleNamespace

import pytest
from crash_tools import SCRIPT, load_module, write_copy
from strict_server import judge

HISTORIES, MORE_HISTORIES = 1_000, 20_000
MARK = re.compile(r"〔\d+〕")
DEEP = 100_000
ODD_IDS = ("", " ", None, 7, [], {}, "c1", "c1", "调用 🛠", "x" * 65, "call00001", "a\ud83d")
TAILS = ("", "\n", " 修复 🐞", "\u2028\u2029\u0085", "\0", "\ud83d", "\udc1e\ud83d", "</s>" * 9)
ARGUMENTS = ('{"path": "甲"}', "{}", "", " ", "null", "[]", '"x"', '{"a": ', '{"a": NaN}', "1e999",
             '{"a": 1e999}', '{"a": "\\ud83d"}', {"a": 1}, {"a": float("nan")}, None, 5, [], True,
             '{"a": 1}{"b": 2}', '{"a": 1, "a": 2}')
DEEP_ARGUMENTS = ('{"a":' * DEEP, "[" * DEEP + "]" * DEEP)
NAMES = ("bash", "read_file", "", "跑", "a b", "x" * 65, None, 3, ["bash"])
JUNK = (None, True, 0, -1.5, float("inf"), "", "role", "〕", "tool", [], {}, [[]], [None], [{}],
        {"role": "user"}, {"event": 1}, [{"type": "text"}], [{"type": "tool_use"}],
        [{"type": "tool_result", "tool_use_id": 3}], [{"id": "c1", "function": 5}],
        [{"function": {"arguments": {}}}])
KEYS = ("role", "content", "tool_calls", "tool_call_id", "event", "ts", "verdict", "finish_reason",
        "name", "tool_use_id", "function", "format", "refusal", "cwd")
ALIENS = (None, 5, "text", [], {}, [{}], {"type": "summary"}, {"role": "developer", "content": "x"},
          {"role": "tool"}, {"role": "assistant"}, {"role": "user"}, {"event": "unheard of"},
          {"role": "system", "content": "a"}, {"role": "system", "content": "规则 📏"},
          {"role": "tool", "tool_call_id": "c1", "content": "late"}, {"event": "turn"},
          {"event": "started"}, {"event": "started", "tool_call_id": "c1"},
          {"role": "tool", "tool_call_id": "c1", "content": "it may run", "verdict": "unknown"})
RAW_LINES = (b"", b"\r", b"\xef\xbb\xbf", b"\0" * 99, b"{", b"}{", b'{"role": "user", "cont',
             b'{"role": "user", "content": ' + b"[" * DEEP + b"]" * DEEP + b"}", b"\xff\xfe{}",
             b'{"role": "tool", "tool_call_id": "c1", "content": "\xe4\xbf"}', b"NaN", b"[" * DEEP,
             b"7" * 5_000)


# ─── the generator: turns as they are, then mangled ──────────────────────────────────────────────

class Generator:
    """Makes histories from a seed: the same seed, the same history."""

    def __init__(self, seed):
        self.random, self.marks = random.Random(seed), 0

    def some(self, *choices):
        return self.random.choice(choices)

    def odd(self, chance, usual, choices):
        """The usual value, or once in a while one of the others."""
        return self.random.choice(choices) if self.random.random() < chance else usual

    def text(self):
        """A text with a mark that no other text has."""
        self.marks += 1
        return f"{self.some('', '看 ')}〔{self.marks}〕{self.random.choice(TAILS)}"

    def content(self):
        """A text as a string or as content blocks."""
        text = self.text()
        return self.some(text, text, text, [{"type": "text", "text": text}])

    def turn(self):
        """One turn in one of the two dialects: prompt, calls, intents, results, last words."""
        blocks, calls = self.random.random() < 0.3, self.random.randrange(4)
        ids = [self.odd(0.3, f"id{self.random.randrange(10**9)}", ODD_IDS) for _ in range(calls)]
        yield {"role": "user", "content": self.content(), "ts": 1.5}
        if calls:
            yield self.ask_in_blocks(ids) if blocks else self.ask(ids)
        results = [self.give_in_block(each) if blocks else self.give(each) for each in ids]
        self.random.shuffle(results)
        if blocks and results:
            said = [{"type": "text", "text": self.text()}] * self.random.randrange(2)
            yield {"role": "user", "content": [*results, *said]}
        elif not blocks:
            for call_id, result in zip(ids, results):
                yield {"event": "started", "tool_call_id": call_id, "tool": "bash", "ts": 1.5}
                yield result
        yield {"role": "assistant", "content": self.content(), "ts": 1.5}

    def ask(self, ids):
        functions = [{"name": self.odd(0.2, "bash", NAMES), "arguments": self.odd(
            0.01, self.odd(0.4, "{}", ARGUMENTS), DEEP_ARGUMENTS)} for _ in ids]
        calls = [{"id": each, "type": "function", "function": function}
                 for each, function in zip(ids, functions)]
        return {"role": "assistant", "content": self.some(None, "", "好"), "tool_calls": calls,
                "finish_reason": "tool_calls", "ts": 1.5}

    def ask_in_blocks(self, ids):
        return {"role": "assistant", "content": [{"type": "text", "text": "好"}] + [
            {"type": "tool_use", "id": each, "name": self.odd(0.2, "bash", NAMES),
             "input": self.odd(0.2, {"path": "甲"}, ARGUMENTS)} for each in ids]}

    def give(self, call_id):
        verdict = {"verdict": "outcome unknown"} if self.random.random() < 0.1 else {}
        return {"role": "tool", "tool_call_id": call_id, "content": self.content(), **verdict}

    def give_in_block(self, call_id):
        return {"type": "tool_result", "tool_use_id": call_id, "content": self.content()}

    def history(self):
        """Some turns; then records lost, doubled, moved, alien, and junk in any field."""
        records = [] if self.random.random() < 0.5 else [{"event": "session", "format": 1, "ts": 1}]
        for _ in range(self.random.randrange(1, 6)):
            records += self.turn()
        for _ in range(self.random.randrange(8)):
            place, other = (self.random.randrange(len(records)) for _ in range(2))
            kind, taken = self.random.randrange(5), records.pop(place)
            if kind == 1:
                records[place:place] = [taken, taken]
            elif kind == 2:
                records.insert(other, taken)
            elif kind == 3:
                records[place:place] = [taken, self.random.choice(ALIENS)]
            elif kind == 4:
                junk = {self.random.choice(KEYS): self.random.choice(JUNK)}
                records.insert(place, {**taken, **junk} if isinstance(taken, dict) else junk)
            # Kind 0 is a record lost; but there is always one left to be mangled.
            records = records or [{"role": "user", "content": self.text()}]
        return records

    def file(self, records):
        """The bytes of a log of these records, with lines between them that are none."""
        lines = []
        for record in records:
            lines += [self.random.choice(RAW_LINES)] * (self.random.random() < 0.05)
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "ignore")
            lines.append(self.odd(0.5, json.dumps(record).encode(), [line]))
        return b"".join(line + self.some(b"\n", b"\n", b"\r\n") for line in lines)


# ─── what must be true, read off the records in the plainest way ─────────────────────────────────

def texts_in(content):
    """The texts of a content: itself, or those of its text blocks."""
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [block["text"] for block in blocks if isinstance(block, dict)
            and block.get("type") == "text" and isinstance(block.get("text"), str)]


def blocks_in(record, kind):
    """The content blocks of a kind."""
    content = record.get("content")
    return [block for block in (content if isinstance(content, list) else [])
            if isinstance(block, dict) and block.get("type") == kind]


def list_call_ids(record):
    """The ids that an assistant message asks with, in either dialect."""
    if record.get("role") != "assistant":
        return []
    calls = record.get("tool_calls") if isinstance(record.get("tool_calls"), list) else []
    return [call.get("id") for call in [*calls, *blocks_in(record, "tool_use")]
            if isinstance(call, dict)]


def list_results(record):
    """(id, texts) of the results that a message holds, in either dialect."""
    if record.get("role") not in ("user", "assistant", "tool", "system"):
        return []
    results = [(block.get("tool_use_id"), texts_in(block.get("content")))
               for block in blocks_in(record, "tool_result")]
    if record["role"] == "tool":
        results.insert(0, (record.get("tool_call_id"), texts_in(record.get("content"))))
    return results


def find_sure_results(records):
    """{id: texts} of the results about which there can be no two opinions: the id is in use once
    in the whole history, the call came before, and this is the first real result."""
    records = [record for record in records if isinstance(record, dict)]
    asked = [(place, each) for place, record in enumerate(records)
             for each in list_call_ids(record) if isinstance(each, str)]
    uses, sure = collections.Counter(each for _, each in asked), {}
    first = {each: place for place, each in asked if uses[each] == 1 and each.startswith("id")}
    for place, record in enumerate(records):
        for call_id, texts in list_results(record) if "verdict" not in record else ():
            if isinstance(call_id, str) and place > first.get(call_id, len(records)):
                sure.setdefault(call_id, texts)
    return sure


def marks_of(texts):
    """How often each mark is in some texts."""
    return collections.Counter(mark for text in texts for mark in MARK.findall(text or ""))


def check_texts(records, messages, where):
    """Every text of a user is sent, and every sure result, under the id of its call."""
    said = [text for record in records if isinstance(record, dict) and record.get("role") == "user"
            for text in texts_in(record.get("content"))]
    sent = [message["content"] for message in messages if message["role"] == "user"]
    lost = marks_of(said) - marks_of(sent)
    assert not lost, f"{where}: what the user said is lost: {sorted(lost)}"
    results = {message.get("tool_call_id"): message["content"] for message in messages}
    for call_id, texts in find_sure_results(records).items():
        lost = marks_of(texts) - marks_of([results.get(call_id)])
        assert not lost, f"{where}: the result of {call_id} is lost or with another call: {lost}"


def check_history(impl, seed, path):
    """One history, as a list and as a file."""
    generator = Generator(seed)
    records, where = generator.history(), f"seed {seed}"
    path.write_bytes(generator.file(records))
    for way, given in (("repair", lambda: impl.repair(records)),
                       ("load_session", lambda: impl.load_session(path))):
        try:
            messages = given()
        except Exception as error:
            raise AssertionError(f"{where}: {way} raised {error!r:.200}") from error
        objections = judge(messages) if messages else []
        assert not objections, f"{where}: strict providers refuse what {way} returns: {objections}"
        check_texts(records, messages, f"{where}, {way}")
        assert impl.repair(messages) == messages, f"{where}: repairing what is whole changes it"


def check_histories(impl, folder, seeds):
    """Many histories, each from a seed of its own."""
    for seed in seeds:
        check_history(impl, seed, folder / "历史.jsonl")


def test_any_history_becomes_a_valid_one(impl, tmp_path):
    check_histories(impl, tmp_path, range(HISTORIES))


@pytest.mark.long
def test_any_of_many_new_histories_becomes_a_valid_one(impl, tmp_path, survived):
    start = random.SystemRandom().randrange(HISTORIES, 10**9)
    print(f"seeds from {start} on")
    check_histories(impl, tmp_path, range(start, start + MORE_HISTORIES))
    survived(MORE_HISTORIES)


def test_the_generator_makes_what_the_checks_look_for():
    histories = [Generator(seed).history() for seed in range(200)]
    assert histories == [Generator(seed).history() for seed in range(200)]
    sure = [find_sure_results(records) for records in histories]
    assert sum(map(bool, sure)) > 100 and sum(map(len, sure)) > 300


# ─── linear time ─────────────────────────────────────────────────────────────────────────────────

def ask(*ids):
    """An assistant message that asks with these ids."""
    function = {"name": "bash", "arguments": '{"command": "echo 修复 🐞"}'}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def give(call_id):
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": "好 [exit code 0]"}


SAY = {"role": "user", "content": "继续 🐢"}
SHAPES = {  # about so many records (or calls), each shape the worst of its kind
    "turns": lambda count: [record for number in range(count // 4) for record in (
        SAY, ask(f"c{number}"), give(f"c{number}"), {"role": "assistant", "content": "好"})],
    "dangling calls": lambda count: [ask(f"c{number}") for number in range(count)],
    "one id in every turn": lambda count: [ask("c"), give("c")] * (count // 2),
    "results without a call": lambda count: [give(f"c{number}") for number in range(count)],
    "one result again and again": lambda count: [ask("c"), *[give("c")] * count],
    "all results at the end": lambda count: [
        *(ask(f"c{number}") for number in range(count // 2)),
        *(give(f"c{number}") for number in range(count // 2))],
    "one message of many calls": lambda count: [
        ask(*(f"c{number}" for number in range(count // 2))),
        *(give(f"c{number}") for number in reversed(range(count // 2)))],
    "one message of many calls with one id": lambda count: [
        ask(*["c"] * (count // 2)), *[give("c")] * (count // 2)],
    "one message of many calls without an id": lambda count: [
        ask(*[None] * (count // 2)), *[give(None)] * (count // 2)],
    "ids like those that are minted": lambda count: [
        ask(*(f"call{number:05d}" for number in range(count // 2, count)), *[""] * (count // 2))],
    "intents without end": lambda count: [
        ask(*["c"] * (count // 2)), *[{"event": "started", "tool_call_id": "c"}] * (count // 2)],
    "system messages": lambda count: [{"role": "system", "content": f"规则 {number}"}
                                      for number in range(count)]}


def check_linear(impl, name, count=5_000, ratio=25):
    """Ten times the records take about ten times the time."""
    best = dict.fromkeys((count // 10, count), float("inf"))
    histories = {size: SHAPES[name](size) for size in best}
    # The best of a few rounds: noise does not come every time, what is quadratic does.
    for turn in range(8):
        for size, records in histories.items():
            start = time.process_time()
            # The short one ten times, all of it held: else only the long one pays for new memory.
            held = [impl.repair(records) for _ in range(count // size)]
            best[size] = min(best[size], (time.process_time() - start) / len(held))
        times = best[count] / best[count // 10]
        if turn >= 2 and times <= ratio:
            return
    raise AssertionError(f"{name}: 10 times the records take {times:.0f} times as long")


@pytest.mark.parametrize("name", SHAPES)
def test_repair_is_linear(impl, name):
    # The floor of noise is high at this size; what is quadratic takes 100 times as long.
    check_linear(impl, name)


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_repair_of_100_000_records_is_linear(impl, name):
    check_linear(impl, name, 100_000, 12)


# ─── the checks reject what is wrong ─────────────────────────────────────────────────────────────

@pytest.fixture(scope="module")
def reference():
    """The reference, whatever --impl says: the wrong versions are built on it."""
    return load_module(SCRIPT)


def load_naively(path):
    """The chapter's own code: every line must be JSON."""
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def wrong_versions(good):
    """Named wrong repairs, each built on a good one."""
    def stub(records):
        raise NotImplementedError

    def send_as_it_is(records):
        return [record for record in records if isinstance(record, dict) and "role" in record]

    def cut_before_the_first_dangling_call(records):
        answered = {each for record in records if isinstance(record, dict)
                    for each, _ in list_results(record) if isinstance(each, str)}
        for place, record in enumerate(records):
            asked = list_call_ids(record) if isinstance(record, dict) else []
            if any(each not in answered for each in asked if isinstance(each, str)):
                return good.repair(records[:place])
        return good.repair(records)

    def number_all_ids(records):
        messages = json.loads(json.dumps(good.repair(records)))
        given = (call for message in messages for call in message.get("tool_calls", []))
        new_ids = {call["id"]: f"call{number}" for number, call in enumerate(given)}
        for message in messages:
            for call in message.get("tool_calls", []):
                call["id"] = new_ids[call["id"]]
            if message["role"] == "tool":
                message["tool_call_id"] = new_ids[message["tool_call_id"]]
        return messages

    def tell_the_time(records):
        messages = good.repair(records)
        return [*messages, {"role": "user", "content": f"It is {time.time_ns()}."}]

    def look_only_behind_the_call(records):
        kept = []
        for record in filter(lambda each: isinstance(each, dict), records):
            if not list_results(record) or (kept and list_call_ids(kept[-1])):
                kept.append(record)
        return good.repair(kept)

    def compare_each_with_each(records):
        return good.repair([one for one in records if sum(one is other for other in records)])

    return {each.__name__: each for each in locals().values() if callable(each)}


@pytest.mark.parametrize("name, words", (
    ("stub", "raised NotImplementedError"), ("send_as_it_is", "strict providers refuse"),
    ("cut_before_the_first_dangling_call", "what the user said is lost"),
    ("number_all_ids", "lost or with another call"),
    ("tell_the_time", "repairing what is whole changes it"),
    ("look_only_behind_the_call", "lost or with another call")))
def test_the_check_rejects_a_wrong_repair(reference, tmp_path, name, words):
    wrong = wrong_versions(reference)[name]
    copy = SimpleNamespace(
        repair=wrong, load_session=lambda path: wrong(reference.read_jsonl(path)))
    with pytest.raises(AssertionError, match=words):
        check_histories(copy, tmp_path, range(300))


def test_the_check_rejects_the_chapters_loader(reference, tmp_path):
    copy = SimpleNamespace(repair=reference.repair, load_session=load_naively)
    with pytest.raises(AssertionError, match="load_session raised"):
        check_histories(copy, tmp_path, range(300))


def test_the_check_rejects_quadratic_time(reference):
    copy = SimpleNamespace(repair=wrong_versions(reference)["compare_each_with_each"])
    with pytest.raises(AssertionError, match="times as long"):
        check_linear(copy, "dangling calls", 2_500)


def test_repair_of_the_last_message_only_is_red(tmp_path):
    script = write_copy(
        tmp_path, ("for call in sorted(calls, key=lambda call: call.arrived):",
                   "for call in [call for call in calls if call.result or calls is groups[-1][2]]:"))
    with pytest.raises(AssertionError, match="must be followed directly by one tool message"):
        check_histories(load_module(script), tmp_path, range(300))

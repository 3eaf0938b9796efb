"""Claim: the exercises of m06_control are graded by what a stopped and a steered turn leave in the log.

`control_turn` is put into the script's own loop; `run_batch` stands in a small loop of this file. Of a
whole script (the reference) its own loop is played instead.
"""

import contextlib
import json
import signal

import pytest
import tinyharness
from strict_server import judge

CRASH = "the harness stopped"  # what a verdict gives as the reason, unless it is told another one
CLAIMS = ("cancel", "not executed", "failed", "取消")  # of a call that has begun, nobody knows these


@pytest.fixture(autouse=True)
def listening():
    """Hear SIGINT, even if this process was started by a shell that ignores it."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


def is_whole(impl) -> bool:
    """Whether a file brings a loop of its own, and is no learner's exercise."""
    return getattr(getattr(impl, "run_turn", None), "__globals__", None) is vars(impl)


@pytest.fixture
def harness(impl, monkeypatch):
    """The script, with the learner's `control_turn` in its loop."""
    if is_whole(impl):
        return impl
    monkeypatch.setattr(tinyharness, "control_turn", impl.control_turn)
    return tinyharness


def ask_for(*names):
    """A model that asks for these tools in one reply, and afterwards is content."""
    calls = [{"id": f"号{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
             for number, name in enumerate(names, 1)]

    def model(messages, tools):
        assert judge(messages) == [], "the model is asked with a history that a provider refuses"
        done = any("tool_calls" in message for message in messages)
        return {"content": "完成 ✅"} if done else {"content": None, "tool_calls": calls}
    return model


def make_tools(**functions):
    """A tool table of these functions, each called with the session."""
    tools = {}
    for name, function in functions.items():
        def run(session, function=function):
            return function(session)
        run.__name__ = name
        tinyharness.tool(tools)(run)
    return tools


def press_ctrl_c(_):
    signal.raise_signal(signal.SIGINT)
    return "it went on, although it was stopped"


TOOLS = make_tools(good=lambda _: "好 ✅", stop=press_ctrl_c, late=lambda _: "too late")


def play(harness, session, model, tools=TOOLS, **more) -> str:
    """Take a turn; return the name of the error that came out of it, "" if it ended by itself."""
    try:
        harness.run_turn(session, "修复 🐞", model, tools, show=list, **more)
    except (KeyboardInterrupt, harness.Failure) as error:
        return type(error).__name__
    return ""


def results_of(records) -> dict:
    """Call id -> all of its results."""
    found = {}
    for record in records:
        if record.get("role") == "tool":
            found.setdefault(record["tool_call_id"], []).append(record["content"])
    return found


def check_ended(session, state, how):
    """The last record on disk says how the turn ended, and a next turn can begin."""
    last = (tinyharness.read_jsonl(session.path) or [{}])[-1]
    assert last.get("event") == "turn", f"{how}: the last record is no turn event that says {state}"
    said = last.get("state")
    assert said == state, f"{how}: the last record says {said!r}, and it was {state!r}"
    assert not session.in_turn, f"{how}: session.in_turn is still set, so each later turn is refused"


# ── control_turn ──────────────────────────────────────────────────────────────────────────────────

def test_control_turn_says_done(harness, tmp_path):
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        for _ in "一二":
            assert play(harness, session, ask_for("good")) == ""
            check_ended(session, "done", "after a turn that ended by itself")


def test_control_turn_interrupted_in_a_batch(harness, tmp_path):
    path = tmp_path / "s.jsonl"
    with harness.Session(path, tmp_path) as session:
        session.append({"role": "user", "content": "before"})
        before = path.read_bytes()
        raised = play(harness, session, ask_for("good", "stop", "late"))
        records = tinyharness.read_jsonl(path)
        results = results_of(records)
        assert path.read_bytes().startswith(before) and any("tool_calls" in each for each in records), (
            "the log was rewritten: what happened, the calls and the first result, is forgotten")
        why = ("an interrupt is a KeyboardInterrupt, which is no Exception" if records[-1].get("state") == "error"
               else "look for all open calls, the last message is not the batch")
        assert len(results) == 3, f"{3 - len(results)} of 3 calls have no result after Ctrl-C: {why}"
        assert raised == "KeyboardInterrupt", (
            "the interrupt was swallowed: the caller believes that the turn is done, and goes on")
        check_truths(results)
        check_ended(session, "aborted", "after Ctrl-C")
        play(harness, session, ask_for())
        assert judge(session.messages()) == []


def check_truths(results):
    """Three results, each as true as the log allows."""
    many = [call for call, texts in results.items() if len(texts) > 1]
    assert not many, f"call {many[0]} has two results: a call that has its result is not open" if many else ""
    done, ran, never = (results[call][0] for call in ("号1", "号2", "号3"))
    assert done == "好 ✅", f"call 1 was done, and its result is {done!r}"
    claimed = [word for word in CLAIMS if word in ran.lower()]
    assert not claimed, f"call 2 was running: the log cannot know that it is {claimed and claimed[0]!r}"
    assert "outcome unknown" in ran, f"call 2 was running: its outcome is unknown, not {ran!r}"
    assert "not started" in never, f"call 3 has no `started` record: it never ran; not {never!r}"
    assert CRASH not in ran + never, (
        f"the verdict says that {CRASH}, but it was the user: after Ctrl-C settle_calls needs its second argument")


def test_control_turn_file_and_memory_parted(harness, tmp_path, monkeypatch):
    """Ctrl-C when the result is on disk, and not yet in session.records."""
    append = harness.append_jsonl

    def append_and_stop(path, record):
        append(path, record)
        if record.get("content") == "好 ✅":
            signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(harness, "append_jsonl", append_and_stop)
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        play(harness, session, ask_for("good", "late"))
        results = results_of(tinyharness.read_jsonl(session.path))
    assert len(results.get("号1", [])) == 1, (
        "a verdict was written on a call that has its result on disk: Ctrl-C came between file and memory, "
        "and only the file is right")


def test_control_turn_says_error(harness, tmp_path):
    def broken(messages, tools):
        raise ConnectionError("the line is dead 断")
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        assert play(harness, session, broken) == "Failure", "the model's failure was swallowed"
        check_ended(session, "error", "after a model that failed")


def test_control_turn_refuses_a_second_turn(harness, tmp_path):
    seen = []

    def begin_again(session):
        try:
            harness.run_turn(session, "再来", ask_for(), show=list)
        except RuntimeError as error:
            seen.append(str(error))
        return "tried"
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        play(harness, session, ask_for("again"), make_tools(again=begin_again))
        assert seen, "a second turn began inside of a turn: two loops write between each other's calls"
        words = seen[0]
        assert "steer" in words and "abort" in words, f"the error does not name steer and abort: {words!r}"
        assert session.records[-1].get("state") == "done", "the refused turn has ended the running one"


def test_control_turn_settles_what_a_crash_left(harness, tmp_path):
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        session.append({"role": "user", "content": "go"})
        session.append({**ask_for("late")([{"role": "user", "content": "go"}], []), "role": "assistant"})
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        play(harness, session, ask_for())
        said = [record["role"] for record in session.records if "role" in record]
        results = results_of(session.records)
    assert said == ["user", "assistant", "tool", "user", "assistant"], (
        "a call that a crash left open has no verdict on disk before the next prompt")
    assert "by the user" not in results["号1"][0], (
        "a crash left this call open, and its verdict says that it was the user")


def is_verdict(record) -> bool:
    return record.get("role") == "tool"


def is_ending(record) -> bool:
    return record.get("event") == "turn"


@pytest.mark.parametrize("refused", [is_verdict, is_ending])
def test_control_turn_without_a_disk(harness, tmp_path, monkeypatch, refused):
    """The disk refuses one record of the turn: the turn is over all the same."""
    append, faults = harness.append_jsonl, [28]

    def append_or_fail(path, record):
        if faults and refused(record):
            raise OSError(faults.pop(), "No space left on device")
        append(path, record)
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        session.append({"role": "user", "content": "go"})
        session.append({**ask_for("late")([{"role": "user", "content": "go"}], []), "role": "assistant"})
        monkeypatch.setattr(harness, "append_jsonl", append_or_fail)
        with contextlib.suppress(harness.SessionError, OSError):
            play(harness, session, ask_for())
        where = "a verdict at the beginning" if refused is is_verdict else "the last record"
        assert not faults, f"nothing tried to write {where} of the turn"
        assert not session.in_turn, (
            f"the disk refused {where}, and session.in_turn is still set: each later turn is refused")
        if refused is is_verdict:
            check_ended(session, "error", "after a disk that refused a verdict")


def test_control_turn_keeps_what_was_typed(harness, tmp_path):
    def type_and_stop(session):
        session.steer("先看测试")
        return press_ctrl_c(session)
    with harness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        play(harness, session, ask_for("stop"), make_tools(stop=type_and_stop))
        said = [(record["role"], record["content"]) for record in session.records if "role" in record]
    assert ("user", "先看测试") in said, "what was typed before Ctrl-C is lost"
    assert said[-1][0] == "user", "what was typed stands before the verdict: between a call and its result"


# ── run_batch ─────────────────────────────────────────────────────────────────────────────────────

def take_turn(impl, session, model, tools, listen):
    """A turn whose batches are the learner's; of a whole script, its own turn."""
    if is_whole(impl):
        return impl.run_turn(session, "修复 🐞", model, tools, show=list, listen=listen)

    def run(call):
        return tinyharness.run_call(session, call, tools, None)
    with tinyharness.control_turn(session):
        more = session.add_prompts(["修复 🐞"])
        while more:
            session.append({**model(session.messages(), []), "role": "assistant"})
            calls = tinyharness.open_calls(session.records[-1:])
            more = impl.run_batch(session, calls, run, listen)


def said_in(session) -> list:
    """Role and text of each message, in the order of the file."""
    records = tinyharness.read_jsonl(session.path)
    return [(record["role"], record["content"]) for record in records if "role" in record]


def take_out(typed):
    """A `listen` as a terminal has it: what it has returned once, it does not return again."""
    def listen():
        lines, typed[:] = typed[:], []
        return lines
    return listen


def test_run_batch_typed_line_waits(impl, tmp_path):
    typed = []

    def type_line(session):
        session.steer("第一")
        typed.append("第二")
        return "typed"
    tools = make_tools(type=type_line, good=lambda _: "好 ✅")
    with tinyharness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        # A history that a provider refuses shows in the file; the turn may stop there.
        with contextlib.suppress(AssertionError):
            take_turn(impl, session, ask_for("type", "good"), tools, take_out(typed))
        said = said_in(session)
    roles = [role for role, _ in said]
    assert roles.count("tool") >= 2, "a typed line ended the batch: a call has no result"
    assert [text for role, text in said if role == "tool"] == ["typed", "好 ✅"], (
        "a result says something else than what its tool said: the model takes it for the tool's words")
    assert roles[2:4] == ["tool", "tool"], (
        f"a typed line stands between a call and its result: {' '.join(roles)}")
    lines = [text for role, text in said[1:] if role == "user"]
    assert "第二" in lines, "a typed line was not heard when the model was asked again"
    assert lines == ["第一", "第二"], (
        f"what was steered with session.steer is lost or overtaken: {json.dumps(lines, ensure_ascii=False)}")
    assert roles[4:6] == ["user", "user"], "the model was asked before it could read what was typed"


def test_run_batch_interrupted(impl, tmp_path):
    typed = []

    def type_line(session):
        typed.append("先看测试")
        return "好 ✅"
    tools = make_tools(good=type_line, stop=press_ctrl_c)
    with tinyharness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        with contextlib.suppress(KeyboardInterrupt):
            take_turn(impl, session, ask_for("good", "stop"), tools, take_out(typed))
        said, kept = said_in(session), [*typed, *session.inbox]
    assert ("tool", "好 ✅") in said, (
        "the result of a call that was done is lost: Ctrl-C came before the results were stored")
    assert "先看测试" in kept + [text for role, text in said if role == "user"], (
        "a typed line is lost: it was taken out of listen(), and not stored when Ctrl-C came")


def test_run_batch_line_at_the_end(impl, tmp_path):
    typed, asked = [], []

    def model(messages, tools):
        asked.append(messages[-1]["content"])
        typed.extend(["还有一件事"] * (len(asked) == 1))
        return {"content": "完成 ✅"}
    with tinyharness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        take_turn(impl, session, model, {}, take_out(typed))
    assert "还有一件事" in asked, "a line typed during the last words is not answered: the turn ended"


def test_run_batch_calls_are_followed_by_a_request(impl, tmp_path):
    with tinyharness.Session(tmp_path / "s.jsonl", tmp_path) as session:
        take_turn(impl, session, ask_for("good"), TOOLS, list)
        assert said_in(session)[-1] == ("assistant", "完成 ✅"), "the model never read its results"

"""Claim: the exercises of m07_resume are graded. A session is loaded whole, whatever is wrong with a line of it;
a receipt says what was read, what was skipped, what is open; and both only look."""

import inspect
import json
import os

import pytest
from test_m07_resume import (
    BEGUN, GOOD, ONE, OPENED, TWO, answer, ask, check_dangling_call_is_handled, check_kill_leaves_what_was_acknowledged,
    check_load_changes_nothing, check_resume_goes_on, check_torn_line_costs_only_itself, say, take_stamp,
    write_session)
from test_models import call_tool

import tinyharness

EDIT = call_tool("edit_file", "e1", path="a.txt", old="旧", new="新")
TORN = b'{"role": "us\n\n[1]\n'  # two lines that hold no record, and a blank one


# ── load_session ──────────────────────────────────────────────────────────────────────────────────

def test_load_without_a_file(impl, tmp_path):
    path = tmp_path / "没有.jsonl"
    try:
        loaded = impl.load_session(path)
    except OSError as error:
        pytest.fail(f"a file that is not there is an empty session, and no error: {type(error).__name__}")
    assert loaded == [], f"a file that is not there is an empty session: [], and not {loaded!r}"
    assert not path.exists(), "there was no file, and now there is one: loading does not make it"


def loader(impl):
    """The learner's function with short words for its errors; a missing file has a check of its own."""
    def load(path):
        try:
            return impl.load_session(path) if os.path.exists(path) else []
        except NotImplementedError:
            raise
        except (ValueError, LookupError) as error:
            pytest.fail("one torn line or a record of another kind makes all unreadable: "
                        f"{type(error).__name__}")
        except Exception as error:
            pytest.fail(f"load_session ends in {type(error).__name__}: {error}")
    return load


def texts_of(impl, path) -> list:
    return [message.get("content") for message in loader(impl)(path)]


def test_load_ends_a_line_at_a_newline_only(impl, tmp_path):
    texts = ["一\u2028二", "三\x85四", "五"]
    path = write_session(tmp_path / "a.jsonl", OPENED, *map(say, texts[:2]),
                         tail='{"role": "user",\r "content": "五"}\n'.encode())
    assert texts_of(impl, path) == texts, (
        "a record is cut in two, for a line ends at b'\\n' and nowhere else: U+2028 or \\r can be inside of a record")


GLUED = {  # what is on one line, because a newline was lost: (the line, what it says)
    "two records": (b'{"role": "user", "content": "A"}{"role": "user", "content": "B"}\n', ["A", "B"]),
    "a torn record, and a whole one": (b'{"role": "user", "con{"role": "user", "content": "B"}\n', ["B"]),
}


@pytest.mark.parametrize("kind", GLUED)
def test_load_keeps_each_record_of_a_glued_line(impl, tmp_path, kind):
    line, texts = GLUED[kind]
    path = write_session(tmp_path / "a.jsonl", OPENED, tail=line + b'{"role": "user", "content": "C"}\n')
    assert texts_of(impl, path) == [*texts, "C"], (
        f"{kind} on one line, and a whole record is thrown away: parse_line can return a problem *and* records")


def test_load_goes_on(impl, tmp_path):
    check_resume_goes_on(loader(impl), tmp_path)


def test_load_answers_each_dangling_call(impl, tmp_path):
    check_dangling_call_is_handled(loader(impl), tmp_path)


def test_load_loses_one_torn_line(impl, tmp_path):
    check_torn_line_costs_only_itself(loader(impl), tmp_path)


def test_load_changes_nothing(impl, tmp_path):
    check_load_changes_nothing(loader(impl), tmp_path)


def test_load_finds_what_was_written_before_a_kill(impl, tmp_path):
    check_kill_leaves_what_was_acknowledged(loader(impl), tmp_path)


# ── write_receipt ─────────────────────────────────────────────────────────────────────────────────


def receive(impl, folder, *records, tail=b"") -> tuple:
    """The receipt of a session with these records, and the session."""
    path = write_session(folder / "session.jsonl", OPENED, *records, tail=tail)
    with tinyharness.Session(path, folder) as session:
        text = impl.write_receipt(session)
    assert isinstance(text, str), f"a receipt is text that a person reads: a str, and no {type(text).__name__}"
    return text, session


def find_lines(text, *words) -> list:
    """The lines of a text that hold all of these words."""
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_receipt_counts_what_was_read(impl, tmp_path):
    text, _ = receive(impl, tmp_path, say("做"), ask(ONE), BEGUN, answer("c1", "一"), GOOD, tail=TORN)
    assert "6 records read" in text, (
        "6 records are in the file, events among them, but the receipt does not say '6 records read'")
    assert "2 lines skipped" in text, "the receipt hides that 2 lines were skipped"


def test_receipt_names_each_skipped_line(impl, tmp_path):
    text, session = receive(impl, tmp_path, say("做"), GOOD, tail=TORN)
    for number, problem in session.skipped:
        assert find_lines(text, f"skipped line {number}", problem), (
            f"the receipt hides that line {number} was skipped ({problem}): nobody can go and look")


BATCH = [say("做"), ask(ONE, TWO), BEGUN]
OPEN = {  # where: records with one open call `bash`
    "behind its `started` record": [say("做"), ask(ONE), BEGUN],
    "in the middle of the history": [say("做"), ask(ONE), BEGUN, say("还在吗?"), GOOD],
    "second of a batch": [say("做"), ask(ONE, TWO), BEGUN, answer("c1", "一")],
}


def test_receipt_names_each_open_call(impl, tmp_path):
    for where, records in OPEN.items():
        text, _ = receive(impl, tmp_path, *records)
        assert find_lines(text, "call bash"), (
            f"an open call {where} is not in the receipt; looking at the last message is not enough")
    text, _ = receive(impl, tmp_path, *BATCH)
    assert len(find_lines(text, "call bash")) == 2, "two calls of one message are open: name both"


def test_receipt_names_no_call_that_has_its_result(impl, tmp_path):
    text, _ = receive(impl, tmp_path, say("做"), ask(ONE), BEGUN, answer("c1", "一"), GOOD)
    assert not find_lines(text, "call bash"), "this call has its result, so nothing is open"


def test_receipt_claims_only_what_is_known(impl, tmp_path):
    text, _ = receive(impl, tmp_path, *BATCH)
    lines = find_lines(text, "call bash")
    claims = [word for word in ("not executed", "cancel", "failed", "取消") if word in text.lower()]
    assert not claims, f"the log cannot know that a call was {claims}: it began, and may have run"
    assert find_lines("\n".join(lines), "outcome unknown"), (
        "a call that began, and has no result, is 'outcome unknown': no verdict says so")
    assert find_lines("\n".join(lines), "not started"), (
        "a call without a `started` record is 'not started': no verdict says so")


def test_receipt_looks_at_the_file(impl, tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("新".encode())
    begun = {"event": "started", "tool_call_id": "e1", "tool": "edit_file", "path": str(file),
             "read_only": False, "before": tinyharness.hash_file(file, "旧".encode()),
             "after": tinyharness.hash_file(file)}
    text, _ = receive(impl, tmp_path, say("做"), ask(EDIT), begun)
    assert find_lines(text, "call edit_file", ": applied"), (
        "the edit is in the file, so the verdict is 'applied': look at the file, not only at the log")


def test_receipt_changes_nothing(impl, tmp_path):
    records = [say("做"), ask(call_tool("bash", "c1", command="echo 又 >>ran.txt")), BEGUN]
    path = write_session(tmp_path / "session.jsonl", OPENED, *records, tail=TORN)
    os.utime(path, (1, 1))
    before, there = take_stamp(path), sorted(os.listdir(tmp_path))
    with tinyharness.Session(path, tmp_path) as session:
        held = json.dumps([session.records, session.skipped])
        impl.write_receipt(session)
        assert json.dumps([session.records, session.skipped]) == held, (
            "the receipt changed what the session holds in memory; it only looks")
    assert not (tmp_path / "ran.txt").exists(), (
        "the open call ran again: opening a session runs nothing by itself")
    assert take_stamp(path) == before, (
        "the receipt wrote to the file: resume-and-quit leaves it byte for byte as it was")
    assert sorted(os.listdir(tmp_path)) == there, "the receipt left other files behind"


class Stub:
    @staticmethod
    def load_session(path):
        raise NotImplementedError

    @staticmethod
    def write_receipt(session):
        raise NotImplementedError


@pytest.mark.parametrize("check", [each for name, each in sorted(globals().items())
                                   if name.startswith("test_receipt")])
def test_check_rejects_the_stub(check, tmp_path):
    with pytest.raises(NotImplementedError):
        check(Stub, tmp_path)


@pytest.mark.parametrize("check", [each for name, each in sorted(globals().items())
                                   if name.startswith("test_load")])
def test_check_of_loading_rejects_the_stub(check, tmp_path):
    more = ["two records"] if "kind" in inspect.signature(check).parameters else []
    with pytest.raises(NotImplementedError):
        check(Stub, tmp_path, *more)

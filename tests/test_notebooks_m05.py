"""Claim: the check of notebook m05 names the misconception behind a wrong probe or a wrong verdict."""

import contextlib

import pytest
import tinyharness as reference
from test_m05_intent import (
    FORBIDDEN, LEDGER, NEW, ask, check_probe, check_verdicts, kill_in_turn, make_call, make_tools, one_call)


def test_probe_sees_what_is_there(impl, tmp_path):
    check_probe(impl.hash_file, tmp_path)


def test_probe_is_the_one_of_the_log(impl, tmp_path):
    path = tmp_path / "文件 📄.txt"
    path.write_text(NEW)
    for place in (path, tmp_path / "none"):
        with contextlib.suppress(OSError):  # the other test says that no file is no error
            seen = impl.hash_file(str(place))
            assert seen == reference.hash_file(place), (
                "what was seen before the crash is in the log, as SHA-256 in hex digits or as 'no file'; a later process "
                f"must see the very same, and not {seen!r}")


def judge_in_words(impl):
    """The learner's verdict, which must be a text."""
    def judge_call(call, probe=None):
        verdict = impl.judge_call(call, probe)
        assert isinstance(verdict, str), f"a verdict is a text for the model, and not {verdict!r}"
        return f"{verdict} "  # not the harness's own words, on which it would act
    return judge_call


@pytest.mark.parametrize("started", [None, {"tool": "bash"}, {"path": "x", "before": "1", "after": "2"}])
def test_verdict_claims_only_what_is_known(impl, started):
    verdict = judge_in_words(impl)(make_call(started))
    assert not any(word in verdict.lower() for word in FORBIDDEN), (
        f"{verdict.strip()!r} claims more than a log can know: no result does not say that it did not run")


def test_verdict_pays_once(impl, tmp_path, monkeypatch):
    path = kill_in_turn(reference, tmp_path, "in the middle", one_call("pay", ""))
    monkeypatch.setattr(reference, "judge_call", judge_in_words(impl))

    def believe(messages, tools):
        told = [each["content"] for each in messages if each["role"] == "tool"]
        if len(told) > 1 or "unknown" in told[0] or "; applied" in told[0]:
            return {"content": "好的 ✅"}
        return {"tool_calls": [ask("again", "pay", {"amount": 7})]}
    with reference.Session(path) as session:
        reference.run_turn(session, "继续", believe, make_tools(reference), show=list)
    assert (tmp_path / LEDGER).read_text().count("付款") == 1, (
        "paid twice: killed after the payment, and a model that believed your verdict paid again")


def test_verdict_in_each_case(impl, tmp_path):
    check_verdicts(judge_in_words(impl), tmp_path)

"""Claim: every call that the loop sees gets exactly one result, and it claims only what is known.

The checks of notebooks/m02_tools.ipynb. They grade `run_tool(session, call, tools, approve)`, which appends that
result to the session. The script has no such function: there `run_call` makes the result, and the turn answers
Ctrl-C, so without `run_tool` the same calls go through `run_turn`.
"""

import json
import re
import subprocess
import types

import pytest
from strict_server import judge
from test_m01_loop import ask, results_in, say

import tinyharness

TOO_MUCH = re.compile(r"(?<!may )(?<!or )not (been )?(executed|run)\b|never ran|did(n't| not) run|cancel|未执行|没有执行|取消")


def make_table(seen) -> dict:
    """A tool for each fate; `seen.ran` collects what really ran."""
    table = {name: tinyharness.TOOLS[name] for name in ("bash", "write_file")}

    @tinyharness.tool(table)
    def note(session, text: str):
        """Write a note."""
        seen.ran.append(text)
        return f"noted {text}"

    @tinyharness.tool(table, read_only=True)
    def look(session):
        """Look, and change nothing."""
        seen.ran.append("look")
        return "all quiet"

    @tinyharness.tool(table)
    def give(session, what: str):
        """Return something that is no text."""
        return {"nothing": None, "a number": 42, "a list": ["一", 2], "no words": ""}[what]

    @tinyharness.tool(table)
    def fail(session, how: str):
        """Fail, or be stopped, after the effect."""
        seen.ran.append(how)
        raise {"raises": ValueError("坏了 💥"), "calls sys.exit": SystemExit("走了"),
               "runs out of time": subprocess.TimeoutExpired("等 ⏳", 1),
               "is stopped by Ctrl-C": KeyboardInterrupt()}[how]

    return table


def answer(impl, session, reply, table, approve):
    """Have all calls of a reply answered: by the file's run_tool, or in a turn of the script."""
    if hasattr(impl, "run_tool"):
        session.append({"role": "user", "content": "用工具 🔧"})
        session.append(reply)
        for call in json.loads(json.dumps(reply["tool_calls"])):
            impl.run_tool(session, call, table, approve)
    elif hasattr(impl, "run_call"):
        def model(messages, tools):
            return say("好了") if messages[-1]["role"] == "tool" else reply
        impl.run_turn(session, "用工具 🔧", model, table, approve, show=lambda *_, **__: None)
    else:
        pytest.fail("the file has no function run_tool")


SILENT = ("run_tool stores no result, not even where all is well: append it to the session, for what run_tool "
          "prints or returns is not stored")


def play(impl, place, *calls, approve=None, probe=True):
    """Have the calls (tool, arguments) of one reply answered, and say what can be seen of it."""
    seen = types.SimpleNamespace(ran=[], error=None)
    (place / "work").mkdir(exist_ok=True)
    seen.log = place / f"{len(list(place.iterdir()))}.jsonl"
    reply = ask(*[(f"c{number}", *call) for number, call in enumerate(calls, 1)])
    with tinyharness.Session(seen.log, place / "work") as session:
        try:
            answer(impl, session, reply, make_table(seen), approve)
        except (NotImplementedError, pytest.fail.Exception):
            raise  # a stub, and no answer to anything
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            seen.error = error
    seen.results = results_in(seen.log)
    if probe and not seen.results:
        # Is it this fate that has no result, or every one? Then each check says so in the same words.
        plain = play(impl, place, ("note", {"text": "一"}), probe=False)
        if not plain.results and plain.error is None:
            pytest.fail(SILENT)
    return seen


def the_result(seen, problem) -> str:
    """The one result of the one call, for an agent that has to go on after it."""
    assert seen.error is None, (
        f"where {problem}, the model is to read it in a result, but it ended the turn: {seen.error!r}")
    return count_one(seen, f"where {problem}")


def count_one(seen, where, hint="append it to the session, whatever happens") -> str:
    """The text of the one result that there must be."""
    assert seen.results, f"{where}, the log holds no result of the call, and it must hold exactly one: {hint}"
    assert [call_id for call_id, _ in seen.results] == ["c1"], (
        f"{where}, the log holds {len(seen.results)} results of the call, and it must hold exactly one: "
        "each way through run_tool appends once")
    text = seen.results[0][1]
    assert isinstance(text, str), f"{where}, a result is a text, and not {text!r}: providers refuse the rest"
    return text


def test_success(impl, tmp_path):
    seen = play(impl, tmp_path, ("note", {"text": "一"}))
    text = the_result(seen, "all is well")
    assert seen.ran == ["一"], f"the tool is to run once, with the model's arguments: it ran for {seen.ran}"
    assert text == "noted 一", f"the model must read what the tool returned, and it reads {text!r}"


def test_result_is_a_text(impl, tmp_path):
    for what in ("nothing", "a number", "a list", "no words"):
        the_result(play(impl, tmp_path, ("give", {"what": what})), f"the tool returns {what}")


def test_plan_is_carried_out(impl, tmp_path):
    arguments = {"path": "计划.txt", "content": "三"}
    the_result(play(impl, tmp_path, ("write_file", arguments)), "a file is written")
    file = tmp_path / "work" / "计划.txt"
    assert file.exists() and file.read_text() == "三", (
        "write_file has only planned, and its file is not there: it returned a path and bytes. `act` puts them in place")


def test_unknown_tool(impl, tmp_path):
    text = the_result(play(impl, tmp_path, ("删除", {})), "the tool is unknown")
    assert "删除" in text, f"where the tool is unknown, the model must read which one, and it reads {text!r}"


ODD = {  # what is wrong with the arguments: (the arguments, words that the result must hold)
    "the arguments are no JSON": ('{"text": "坏', ""),
    "the arguments are a list": ('["坏"]', ""),
    "an argument is missing": ({}, "text"),
    "an argument is unknown": ({"text": "坏", "volume": 11}, "volume"),
    "an argument has a name of the harness's own": (
        dict.fromkeys(("text", "session", "call", "tools", "tool", "arguments", "approve", "name"), "坏"), ""),
}


def test_bad_arguments(impl, tmp_path):
    for problem, (arguments, words) in ODD.items():
        seen = play(impl, tmp_path, ("note", arguments))
        text = the_result(seen, problem)
        assert text.strip() and words in text, (
            f"where {problem}, the model must read it in words, and it reads {text!r}")
        assert not seen.ran, f"where {problem}, the tool cannot run, and it ran for {seen.ran}"


def test_exception(impl, tmp_path):
    for how, words in (("raises", "坏了 💥"), ("calls sys.exit", "走了")):
        seen = play(impl, tmp_path, ("fail", {"how": how}))
        text = the_result(seen, f"the tool {how}")
        assert words in text, (
            f"where the tool {how}, the model must read the error in words, or it cannot do better: {text!r}")
        assert len(seen.ran) == 1, (
            f"where the tool {how}, it ran {len(seen.ran)} times: its effect may be done already, "
            "so whether to try again is the model's to say")


def test_timeout(impl, tmp_path):
    text = the_result(play(impl, tmp_path, ("bash", {"command": "sleep 9", "timeout": 0.1})), "bash times out")
    assert "timed out" in text and "unknown" in text, f"pass on what the tool says of its timeout: {text!r}"
    text = the_result(play(impl, tmp_path, ("fail", {"how": "runs out of time"})), "the tool runs out of time")
    assert "timed out" in text, f"a timeout that the tool raises is told in words too: {text!r}"
    assert not TOO_MUCH.search(text), f"{text!r} claims too much: what ran out of time did run"


def test_refusal(impl, tmp_path):
    asked = []

    def refuse(name, arguments):
        asked.append((name, arguments))
        return "不行 🙅"

    seen = play(impl, tmp_path, ("note", {"text": "一"}), approve=refuse)
    text = the_result(seen, "the user refuses")
    assert not seen.ran, "the user refused, and the tool ran all the same"
    assert "不行 🙅" in text, f"the model must read that it was refused, and why, and it reads {text!r}"
    assert asked == [("note", {"text": "一"})], f"ask once, with the name and the arguments: {asked}"
    seen = play(impl, tmp_path, ("look", {}), approve=refuse)
    assert the_result(seen, "the tool only reads") == "all quiet" and len(asked) == 1, (
        "a tool that only reads is not asked for: tools[name].read_only")


STOPPABLE = ("Ctrl-C came, its result is stored, and then the interrupt must go on: an agent that "
             "swallows it cannot be stopped")
FINALLY = "Ctrl-C raises KeyboardInterrupt, which no `except Exception` sees; `finally` runs all the same"


def test_abort(impl, tmp_path):
    seen = play(impl, tmp_path, ("fail", {"how": "is stopped by Ctrl-C"}))
    text = count_one(seen, "where Ctrl-C stops the tool", FINALLY)
    assert isinstance(seen.error, KeyboardInterrupt), STOPPABLE
    assert not TOO_MUCH.search(text) and re.search("unknown|may have|未知", text), (
        f"{text!r} claims too much, or too little: the tool had begun, and nobody knows how far it came; "
        "say that the outcome is unknown")
    assert len(seen.ran) == 1, f"where Ctrl-C stops the tool, it ran {len(seen.ran)} times"


def test_abort_while_asking(impl, tmp_path):
    def ask_and_wait(name, arguments):
        raise KeyboardInterrupt

    seen = play(impl, tmp_path, ("note", {"text": "一"}), approve=ask_and_wait)
    assert not seen.ran, "Ctrl-C at the question is no yes, and the tool ran"
    count_one(seen, "where Ctrl-C comes while the user is asked", FINALLY)
    assert isinstance(seen.error, KeyboardInterrupt), STOPPABLE


def test_batch(impl, tmp_path):
    calls = [("note", {"text": "前"}), ("delete_file", {}), ("note", {}), ("fail", {"how": "raises"}),
             ("note", {"text": "不"}), ("note", {"text": "后"})]
    seen = play(impl, tmp_path, *calls,
                approve=lambda name, arguments: "不行" if arguments.get("text") == "不" else None)
    assert seen.error is None, f"one bad call of six ended the turn: {seen.error!r}"
    ids = [call_id for call_id, _ in seen.results]
    assert ids == [f"c{number}" for number in range(1, 7)], (
        f"six calls, so six results, exactly one for each and in order, but the log holds {ids}")
    history = [{key: value for key, value in record.items() if key not in ("ts", "tracked")}
               for record in tinyharness.read_jsonl(seen.log) if "role" in record]
    assert judge(history) == [], f"a strict provider refuses this history: {judge(history)}"
    assert seen.ran == ["前", "raises", "后"], f"the good calls run and the refused one does not: {seen.ran}"

"""Claim: whatever a turn does, it is on disk before the next step, and each call has one result."""

import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path

import pytest
from strict_server import is_tool, judge

import tinyharness

SOURCE = Path(tinyharness.__file__).read_text(encoding="utf-8")
PROMPT, DONE = "修复 parse_date 🐞", "修好了 ✅"


def part(impl, name):
    """What surrounds the graded function: the file's own, or the reference's if it has none."""
    return getattr(impl, name, None) or getattr(tinyharness, name)


def load(place, source, *changes):
    """A module from source text in which each old text is replaced by a new one."""
    for old, new in changes:
        assert source.count(old) == 1, f"found {source.count(old)} times, must be once: {old}"
        source = source.replace(old, new)
    file = place / "wrong.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("wrong", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(*calls, **more):
    """An assistant message with calls, each one (id, tool, arguments as an object or as said)."""
    calls = [(call_id, name, said if isinstance(said, str) else json.dumps(said))
             for call_id, name, said in calls]
    calls = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": said}}
             for call_id, name, said in calls]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def note(call_id, text):
    return call_id, "note", {"text": text}


def say(text):
    return {"role": "assistant", "content": text}


STEPS = [ask(note("c1", "一"), note("c2", "二")), ask(note("c3", "三")), say(DONE)]


def on_disk(path, keep=("role",)) -> list:
    """The log as another process sees it now: "user", "assistant", "tool c1", "started c1"."""
    lines = Path(path).read_bytes().split(b"\n") if os.path.isfile(path) else []
    records = [json.loads(line) for line in lines if line]
    return [" ".join(filter(None, (each.get("role", each.get("event")), each.get("tool_call_id"))))
            for each in records if each.keys() & set(keep)]


def results_in(path) -> list:
    """(id, text) of each result in a log."""
    records = map(json.loads, Path(path).read_bytes().splitlines())
    return [(each["tool_call_id"], each["content"]) for each in records if "tool_call_id" in each
            and each.get("role") == "tool"]


class Unspeakable:
    def __str__(self):
        raise ValueError("说不出 🤐")


def add_failing_tools(table, tool):
    @tool(table)
    def crash(session):
        """Fail."""
        raise ValueError("坏了 💥")

    @tool(table)
    def leave(session):
        """Leave the program."""
        sys.exit("走了")

    @tool(table)
    def nothing(session):
        """Return nothing."""

    @tool(table)
    def half(session):
        """Return what UTF-8 cannot hold."""
        return "半个字 \ud83d"

    @tool(table)
    def unspeakable(session):
        """Return an object that cannot be turned into text."""
        return Unspeakable()


def make_table(impl, path, seen):
    """Tools that note what was on disk when they were called."""
    table, tool = {}, part(impl, "tool")

    def begin(text):
        seen.steps.append((text, on_disk(path), on_disk(path, ("role", "event"))))

    @tool(table)
    def note(session, text: str):
        """Write a note."""
        begin(text)
        return f"noted {text}"

    @tool(table, read_only=True)
    def look(session):
        """Look, and change nothing."""
        begin("look")
        return "all quiet"

    @tool(table)
    def block(session):
        """Put a folder where the log was: nothing can be written there any more."""
        os.rename(path, f"{path}.kept")
        os.mkdir(path)
        return "blocked"
    add_failing_tools(table, tool)
    return table


def play(impl, path, replies, prompt=PROMPT, seen=None, **options):
    """Take a turn with a model that plays the replies; say what was seen of it, and when."""
    seen = seen or types.SimpleNamespace()
    vars(seen).update(steps=[], requests=[], offered=[], shown=[], words=None)

    def show(text, **_):
        # As print does it on a terminal: half a character raises.
        seen.shown.append(text.encode().decode())

    def model(messages, tools):
        seen.steps.append(("request", on_disk(path), []))
        seen.requests.append(json.loads(json.dumps(messages)))
        seen.offered = tools
        # The history alone says which reply is next: a model is a function of it.
        position = sum(message["role"] == "assistant" for message in messages)
        if position >= len(replies) or len(seen.requests) > 20:
            pytest.fail("one more request than replies: the loop does not know when a turn is over")
        if isinstance(replies[position], Exception):
            raise replies[position]
        return json.loads(json.dumps(replies[position]))

    if not hasattr(impl, "run_turn"):
        pytest.fail("the file has no function run_turn")
    table = make_table(impl, path, seen)
    with part(impl, "Session")(str(path), str(Path(path).parent)) as session:
        seen.before = Path(path).read_bytes() if os.path.isfile(path) else b""
        seen.words = impl.run_turn(session, prompt, model, table, show=show, **options)
    if prompt.strip() and not seen.requests:
        pytest.fail(f"run_turn returned {seen.words!r} and never asked the model; it returns the "
                    "model's last words")
    return seen


def try_to_play(impl, path, replies, **options):
    """Play, and return what was seen together with the error that came out of the turn, or None."""
    seen = types.SimpleNamespace()
    try:
        return play(impl, path, replies, seen=seen, **options), None
    except NotImplementedError:
        raise  # a stub, and no answer to anything
    except (Exception, SystemExit) as error:
        return seen, error


def calls_in(seen) -> list:
    """What the tools were called with, in the order in which they ran."""
    return [text for text, _, _ in seen.steps if text != "request"]


def expect_last_words(seen):
    assert seen.words == DONE, (
        f"run_turn returned {seen.words!r}; it returns the model's last words")


def check_prompt_is_stored_before_request(impl, path):
    steps = play(impl, path, STEPS).steps
    assert steps and steps[0][1] == ["user"], (
        f"at the first request the log holds {steps and steps[0][1]}, and not the prompt: a kill "
        "while the model thinks loses what the user typed")


def check_reply_is_stored_before_tools(impl, path):
    seen = {text: disk for text, disk, _ in play(impl, path, STEPS).steps}
    assert seen.get("一") == ["user", "assistant"], (
        f"when the first tool begins, the log holds {seen.get('一')}, not its call: "
        "a kill in the tool leaves an effect that nothing in the log explains")


def check_results_are_stored_one_by_one(impl, path):
    steps = play(impl, path, STEPS).steps
    seen = {text: disk for text, disk, _ in steps}
    assert seen.get("二") == ["user", "assistant", "tool c1"], (
        f"when the second tool begins, the log holds {seen.get('二')}, and not the call and "
        "the first result only: results that are stored when the batch is over are lost together")
    requests = [disk for text, disk, _ in steps if text == "request"]
    assert requests[1:] == [
        ["user", "assistant", "tool c1", "tool c2"],
        ["user", "assistant", "tool c1", "tool c2", "assistant", "tool c3"],
    ], "each result must be on disk before the request that sends it"


def check_turn_ends_with_last_words(impl, path):
    seen = play(impl, path, STEPS)
    assert calls_in(seen) == ["一", "二", "三"], f"asked for 一 二 三, but there ran {calls_in(seen)}"
    expect_last_words(seen)
    assert "".join(seen.shown).count(DONE) == 1, "the last words are shown once"
    assert on_disk(path)[-1:] == ["assistant"], "the last words are part of the session"


FAILURES = {  # what goes wrong: (tool, arguments, words that the result must hold)
    "the tool is unknown": ("删除", {}, "删除"),
    "the arguments are no JSON": ("note", '{"text": "坏', ""),
    "the arguments are a list": ("note", '["坏"]', ""),
    "an argument is missing": ("note", {}, "text"),
    "an argument is unknown": ("note", {"text": "坏", "volume": 11}, "volume"),
    "an argument has a name of the harness's own": (
        "note", dict.fromkeys(("text", "session", "function", "tool", "call", "self"), "坏"), ""),
    "the tool raises": ("crash", {}, "坏了 💥"),
    "the tool calls sys.exit": ("leave", {}, "走了"),
    "the tool returns None": ("nothing", {}, ""),
    "the tool returns half a character": ("half", {}, "半个字"),
    "the tool returns what cannot be a text": ("unspeakable", {}, "说不出"),
}


def check_each_call_has_one_result(impl, path):
    calls = [(f"c{number}", *call[:2]) for number, call in enumerate(FAILURES.values())]
    batch = ask(note("first", "前"), *calls, note("last", "后"))
    seen, error = try_to_play(impl, path, [batch, say(DONE)])
    results = results_in(path)
    assert error is None, (
        f"where {[*FAILURES, 'all is well'][max(len(results) - 1, 0)]}, the model is to read it "
        f"in a result, but it ended the turn: {error!r}")
    assert [call_id for call_id, _ in results] == ["first", *(call[0] for call in calls), "last"], (
        f"each call has one result, in the order of the calls: {results}")
    assert all(isinstance(text, str) for _, text in results), f"a result is a text: {results}"
    sent = [message["content"] for message in seen.requests[-1] if message["role"] == "tool"]
    for (problem, (*_, words)), text in zip(FAILURES.items(), sent[1:]):
        assert text.strip() and words in text, (
            f"where {problem}, the model must read it in words, and it reads {text!r}")
    assert calls_in(seen) == ["前", "后"], f"only the good calls run: {calls_in(seen)}"
    refused = [judge(request) for request in seen.requests]
    assert refused == [[], []], f"a strict provider is asked twice, and says {refused}"


def check_cut_off_call_is_not_run(impl, path):
    # The arguments are good JSON, so nothing but finish_reason shows that they may be half.
    replies = [ask(note("c1", "rm -r 临时"), finish_reason="length"), say(DONE)]
    seen = play(impl, path, replies)
    assert calls_in(seen) == [], "a call of a reply that was cut off may be half: do not run it"
    text = dict(results_in(path)).get("c1", "")
    assert "length" in text or "cut" in text, f"its result must say why it was not run: {text!r}"
    expect_last_words(seen)


def check_refused_call_is_not_run(impl, path):
    asked = []

    def approve(name, arguments):
        asked.append((name, arguments))
        return "不行 🙅" if arguments == {"text": "一"} else None

    replies = [ask(note("c1", "一"), note("c2", "二"), ("c3", "look", {})), say(DONE)]
    seen = play(impl, path, replies, approve=approve)
    assert asked == [("note", {"text": "一"}), ("note", {"text": "二"})], (
        f"asked for {asked}: each call is asked for once, and what only reads is not asked for")
    assert calls_in(seen) == ["二", "look"], f"refused was 一, but there ran {calls_in(seen)}"
    results = results_in(path)
    assert len(results) == 3 and "不行 🙅" in results[0][1], (
        f"the model must read that the call was refused, and why: {results}")


def check_failed_model_stores_nothing(impl, path):
    for failing, stored in enumerate((["user"], ["user", "assistant", "tool c1", "tool c2"])):
        log, failure = f"{path}.{failing}", ConnectionError("断线 📡")
        _, error = try_to_play(impl, log, [*STEPS[:failing], failure])
        assert "断线 📡" in str(error), f"the model failed, and run_turn says of it: {error!r}"
        assert on_disk(log) == stored, (
            f"a request that failed has said nothing, but the log holds {on_disk(log)}")
        again = play(impl, log, STEPS, prompt="继续 ▶")
        assert on_disk(log)[-1:] == ["assistant"], "the session must go on after a failed request"
        expect_last_words(again)
        assert not any(map(judge, again.requests)), [judge(each) for each in again.requests]


def check_blank_prompt_changes_nothing(impl, path):
    play(impl, path, [say(DONE)])
    for log in (path, f"{path}.new"):
        for blank in ("", " ", "\n\t\r\n", "\u3000"):
            seen = play(impl, log, [say(DONE)] * 2, prompt=blank)
            assert not seen.requests, f"the blank prompt {blank!r} was sent"
            after = Path(log).read_bytes() if os.path.isfile(log) else b""
            assert after == seen.before, f"the blank prompt {blank!r} changed the file"


def check_system_prompt_is_sent_not_stored(impl, path):
    seen = play(impl, path, STEPS)
    roles = [[message["role"] for message in request] for request in seen.requests]
    assert roles and all(each[0] == "system" and each.count("system") == 1 for each in roles), (
        f"each request begins with the one system prompt: {roles}")
    assert str(Path(path).parent) in seen.requests[0][0]["content"], "it names the workspace"
    assert "system" not in on_disk(path), (
        "a stored system prompt is an old one as soon as the program changes")
    names = [tool["function"]["name"] for tool in seen.offered if is_tool(tool)]
    assert names == list(make_table(impl, path, seen)), (
        f"each request offers the tools of the table, and it offers {names}")


def check_typed_lines_wait_for_results(impl, path):
    typed, taken = [["先停一下 ✋", " \t"], ["换个办法"]], []

    def listen():
        taken.extend(typed[0] if typed else [])
        return typed.pop(0) if typed else []

    replies = [STEPS[0], *[say(f"{DONE} {number}") for number in range(4)]]
    seen = play(impl, path, replies, listen=listen)
    disk = on_disk(path)
    first = (disk + ["assistant"]).index("assistant")
    assert disk[first + 1:first + 3] == ["tool c1", "tool c2"], (
        f"a typed line came between a call and its result, which every provider refuses: {disk}")
    assert "换个办法" in taken, "a line that is typed in the last step belongs to this turn too"
    users = [message["content"] for message in seen.requests[-1] if message["role"] == "user"]
    assert users == [PROMPT, "先停一下 ✋", "换个办法"], (
        f"each line that was typed is sent once, in order, and no blank one: {users}")
    assert disk.count("user") == 3, "a blank line is not stored"


def check_typed_lines_do_not_wait_for_last_words(impl, path):
    typed = ["先停一下 ✋"]

    def listen():
        return [typed.pop()] if typed else []

    requests = play(impl, path, [*STEPS, say(DONE)], listen=listen).requests
    sent = [any(message["content"] == "先停一下 ✋" for message in each) for each in requests[1:]]
    assert sent and all(sent), (
        "a line that was typed while the tools ran belongs in the next request: ask listen after "
        "every step, also when it had calls, or nobody can steer an agent that is at work")


def check_failed_write_stops_turn(impl, path):
    batch = ask(note("c1", "一"), ("c2", "block", {}), note("c3", "三"))
    seen, error = try_to_play(impl, path, [batch, say(DONE)])
    assert error, "a result could not be written, and the turn went on as if it were stored"
    assert calls_in(seen) == ["一"], "no tool may run once the log cannot be written"
    kept = on_disk(f"{path}.kept")
    assert kept == ["user", "assistant", "tool c1"], (
        f"the log broke in the second call, and holds {kept}, not the prompt, the reply and the "
        "first result: each is stored as soon as it is there")


def check_started_is_stored_before_effect(impl, path):
    steps = play(impl, path, STEPS).steps
    disk = {text: events for text, _, events in steps}
    for text, call_id in (("一", "c1"), ("二", "c2"), ("三", "c3")):
        assert disk[text][-1] == f"started {call_id}", (
            f"when the tool of {call_id} begins, the log ends in {disk[text][-1]}: without its "
            "`started` nobody can tell a call that ran from one that never began")


CHECKS = [
    check_prompt_is_stored_before_request, check_reply_is_stored_before_tools,
    check_results_are_stored_one_by_one, check_turn_ends_with_last_words,
    check_each_call_has_one_result, check_cut_off_call_is_not_run, check_refused_call_is_not_run,
    check_failed_model_stores_nothing, check_blank_prompt_changes_nothing,
    check_system_prompt_is_sent_not_stored, check_typed_lines_wait_for_results,
    check_typed_lines_do_not_wait_for_last_words, check_failed_write_stops_turn,
]
name_of = "{0.__name__}".format


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_loop(impl, check, tmp_path):
    check(impl, tmp_path / "s.jsonl")


def test_started(tmp_path):
    # The intent comes in milestone 5: a learner's first loop has none.
    check_started_is_stored_before_effect(tinyharness, tmp_path / "s.jsonl")


def test_run_call_answers_each_call_itself(tmp_path):
    seen = types.SimpleNamespace(steps=[])
    with tinyharness.Session(tmp_path / "s.jsonl") as session:
        table = make_table(tinyharness, session.path, seen)
        for problem, (name, arguments, words) in FAILURES.items():
            call = tinyharness.open_calls([ask(("c1", name, arguments))])[0]
            text = tinyharness.run_call(session, call, table, None)
            assert isinstance(text, str) and words in text, problem
    assert not calls_in(seen)


# ── Proofs: each check takes a small honest loop, and refuses the stub and each named mistake ─────

LOOP = '''
import json
import tinyharness

def run_turn(session, prompt, model, tools=None, approve=None, show=print, listen=list):
    if not prompt.strip():
        return ""
    more = session.add_prompts([prompt])
    while more:
        messages = tinyharness.repair(session.records, f"You work in {session.workspace}.")
        reply = model(messages, [tinyharness.describe_tool(tool) for tool in tools.values()])
        session.append({**reply, "role": "assistant"})
        calls = reply.get("tool_calls", [])
        for call in calls:
            result = run_one(session, call, reply, tools, approve)
            session.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        more = session.add_prompts(listen()) or calls
    show(reply["content"])
    return reply["content"]

def run_one(session, call, reply, tools, approve):
    name, said = call["function"]["name"], call["function"]["arguments"]
    if reply.get("finish_reason") == "length":
        return "not run: the reply was cut off at the length limit"
    if name not in tools:
        return "there is no tool " + name
    try:
        arguments, asks = json.loads(said), approve and not tools[name].read_only
        refusal = approve(name, arguments) if asks else None
        return f"refused: {refusal}" if refusal else str(tools[name](session, **arguments))
    except (Exception, SystemExit) as error:
        return f"error: {error!r}"
'''
CHAPTER = '''
import json

def run_turn(session, prompt, model, tools=None, approve=None, show=print, listen=list):
    messages = [{"role": "system", "content": "You are a coding agent in " + session.workspace}]
    messages.append({"role": "user", "content": prompt})
    while True:
        reply = model(messages, [])
        messages.append(reply)
        if not reply.get("tool_calls"):
            break
        for call in reply["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            output = tools[call["function"]["name"]](session, **arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    with open(session.path, "w", encoding="utf-8") as file:
        for message in messages:
            print(json.dumps(message, ensure_ascii=False), file=file)
    show(reply["content"])
    return reply["content"]
'''
STUB = "def run_turn(session, prompt, *others, **more):\n    raise NotImplementedError\n"
IDLE = "def run_turn(session, prompt, *others, **more):\n    return 'done'\n"
STORE_REPLY = '        session.append({**reply, "role": "assistant"})\n'
STORE_RESULT = ('            session.append({"role": "tool", "tool_call_id": call["id"], '
                '"content": result})\n')
LISTEN = "        more = session.add_prompts(listen()) or calls\n"
RUN = "            result = run_one(session, call, reply, tools, approve)\n"
WRONG = {  # the mistake: (the check that sees it, words of its message, old text, new text, ...)
    "the prompt is stored with the reply": (
        check_prompt_is_stored_before_request, "loses what the user typed",
        "    more = session.add_prompts([prompt])\n", "    more = True\n",
        STORE_REPLY, "        more is True and session.add_prompts([prompt])\n" + STORE_REPLY),
    "the reply is stored behind its tools": (
        check_reply_is_stored_before_tools, "an effect that nothing in the log explains",
        STORE_REPLY, "", LISTEN, STORE_REPLY + LISTEN),
    "the results are stored together": (
        check_results_are_stored_one_by_one, "lost together",
        "        for call in calls:\n", "        results = []\n        for call in calls:\n",
        STORE_RESULT, "            results.append(result)\n",
        LISTEN, "        for call, result in zip(calls, results):\n" + STORE_RESULT + LISTEN),
    "only the first call runs": (
        check_each_call_has_one_result, "each call has one result",
        "for call in calls:", "for call in calls[:1]:"),
    "the calls run in another order": (
        check_each_call_has_one_result, "in the order of the calls",
        "for call in calls:", "for call in calls[::-1]:"),
    "None is stored as a result": (
        check_each_call_has_one_result, "a result is a text",
        "str(tools[name](session, **arguments))",
        "(lambda done: done and str(done))(tools[name](session, **arguments))"),
    "a refusal is silent": (check_refused_call_is_not_run, "and why",
                            'f"refused: {refusal}" if', '"no" if'),
    "the failure is stored as words": (
        check_failed_model_stores_nothing, "run_turn says of it: None",
        "        reply = model(", "        try: reply = model(",
        STORE_REPLY, "        except OSError as error:\n            reply = "
        '{"content": str(error)}\n' + STORE_REPLY),
    "the system prompt is stored": (
        check_system_prompt_is_sent_not_stored, "an old one as soon as the program changes",
        "    more = session.add_prompts([prompt])\n",
        '    session.append({"role": "system", "content": f"You work in {session.workspace}."})\n'
        "    more = session.add_prompts([prompt])\n"),
    "typed lines are stored at once": (
        check_typed_lines_wait_for_results, "between a call and its result",
        RUN, RUN + "            session.add_prompts(listen())\n"),
    "typed lines are lost": (check_typed_lines_wait_for_results, "belongs to this turn too",
                             LISTEN, "        more = calls\n"),
    "typed lines wait for the last words": (
        check_typed_lines_do_not_wait_for_last_words, "ask listen after every step",
        LISTEN, "        more = calls or session.add_prompts(listen())\n"),
    "nothing is returned": (
        check_turn_ends_with_last_words, "run_turn returned None; it returns",
        '    return reply["content"]\n', ""),
    "a failed write is swallowed": (
        check_failed_write_stops_turn, "no tool may run", STORE_RESULT,
        "            try:\n    " + STORE_RESULT + "            except Exception: pass\n"),
}
TAKEN_OUT = {  # a protection of the script: (the check that sees it, words, old text, new text)
    "the blank prompt": (check_blank_prompt_changes_nothing, "changed the file",
                         "    if not prompt.strip():\n        return \"\"\n", "    words = ''\n"),
    "blank typed lines": (check_typed_lines_wait_for_results, "a blank line is not stored",
                          " if line.strip()], []", "], []"),
    "cut off calls": (check_cut_off_call_is_not_run, "may be half",
                      "    if call.cut_off:", "    if False:"),
    "unknown tools": (check_each_call_has_one_result, "unknown, the model is to read it",
                      "    if tool is None:", "    if False:"),
    "refusal": (check_refused_call_is_not_run, "each call is asked for once",
                "(refusal := approve(call.name, arguments))", "(refusal := None)"),
    "what only reads": (check_refused_call_is_not_run, "only reads is not asked for",
                        "approve and not tool.read_only and", "approve and"),
    "failing tools": (check_each_call_has_one_result, "the model is to read it",
                      "    except (Exception, SystemExit) as error:",
                      "    except SystemExit as error:"),
    "sys.exit": (check_each_call_has_one_result, "sys.exit, the model is to read it",
                 "    except (Exception, SystemExit) as error:", "    except Exception as error:"),
    "started": (check_started_is_stored_before_effect, "nobody can tell",
                "session.append(attempt(make_intent, call, tool, *change))",
                "attempt(make_intent, call, tool, *change)"),
    "the prompt in the log": (check_prompt_is_stored_before_request, "loses what the user typed",
                              'self.append({"role": "user", "content": line})',
                              'self.records.append({"role": "user", "content": line})'),
    "the reply in the log": (
        check_reply_is_stored_before_tools, "an effect that nothing in the log explains",
        'session.append({**reply, "role": "assistant", "tracked": True})',
        'session.records.append({**reply, "role": "assistant", "tracked": True})'),
    "each result in the log": (
        check_results_are_stored_one_by_one, "lost together",
        'session.append({"role": "tool", "tool_call_id": call.id, "content": result})\n ',
        'session.records.append({"role": "tool", "tool_call_id": call.id, "content": result})\n '),
}


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_honest_small_loop_passes(check, tmp_path):
    check(load(tmp_path, LOOP), tmp_path / "s.jsonl")


def expect_red(check, module, path, words=None):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=words and re.escape(words)):
        check(module, path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_stub_is_refused(check, tmp_path):
    with pytest.raises(NotImplementedError):
        check(load(tmp_path, STUB), tmp_path / "s.jsonl")


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_chapter_is_refused(check, tmp_path):
    # It is right about one thing: the model's last words end the turn.
    if check is not check_turn_ends_with_last_words:
        expect_red(check, load(tmp_path, CHAPTER), tmp_path / "s.jsonl")


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_idle_loop_is_refused(check, tmp_path):
    if check is not check_blank_prompt_changes_nothing:
        expect_red(check, load(tmp_path, IDLE), tmp_path / "s.jsonl")


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_loop_is_refused(mistake, tmp_path):
    check, words, *texts = WRONG[mistake]
    module = load(tmp_path, LOOP, *zip(texts[::2], texts[1::2]))
    expect_red(check, module, tmp_path / "s.jsonl", words)


@pytest.mark.parametrize("protection", TAKEN_OUT)
def test_script_needs(protection, tmp_path):
    check, words, *texts = TAKEN_OUT[protection]
    module = load(tmp_path, SOURCE, *zip(texts[::2], texts[1::2]))
    expect_red(check, module, tmp_path / "s.jsonl", words)

"""Claim: the strict server takes every good history and answers 400 to every bad one."""
import random
import time

import openai
import pytest
from strict_server import StrictServer, judge

TEXT = "修复完成 ✅ 👩‍🚀 done, 再见"
ARGUMENTS = '{"path": "修复 🐞.txt"}'
TOOL = {"type": "function", "function": {"name": "bash", "description": "Run a command.",
                                         "parameters": {"type": "object", "properties": {}}}}


def say(role="user", content="修复 🐞", **more):
    return {"role": role, "content": content, **more}


def call(call_id="a", name="bash", arguments=ARGUMENTS, **more):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def ask(*calls):
    return say("assistant", None, tool_calls=list(calls))


def answer(call_id="a", content="好"):
    return say("tool", content, tool_call_id=call_id)


GOOD = [say("system"), say(), ask(call("a"), call("b"), call("c")), answer("c"), answer("a"),
        answer("b"), say("assistant", TEXT), say(), ask(call("d")), answer("d")]
BAD = {  # kind: (words of the objection, history)
    "no messages": ("non-empty list", []),
    "no object": ("must be an object", [say(), "hello"]),
    "unknown role": ("role", [say("developer")]),
    "second system": ("system", [say("system"), say("system")]),
    "unknown key": ("unknown keys ['ts']", [say(ts=1)]),
    "blank user": ("non-blank", [say(content=" \n")]),
    "user content in blocks": ("non-blank", [say(content=[{"type": "text", "text": "hi"}])]),
    "empty tool content": ("non-blank", [ask(call()), answer(content="")]),
    "assistant content in blocks": ("string or null", [say("assistant", [])]),
    "empty assistant": ("must have content", [say("assistant", None)]),
    "empty tool_calls": ("non-empty list", [say("assistant", tool_calls=[])]),
    "tool_calls no list": ("non-empty list", [say("assistant", tool_calls=True)]),
    "extra key in a call": ("must be {id", [ask(call(index=0)), answer()]),
    "type of a call": ("must be {id", [ask(call(type="tool")), answer()]),
    "arguments as an object": ("must be {id", [ask(call(arguments={})), answer()]),
    "empty id": ("1 to 64", [ask(call("")), answer("")]),
    "long id": ("1 to 64", [ask(call("x" * 65)), answer("x" * 65)]),
    "bad name": ("name must", [ask(call(name="bash\n")), answer()]),
    "broken arguments": ("arguments", [ask(call(arguments='{"path": "修')), answer()]),
    "arguments null": ("arguments", [ask(call(arguments="null")), answer()]),
    "NaN in arguments": ("arguments", [ask(call(arguments='{"a": NaN, "a": 1}')), answer()]),
    "arguments too deep": ("arguments", [ask(call(arguments='{"a":' * 100_000)), answer()]),
    "surrogate in arguments": ("arguments", [ask(call(arguments='{"a": "\\ud83d"}')), answer()]),
    "surrogates, even in pairs": ("surrogate", [say(content="\ud83d\ude00")]),
    "NaN in a message": ("cannot be encoded", [say(content=float("nan"))]),
    "dangling at the end": ("none for 'b'", [ask(call("a"), call("b")), answer("a")]),
    "dangling in the middle": ("none for 'a'", [ask(call()), say(), say("assistant")]),
    "message before the result": ("answers no open", [ask(call()), say(), answer()]),
    "result twice": ("answers no open", [ask(call()), answer(), answer()]),
    "id again later": ("used before", [ask(call()), answer(), ask(call()), answer()]),
}


@pytest.mark.parametrize("kind", BAD)
def test_judge_objects_only_to_bad_histories(kind):
    words, history = BAD[kind]
    assert judge(GOOD) == [] and words in " | ".join(judge(history))


def test_judge_is_linear():
    seconds = {2_000: [], 20_000: []}
    for size in [*seconds] * 3:
        # Half of it is good turns, the other half one huge open batch and stray results.
        history = [message for number in range(size // 4)
                   for message in (ask(call(f"good{number}")), answer(f"good{number}"))]
        history += [ask(*[call(str(number)) for number in range(size // 2)])]
        history += [say("tool")] * (size - len(history))
        began = time.process_time()
        assert len(judge(history)) == size // 2
        seconds[size].append(time.process_time() - began)
    assert min(seconds[20_000]) / min(seconds[2_000]) <= 14


def test_judge_never_raises_on_junk():
    print("seed", seed := random.randrange(10**9))
    dice = random.Random(seed)
    keys = ["role", "content", "tool_calls", "tool_call_id", "id", "function", 7, None]
    words = [None, True, 10**5000, 1e999, "", TEXT, "\udc00", b"x", {1}, object(), "a", "tool", []]

    def make_junk(depth):
        if depth == 0 or dice.random() < 0.1:
            return dice.choice(words + GOOD + GOOD[2]["tool_calls"])
        inner = [make_junk(depth - 1) for _ in range(dice.randrange(4))]
        return dice.choice([inner, {dice.choice(keys): value for value in inner}])
    for _ in range(2000):
        message = {**dice.choice(GOOD), dice.choice(keys): make_junk(dice.randrange(5))}
        assert isinstance(judge(dice.choice([make_junk(5), [*GOOD[:8], message]])), list)


@pytest.mark.parametrize("streamed", [False, True])
def test_real_client_gets_text_and_calls_unharmed_and_400_for_a_dangling_call(streamed):
    reply = say("assistant", TEXT, tool_calls=[call("a"), call("b")])
    with StrictServer([reply]) as server, openai.OpenAI(base_url=server.url, api_key="x") as client:
        chat = client.chat.completions
        with pytest.raises(openai.BadRequestError, match="none for 'd'"):
            chat.create(model="m", messages=GOOD[:-1], stream=streamed)
        if streamed:
            with chat.stream(model="m", messages=GOOD) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = chat.create(model="m", messages=GOOD, tools=[TOOL]).choices[0].message
    assert message.content == TEXT
    assert [(one.id, one.function.arguments) for one in message.tool_calls] == [
        ("a", ARGUMENTS), ("b", ARGUMENTS)]
    assert [index for index, _ in server.refusals] == [0] and server.requests[1]["messages"] == GOOD

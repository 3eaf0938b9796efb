"""m04_repair: the solution, and answers that are wrong in a way that has a name."""

from pathlib import Path

CHECKS = {"repair": (  # the core; the whole file is the challenge that the notebook names
    "tests/test_m04_repair.py",
    "call_without_result or message_between or result_twice or result_without_a_call or synthetic "
    "or empty_message or check_words")}

REPAIR = '''
import tinyharness

UNKNOWN = "outcome unknown: it may have run fully, partly or not at all; look before you repeat it"


def make_call(call_id, function):
    """A call as a provider wants it (ready, nothing to do here)."""
    arguments = tinyharness.arguments_text(function.get("arguments"))
    function = {"name": function.get("name"), "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def repair(records, prompt=""):
    """Turn records into messages that can be sent: one result for each call, behind its batch."""
    messages, answers = [], {}
    for record in records:
        if "role" in record:  # what has no role is an event, and no message
            text, calls, results = tinyharness.read_message(record)
            for call_id, result in results:
                find = answers.get if "verdict" in record else answers.pop
                answer = find(call_id, {})
                answer["content"] = result
            if record["role"] != "tool" and (text.strip() or calls):
                message = {"role": record["role"], "content": text or None}
                if calls:
                    message["tool_calls"] = [make_call(*call) for call in calls]
                messages.append(message)
            for call_id, _ in calls:
                answers[call_id] = {"role": "tool", "tool_call_id": call_id, "content": UNKNOWN}
                messages.append(answers[call_id])
    return messages
'''
LAST_MESSAGE = '''
import tinyharness

def repair(records, prompt=""):
    keys = ("role", "content", "tool_calls", "tool_call_id")
    messages = [{key: each[key] for key in keys if key in each} for each in records if "role" in each]
    calls = messages[-1].get("tool_calls", []) if messages else []
    return messages + [{"role": "tool", "tool_call_id": call["id"], "content": "outcome unknown"}
                       for call in calls]
'''


def change(*pairs):
    """The solution with some of its lines replaced; each old text must be there once."""
    source = REPAIR
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


FIND = '                find = answers.get if "verdict" in record else answers.pop\n'
FILL = '                answer["content"] = result\n'
WORDS = "outcome unknown: it may have run fully, partly or not at all; look before you repeat it"
PLACE = '''                answers[call_id] = {"role": "tool", "tool_call_id": call_id, "content": UNKNOWN}
                messages.append(answers[call_id])
'''
TEST_FOR_TEXT = " and (text.strip() or calls)"

SOLUTION = {"repair": REPAIR}
WRONG = {"repair": {  # the mistake: (the cell, words that the check must say)
    "the chapter's own, in its content blocks": (
        (Path(__file__).parent.parent / "chapter.py").read_text(encoding="utf-8"),
        "to look at the last message only is not enough"),
    "the chapter's idea for our records": (
        LAST_MESSAGE, "to look at the last message only is not enough"),
    "not executed": (
        change((WORDS, "outcome unknown; the call was not executed")),
        "'not executed' claims more than the log knows"),
    "cancelled": (
        change((WORDS, "outcome unknown; the call was cancelled")),
        "'cancel' claims more than the log knows"),
    "an empty success is made up": (
        change((WORDS, "ok")), "UNK: a text that says that the outcome is unknown"),
    "a dangling call is left out": (
        change(("    return messages\n", '''    lost = [each["tool_call_id"] for each in messages if each["content"] == UNKNOWN]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [each for each in message["tool_calls"] if each["id"] not in lost]
    return [each for each in messages if each["content"] != UNKNOWN and each.get("tool_calls") != []]
''')), "each call needs a result behind its batch"),
    "made-up results stand at the end": (
        change(("    return messages\n",
                '    return sorted(messages, key=lambda each: each["content"] == UNKNOWN)\n')),
        "each call needs a result behind its batch"),
    "results pair by place, not by id": (
        change(("                answer = find(call_id, {})\n",
                "                answer = find(next(iter(answers), None), {})\n")),
        "a result stands at the call of another one"),
    "results stay where they stand in the log": (
        change((FIND, ""), ("find(call_id, {})\n", "answers.pop(call_id, None)\n"),
               (FILL, '                if answer in messages:\n                    messages.remove(answer)\n'
                      '                    messages.append({**answer, "content": result})\n')),
        "a result moves up to its call"),
    "the last result counts": (
        change((FIND, "                find = answers.get\n")), "the first real result stands"),
    "a synthetic result counts as real": (
        change((FIND, "                find = answers.pop\n")), "a real result beats a synthetic one"),
    "synthetic is what has the words": (
        change(('"verdict" in record', '"outcome unknown" in result')),
        "a tool may print these very words: only the field makes a result synthetic"),
    "results without a call are sent": (
        change(('                answer = find(call_id, {})\n',
                '                answer = find(call_id, None)\n'
                '                if answer is None:\n'
                '                    answer = {"role": "tool", "tool_call_id": call_id}\n'
                '                    messages.append(answer)\n')),
        "a result that no call asked for is not sent"),
    "blank text is taken for text": (
        change(("(text.strip() or calls)", "(text or calls)")), "an empty message is dropped"),
    "a made-up result does not say that the outcome is unknown": (
        change((WORDS, "I do not know whether this ran. Check before you repeat it.")),
        "the text must say so"),
    "messages of results only are sent empty": (
        change((TEST_FOR_TEXT, "")), "content of a user message must be a non-blank string"),
}}

"""m01_loop: the solution, and answers that are wrong in a way that has a name."""

CHECKS = {"run_turn": ("tests/test_m01_loop.py", "test_loop")}

LOOP = '''
import tinyharness

def run_turn(session, prompt, model, tools=None, approve=None, show=print, listen=list):
    if not prompt.strip():
        return ""
    more = session.add_prompts([prompt])
    while more:
        messages = tinyharness.repair(session.records, f"You work in {session.workspace}.")
        reply = model(messages, [tinyharness.describe_tool(tool) for tool in tools.values()])
        session.append({**reply, "role": "assistant"})
        calls = tinyharness.open_calls(session.records[-1:])
        for call in calls:
            result = tinyharness.run_call(session, call, tools, approve)
            session.append({"role": "tool", "tool_call_id": call.id, "content": result})
        more = session.add_prompts(listen()) or calls
    show(reply["content"])
    return reply["content"]
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


def change(*pairs):
    """The solution with some of its lines replaced; each old text must be there once."""
    source = LOOP
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


STORE_REPLY = '        session.append({**reply, "role": "assistant"})\n'
READ_CALLS = "        calls = tinyharness.open_calls(session.records[-1:])\n"
RUN = "            result = tinyharness.run_call(session, call, tools, approve)\n"
STORE_RESULT = ('            session.append({"role": "tool", "tool_call_id": call.id, '
                '"content": result})\n')
LISTEN = "        more = session.add_prompts(listen()) or calls\n"

SOLUTION = {"run_turn": LOOP}
WRONG = {"run_turn": {  # the mistake: (the cell, words that the check must say)
    "the chapter's own: saved when the run is over": (CHAPTER, "loses what the user typed"),
    "the reply is stored behind its tools": (
        change((STORE_REPLY, ""),
               (READ_CALLS, '        calls = tinyharness.open_calls([{**reply, "role": "assistant"}])\n'),
               (LISTEN, STORE_REPLY + LISTEN)),
        "an effect that nothing in the log explains"),
    "the results are stored together": (
        change(("        for call in calls:\n", "        results = []\n        for call in calls:\n"),
               (STORE_RESULT, "            results.append(result)\n"),
               (LISTEN, "        for call, result in zip(calls, results):\n" + STORE_RESULT + LISTEN)),
        "lost together"),
    "only the first call runs": (
        change(("for call in calls:", "for call in calls[:1]:")), "each call has one result"),
    "it asks once and stops after the tools": (
        change((LISTEN, "        more = session.add_prompts(listen())\n"),
               ('    show(reply["content"])\n    return reply["content"]\n',
                '    show(reply["content"] or "")\n    return reply["content"] or ""\n')),
        "asked for 一 二 三, but there ran"),
    "typed lines are stored at once": (
        change((RUN, RUN + "            session.add_prompts(listen())\n")),
        "between a call and its result"),
    "typed lines wait for the last words": (
        change((LISTEN, "        more = calls or session.add_prompts(listen())\n")),
        "ask listen after every step"),
    "nothing is returned": (
        change(('    return reply["content"]\n', "")), "run_turn returned None; it returns"),
    "the system prompt is stored": (
        change(("    more = session.add_prompts([prompt])\n",
                '    session.append({"role": "system", "content": f"In {session.workspace}."})\n'
                "    more = session.add_prompts([prompt])\n")),
        "an old one as soon as the program changes"),
}}

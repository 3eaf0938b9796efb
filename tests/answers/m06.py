"""m06_control: the solutions, and answers that are wrong in a way that has a name."""

TESTS = "tests/test_notebooks_m06.py"
CHECKS = {"control_turn": (TESTS, "test_control_turn"), "run_batch": (TESTS, "test_run_batch")}

CONTROL = '''
import contextlib

import tinyharness


@contextlib.contextmanager
def control_turn(session):
    if session.in_turn:
        raise RuntimeError("a turn is running: steer(text) adds to it, abort() ends it")
    session.in_turn, state = True, "error"
    try:
        tinyharness.settle_calls(session)
        yield
        state = "done"
    except KeyboardInterrupt:
        state = "aborted"
        session.records = tinyharness.read_jsonl(session.path)
        tinyharness.settle_calls(session, "interrupted by the user while it ran")
        session.add_prompts([])
        raise
    finally:
        session.in_turn = False
        session.append({"event": "turn", "state": state})
'''
CHAPTER_CONTROL = '''
import contextlib

LOST = "结果未知：上次运行在此中断"


@contextlib.contextmanager
def control_turn(session):
    if session.in_turn:
        raise RuntimeError("a turn is running: steer or abort")
    session.in_turn, state = True, "done"
    try:
        yield
    except KeyboardInterrupt:
        state = "aborted"
        last = session.records[-1]
        for call in last.get("tool_calls") or []:
            session.append({"role": "tool", "tool_call_id": call["id"], "content": LOST})
        raise
    finally:
        session.in_turn = False
        session.append({"event": "turn", "state": state})
'''
BATCH = '''
def run_batch(session, calls, run, listen):
    for call in calls:
        session.append({"role": "tool", "tool_call_id": call.id, "content": run(call)})
    typed = session.add_prompts(listen())
    return typed or bool(calls)
'''


def change(source, *pairs):
    """A solution with some of its lines replaced; each old text must be there once."""
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


SETTLE_FIRST = "    try:\n        tinyharness.settle_calls(session)\n"
SETTLE = '        tinyharness.settle_calls(session, "interrupted by the user while it ran")\n'
READ = "        session.records = tinyharness.read_jsonl(session.path)\n"
FREE = "        session.in_turn = False\n"
ENDING = '        session.append({"event": "turn", "state": state})\n'
STORE = '        session.append({"role": "tool", "tool_call_id": call.id, "content": run(call)})\n'
LISTEN = "    typed = session.add_prompts(listen())\n"
SAME_WORDS = '''        for call in tinyharness.open_calls(session.records):
            text = "cancelled by the user"
            session.append({"role": "tool", "tool_call_id": call.id, "content": text, "verdict": text})
'''
ALL_CALLS = '''        for call in [each for every in session.records for each in every.get("tool_calls") or []]:
            text = "outcome unknown"
            session.append({"role": "tool", "tool_call_id": call["id"], "content": text, "verdict": text})
'''
ROLL_BACK = '''        lines = open(session.path, "rb").read().splitlines(keepends=True)
        keep = max(number for number, line in enumerate(lines) if b'"role": "user"' in line)
        session.file.truncate(sum(map(len, lines[:keep])))
        session.records = tinyharness.read_jsonl(session.path)
'''

SOLUTION = {"control_turn": CONTROL, "run_batch": BATCH}
WRONG = {"control_turn": {  # the mistake: (the cell, words that the check must say)
    "the chapter's own: it looks at the last message only": (
        CHAPTER_CONTROL, "the last message is not the batch"),
    "the interrupt is caught, and nothing is written": (
        change(CONTROL, (READ + SETTLE, ""), ("        raise\n", "")), "2 of 3 calls have no result after Ctrl-C"),
    "except Exception: an interrupt is none": (
        change(CONTROL, ("except KeyboardInterrupt:", "except Exception:")),
        "KeyboardInterrupt, which is no Exception"),
    "everything open is called cancelled": (
        change(CONTROL, (SETTLE, SAME_WORDS)), "the log cannot know that it is 'cancel'"),
    "a verdict on each call of the log, answered or not": (
        change(CONTROL, (SETTLE, ALL_CALLS)), "a call that has its result is not open"),
    "it rolls the turn back": (
        change(CONTROL, (READ + SETTLE, ROLL_BACK)), "the log was rewritten"),
    "the interrupt is swallowed": (
        change(CONTROL, ("        raise\n", "")), "the interrupt was swallowed"),
    "it trusts its memory, and not the file": (
        change(CONTROL, (READ, "")), "only the file is right"),
    "it always says done": (
        change(CONTROL, ('"state": state}', '"state": "done"}')), "the last record says 'done'"),
    "the last line is only written when all went well": (
        change(CONTROL, (ENDING, ""),
               ('        state = "done"\n', '        session.append({"event": "turn", "state": "done"})\n')),
        "after Ctrl-C: the last record is no turn event"),
    "each error is an abort": (
        change(CONTROL, ('state = True, "error"', 'state = True, "aborted"')),
        "the last record says 'aborted', and it was 'error'"),
    "after Ctrl-C it speaks of a crash": (
        change(CONTROL, (SETTLE, "        tinyharness.settle_calls(session)\n")), "but it was the user"),
    "after a crash it speaks of the user": (
        change(CONTROL, (SETTLE_FIRST, "    try:\n" + SETTLE)), "its verdict says that it was the user"),
    "the open calls are settled before the try": (
        change(CONTROL, (SETTLE_FIRST, "    tinyharness.settle_calls(session)\n    try:\n")),
        "the disk refused a verdict at the beginning"),
    "the last line comes before in_turn": (
        change(CONTROL, (FREE, ""), (ENDING, ENDING + FREE)), "the disk refused the last record"),
    "in_turn stays set": (change(CONTROL, (FREE, "")), "each later turn is refused"),
    "a second turn is let in": (
        change(CONTROL, ("    if session.in_turn:\n", "    if False:\n")), "a second turn began inside"),
    "the open calls of a crash are forgotten": (
        change(CONTROL, (SETTLE_FIRST, "    try:\n")), "that a crash left open has no verdict"),
    "what was typed is lost": (
        change(CONTROL, ("        session.add_prompts([])\n", "")), "what was typed before Ctrl-C is lost"),
    "what was typed is stored before the verdicts": (
        change(CONTROL, ("        session.add_prompts([])\n", ""),
               (SETTLE, "        session.add_prompts([])\n" + SETTLE)), "stands before the verdict"),
}, "run_batch": {
    "the chapter's own: the results are stored when all have run": (
        change(BATCH, ("    for call in calls:\n" + STORE,
                       "    results = [run(call) for call in calls]\n"
                       "    for call, result in zip(calls, results):\n"
                       + STORE.replace("run(call)", "result"))),
        "the result of a call that was done is lost"),
    "a typed line is stored at once": (
        change(BATCH, (STORE, STORE + "        session.add_prompts(listen())\n")),
        "between a call and its result"),
    "it listens before the batch": (
        change(BATCH, (LISTEN, ""), ("    for call in calls:\n", LISTEN + "    for call in calls:\n")),
        "asked before it could read what was typed"),
    "a typed line ends the batch": (
        change(BATCH, (STORE, STORE + "        if session.inbox:\n            break\n")),
        "a call has no result"),
    "a typed line is written into the result": (
        change(BATCH, ('"content": run(call)}', '"content": "\\n".join([run(call), *listen()])}')),
        "the model takes it for the tool's words"),
    "lines wait in a variable until the batch is done": (
        change(BATCH, ("    for call in calls:\n", "    lines = []\n    for call in calls:\n"),
               (STORE, STORE + "        lines += listen()\n"), ("listen())\n", "lines + listen())\n")),
        "a typed line is lost"),
    "what was steered is forgotten": (
        change(BATCH, (LISTEN, '    typed = [session.append({"role": "user", "content": line}) '
                               "for line in listen()]\n"), ("typed or", "bool(typed) or")),
        "what was steered with session.steer is lost"),
    "a line after the last words is not answered": (
        change(BATCH, ("typed or bool(calls)", "bool(calls)")), "is not answered: the turn ended"),
    "only a typed line goes on": (
        change(BATCH, ("typed or bool(calls)", "typed")), "the model never read its results"),
}}

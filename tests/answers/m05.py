"""m05_intent: the solutions, and answers that are wrong in a way that has a name."""

CHECKS = {
    "hash_file": ("tests/test_notebooks_m05.py", "probe"),
    "judge_call": ("tests/test_notebooks_m05.py", "verdict"),
}

PROBE = '''
import hashlib
import pathlib

def hash_file(path):
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return "no file"
'''
VERDICT = '''
from tinyharness import APPLIED, DIFFERS, INTERRUPTED, NOT_APPLIED, NOT_STARTED, UNKNOWN

def judge_call(call, probe=None):
    started = call.started
    if not started:
        return NOT_STARTED if call.tracked else UNKNOWN
    if started.get("read_only"):
        return INTERRUPTED
    if "before" not in started or probe is None:
        return UNKNOWN
    seen = probe(started["path"])
    if seen == started["after"]:
        return APPLIED
    return NOT_APPLIED if seen == started["before"] else DIFFERS
'''


def change(old, new):
    """The verdict with one of its lines replaced."""
    assert VERDICT.count(old) == 1, old
    return VERDICT.replace(old, new)


def probe(body):
    """A probe whose body is this."""
    return f"import hashlib, os, pathlib\n\ndef hash_file(path):\n    {body}\n"


BYTES = 'hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()'
EXISTS = 'if os.path.exists(path) else "no file"'

SOLUTION = {"hash_file": PROBE, "judge_call": VERDICT}
WRONG = {
    "hash_file": {  # the mistake: (the cell, words that the check must say)
        "the chapter's question to its session file: does it exist?": (
            probe("return str(os.path.exists(path))"), "no difference between an empty file and the old text"),
        "the size": (probe(f"return str(os.path.getsize(path)) {EXISTS}"),
                     "no difference between the old text and another text, same size"),
        "the time": (probe(f"return str(os.path.getmtime(path)) {EXISTS}"),
                     "no difference between an empty file and the old text"),
        "the text, in text mode": (
            probe(f'return hashlib.sha256(open(path, errors="replace").read().encode()).hexdigest() {EXISTS}'),
            "no difference between two lines and two lines of Windows"),
        "no file is an error": (probe(f"return {BYTES}"), "a missing file is a state too"),
        "no file is an empty file": (
            probe(f'return {BYTES} if os.path.exists(path) else hashlib.sha256(b"").hexdigest()'),
            "no difference between no file and an empty file"),
        "it makes the file": (
            probe("pathlib.Path(path).touch(); " + f"return {BYTES}"), "this one made the file"),
        "Python's own hash": (
            probe(f"return str(hash(pathlib.Path(path).read_bytes())) {EXISTS}"),
            "a later process must see the very same"),
    },
    "judge_call": {
        "not executed, for everything": (
            'def judge_call(call, probe=None):\n    return "not executed: the run was interrupted"\n',
            "no result does not say that it did not run"),
        "the chapter's words: unknown, for everything": (
            "import tinyharness\n\ndef judge_call(call, probe=None):\n    return tinyharness.UNKNOWN  # 结果未知\n",
            "it certainly never ran"),
        "not started, for everything": (
            "import tinyharness\n\ndef judge_call(call, probe=None):\n    return tinyharness.NOT_STARTED\n",
            "paid twice"),
        "no `started`, so not started, in any log": (
            change("NOT_STARTED if call.tracked else UNKNOWN", "NOT_STARTED"), "proves nothing by its absence"),
        "started means done": (
            change('    if "before" not in started or probe is None:\n        return UNKNOWN\n',
                   '    if "before" not in started or probe is None:\n        return APPLIED\n'),
            "only says that it began"),
        "the file exists, so it was written": (
            change("    if seen == started[\"after\"]:\n", '    if seen != "no file":\n'), "that it exists"),
        "yes or no, and nothing between": (
            change('NOT_APPLIED if seen == started["before"] else DIFFERS', "NOT_APPLIED"),
            "neither as before nor as asked for"),
        "as before, so it was not written": (
            change('    if seen == started["after"]:\n        return APPLIED\n',
                   '    if seen == started["before"]:\n        return NOT_APPLIED\n'
                   '    if seen == started["after"]:\n        return APPLIED\n'),
            "what was asked for is there"),
        "it never looks": (
            change('    if "before" not in started or probe is None:\n', '    if True:\n'),
            "the file holds the bytes that were asked for: it is done"),
        "a tool that reads is unknown too": (
            change('    if started.get("read_only"):\n        return INTERRUPTED\n', ""),
            "a tool that only reads can be called again"),
        "yes, no or None": (
            "def judge_call(call, probe=None):\n    return None if call.started else False\n",
            "a verdict is a text for the model"),
    },
}

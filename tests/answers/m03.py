"""m03_log: the solutions, and answers that are wrong in a way that has a name."""

READ = "check_damaged_lines or check_torn_line_costs_only_itself or check_reading_changes_nothing"
HARDER = "check_nothing_inside_is_a_record or check_random_damage or check_reading_is_linear"
CHECKS = {"append_jsonl": ("tests/test_m03_log.py", f"not ({READ} or {HARDER})"),
          "read_jsonl": ("tests/test_m03_log.py", READ)}

APPEND = '''
import os
import tinyharness

def append_jsonl(path, record):
    """Add a record as one line of JSON; when this returns, it is on disk."""
    data = tinyharness.encode_record(record)  # bytes, with a newline at the end
    with tinyharness.open_log(path) as file:  # made if it is new; each write goes to its end
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\\n":
                data = b"\\n" + data
        while data:
            data = data[file.write(data):]
        os.fsync(file.fileno())
    if not size:
        tinyharness.sync_folders(path)
'''
READER = '''
import json
import os
import re
from tinyharness import is_record  # says whether a value is a message or an event

decode = json.JSONDecoder().raw_decode  # (text, place) -> value, the place behind it
GAP = re.compile(r"[\\s\\0\\ufeff,]*")  # what may stand between two records
RECORD = re.compile(r'\\{"(role|event)"')  # how a record of ours begins

def read_jsonl(path):
    """All whole records of a log, in order; [] without a file."""
    records = []
    for line in open(path, "rb") if os.path.exists(path) else []:
        text = line.decode("utf-8", "replace")
        place = GAP.match(text).end()
        while place < len(text):
            try:
                value, place = decode(text, place)
                records += [value] if is_record(value) else []
            except (ValueError, RecursionError):
                found = RECORD.search(text, place + 1)
                place = found.start() if found else len(text)
            place = GAP.match(text, place).end()
    return records
'''
CHAPTER_APPEND = '''
import json

def append_jsonl(path, record):
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\\n")
'''
CHAPTER_READ = '''
import json

def read_jsonl(path):
    with open(path) as file:
        return [json.loads(line) for line in file]
'''


def change(source, *pairs):
    """A solution with some of its text replaced; each old text must be there once."""
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def reader(body):
    """A reader that does something else, with the head of the exercise."""
    head, _, _ = READER.partition("    records = []")
    return head + body.strip("\n") + "\n"


CLOSE = '''            if file.read(1) != b"\\n":
                data = b"\\n" + data
'''
WRITE = '''        while data:
            data = data[file.write(data):]
'''
SYNC = "        os.fsync(file.fileno())\n"
SYNC_NAME = '''    if not size:
        tinyharness.sync_folders(path)
'''

SOLUTION = {"append_jsonl": APPEND, "read_jsonl": READER}
WRONG = {  # the mistake: (the cell, words that the check must say)
    "append_jsonl": {
        "the chapter's: open, write, close": (CHAPTER_APPEND, "the torn line swallowed the new record"),
        "a torn line is not closed": (change(APPEND, (CLOSE, "")), "the torn line swallowed the new record"),
        "written is taken for on disk": (
            change(APPEND, (SYNC, "        file.flush()\n")), "gone after a power loss"),
        "the torn line is cut off": (
            change(APPEND, (CLOSE, '''            if file.read(1) != b"\\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\\n") + 1)
''')), "a log is only ever appended to"),
        "the missing newline in a write of its own": (
            change(APPEND, (CLOSE, '''            if file.read(1) != b"\\n":
                file.write(b"\\n")
''')), "one write, then one sync for each record"),
        "write is believed to take all": (
            change(APPEND, (WRITE, "        file.write(data)\n")), "write() may take only a part, so go on"),
        "the name of a new file is not synced": (
            change(APPEND, (SYNC_NAME, "")), "a new file is lost in a power loss"),
        "the whole file is written anew": ('''
import os
import tinyharness

def append_jsonl(path, record):
    old = b""
    if os.path.exists(path):
        old = open(path, "rb").read()
    if old and not old.endswith(b"\\n"):
        old += b"\\n"
    with tinyharness.open_log(str(path) + ".new") as file:
        file.write(old + tinyharness.encode_record(record))
        os.fsync(file.fileno())
    os.replace(str(path) + ".new", path)
    tinyharness.sync_folders(path)
''', "the file was replaced"),
        "errors are swallowed": (
            APPEND.replace("\n    ", "\n        ").replace(
                '        """Add', '    """Add').replace("        data = tinyharness", "    try:\n        data = tinyharness")
            + "    except OSError:\n        print('could not save')\n", "must raise OSError"),
    },
    "read_jsonl": {
        "the chapter's: every line is whole": (CHAPTER_READ, "reading must not raise JSONDecodeError"),
        "only the last line can be damaged": (reader('''
    lines, records = open(path, "rb").read().split(b"\\n"), []
    while lines:
        line = lines.pop(0)
        try:
            records += [json.loads(line)] if line.strip() else []
        except ValueError:
            if lines:
                raise
    return records
'''), "a block of NUL as a line: reading must not raise"),
        "it ends at the first bad line": (reader('''
    records = []
    for line in open(path, "rb") if os.path.exists(path) else []:
        try:
            records += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError):
            break
    return records
'''), "a block of NUL as a line: 2 records are whole, 1 came back"),
        "a bad line is skipped with all that is on it": (
            change(READER, ("RECORD.search(text, place + 1)", "None")),
            "a torn record swallowed its neighbour"),
        "the whole file is decoded at once": (
            change(READER, ('open(path, "rb")', 'open(path, "rb").read().decode().split("\\n")'),
                   ('line.decode("utf-8", "replace")', "line")),
            "a torn tail: reading must not raise UnicodeDecodeError"),
        "splitlines": (
            change(READER, ('open(path, "rb")', 'open(path, encoding="utf-8", errors="replace").read().splitlines()'),
                   ('line.decode("utf-8", "replace")', "line")),
            "U+2028, U+2029 and U+0085 in a text: 2 records are whole"),
        "every JSON value is a record": (
            change(READER, ("[value] if is_record(value) else []", "[value]")),
            "values that are no object: a record is an object"),
        "too deep brackets are forgotten": (
            change(READER, ("(ValueError, RecursionError)", "ValueError")),
            "reading must not raise RecursionError"),
        "the file is mended while it is read": (
            change(READER, ("    return records\n", '''    if os.path.exists(path):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\\n" for record in records)
    return records
''')), "reading changed the file"),
    },
}

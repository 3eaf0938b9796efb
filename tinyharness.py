#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["openai>=3.16"]
# ///
"""tinyharness: an agent that cannot lose your session, in one file made for reading.

    python tinyharness.py [PROMPT]    take one turn; without PROMPT ask for prompts, or read one
      --resume SESSION                go on with a path, an id, the beginning of one, or `last`
      --list [TEXT]                   the sessions, newest first; those whose row holds TEXT
      --search WORDS                  find what was said in other sessions (at the prompt: /search)
      --show SESSION                  the timeline: a line for each record
      --check SESSION                 what is in the file, and is it sound: exit code 0, or 1
      --fork SESSION[:LINE]           a new session from the records of another one
      --salvage SESSION               the same, for a damaged one
      --demo                          kill a real agent in the middle of a tool, and resume it
      --rehearse                      play a script, as without OPENAI_API_KEY or OPENAI_BASE_URL
      --model NAME                    ask this model; default as in the session, or OPENAI_MODEL
      --yes                           allow every call of a tool without asking
      --workspace DIR                 where the tools work; default here, or as in the session
      --sessions DIR                  where sessions are kept; default .tinyharness/sessions
      --canary NAME                   mark a session in which a changed harness is tried out
      --help, --version

A session is one append-only JSONL file. Everything else is a fold of its records:

    {"event": "session", "id": ..., "cwd": ..., "model": ...}         events: what happened
    {"role": "assistant", "tool_calls": [{"id": "c1", ...}]}          messages: what was said
    {"event": "started", "tool_call_id": "c1", "tool": "bash"}        on disk before the effect
    {"role": "tool", "tool_call_id": "c1", "content": "..."}          on disk before the next step

In reading order: 1 loop, 2 tools, 3 log, 4 repair, 5 intent, 6 control, 7 resume, 8 lifecycle,
11 search and replay, models, main. §1 to §7 are milestones with a notebook; 9 and 10 come later.

What it does not do: no sandbox (bash can do what you can do), no images, no parallel tools,
no lock on Windows, no rollback of files.
"""

import sys
if __name__ == "__main__" and {"-h", "--help"} & set(sys.argv[1:]):
    sys.exit(print(__doc__, end=""))  # exit code 0, before the imports: they take longest

import argparse, concurrent.futures, contextlib, errno, functools, gc, hashlib, inspect, itertools
import json, os, pathlib, random, re, select, shlex, signal, subprocess, threading, time
fcntl = None
with contextlib.suppress(ImportError):  # Windows has no lock of this kind
    import fcntl

HEAD_BYTES, TAIL_BYTES, END_BYTES = 10_000, 20_000, 2_000  # kept of each end; seen of it in a list
FOUND_ROWS, DAMAGES, FILE_BYTES, BASH_SECONDS = 150, 100, 50_000_000, 600  # the most there may be
DEFAULT_MODEL = "gpt-5-mini"
HERE = pathlib.Path(__file__).resolve()
BUILD = hashlib.sha256(HERE.read_bytes()).hexdigest()[:8]  # of this script
WORDS = "otter heron badger lynx marten falcon hedgehog beaver plover raven salmon weasel".split()
SYSTEM_PROMPT = """You are a careful coding agent at work in {workspace}.
Use the tools to look before you act, and run the tests after each change."""
TOOLS = {}  # name -> function; the decorator `tool` fills it
JSON_TYPES = {"str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"},
              "bool": {"type": "boolean"}, "list": {"type": "array"}, "dict": {"type": "object"}}
ROLES = ("system", "user", "assistant", "tool")
GAP = re.compile(r"[\s\0\ufeff,]*")  # between records: white space, NUL blocks, BOMs, commas
TITLE = re.compile(rb'{"role": ?"user", ?"content": ?"((?:[^"\\]|\\.){,199})')
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
STRICT = json.JSONDecoder(parse_constant=int).decode  # int() refuses NaN, which is no JSON
DECODE = json.JSONDecoder().raw_decode
FORKED = "forked from a session that may still be at work; files were not rolled back"
NOT_STARTED = "not started: it never ran; call it again if it is still wanted"
APPLIED = "applied: the file holds exactly the bytes that this call asked for; do not repeat it"
NOT_APPLIED = "not applied: the file is as it was before; call it again if it is still wanted"
DIFFERS = "differs: the file is neither as before nor as asked for; look at it before you go on"
INTERRUPTED = "interrupted: it only reads, so it is safe to call again"
UNKNOWN = ("outcome unknown: it may have run fully, partly or not at all, or may still run; "
           "check the real state before you repeat it")

def clean(text) -> str:
    """The text as UTF-8 can hold it: a lone surrogate becomes U+FFFD."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)

class SessionError(Exception):
    """A session that cannot be used: the text says which, and why."""

class Failure(Exception):
    """Foreign code that failed, the model's or a tool's; of a failed request no reply is stored."""

# ── §1 loop ───────────────────────────────────────────────────────────────────────────────────────
# An agent is a loop: messages go to the model, its calls to the tools, their results to the model.

def run_turn(session, prompt, model, tools=TOOLS, approve=None, show=print, listen=list) -> str:
    """Run one turn and return the model's last words; a blank prompt is neither sent nor stored.
    `model` is any function from (messages, tools) to an assistant message; `approve` says of
    (name, arguments) why not, or None; `listen` returns the lines that were typed meanwhile.
    Promise: each message and each result is on disk before the step that builds on it.
    If killed here: the log is a prefix of this turn, and `load_session` makes it valid."""
    if not prompt.strip():
        return ""
    with control_turn(session):
        more = session.add_prompts([prompt])
        while more:
            reply = attempt(model, session.messages(), [*map(describe_tool, tools.values())])
            session.append({**reply, "role": "assistant", "tracked": True})
            words, calls = text_of(reply.get("content")), open_calls(session.records[-1:])
            if words.strip() and not getattr(model, "streams", False):
                show(words)
            for call in calls:
                result = clean(run_call(session, call, tools, approve))
                session.append({"role": "tool", "tool_call_id": call.id, "content": result})
                last_line = "".join(result.splitlines()[-1:]).strip()
                show(f"  {call.name} {str(json.loads(call.arguments))[:60]} -> {last_line[:80]}")
            more = session.add_prompts(listen()) or calls  # no call is open: a line cannot part it
    return words

def run_call(session, call, tools, approve) -> str:
    """Take one call from the model's wish to the one text that answers it, whatever happens."""
    tool, arguments = tools.get(call.name), json.loads(call.arguments)
    if call.cut_off:
        return "not run: the reply was cut at the length limit, its arguments may be incomplete"
    if tool is None:
        return f"error: there is no tool {call.name!r}, only {', '.join(tools)}"
    if approve and not tool.read_only and (refusal := approve(call.name, arguments)):
        return f"refused: {refusal}"
    try:  # what fails in planning has not begun, and leaves no `started`
        change = attempt(tool, session, **arguments) if tool.plans else ()
        session.append(attempt(make_intent, call, tool, *change))
        done = attempt(replace_file, *change) if change else attempt(tool, session, **arguments)
        return "" if done is None else attempt(str, done)
    except Failure as failure:
        return f"error: {failure}"

def attempt(function, /, *arguments, **named):
    """Call foreign code, the model's or a tool's: whatever goes wrong there is a Failure."""
    try:
        return function(*arguments, **named)
    except (Exception, SystemExit) as error:
        raise Failure(f"{type(error).__name__}: {error}") from error

# ── §2 tools ──────────────────────────────────────────────────────────────────────────────────────
# A tool is a plain function in a table; its schema is read from its signature and docstring.

def tool(table, read_only=False, plans=False):
    """Decorator: add a tool to a table; one that `plans` only returns a path and its new bytes."""
    def add(function):
        function.read_only, function.plans = read_only, plans
        table[function.__name__] = function
        return function
    return add

def describe_tool(function) -> dict:
    """The schema of a tool: a parameter with a type (`name: type = default`) is the model's."""
    every = inspect.signature(function).parameters.values()
    typed = [each for each in every if each.annotation is not each.empty]
    properties = {each.name: JSON_TYPES.get(re.split(r"\W+", str(each))[1], {}) for each in typed}
    required = [each.name for each in typed if each.default is each.empty]
    about = {"name": function.__name__, "description": " ".join((function.__doc__ or "").split()),
             "parameters": {"type": "object", "properties": properties, "required": required}}
    return {"type": "function", "function": about}

def clip(output, size) -> str:
    """The head and the tail of `size` bytes of output, with a note of what was cut between."""
    del output[HEAD_BYTES:-TAIL_BYTES]
    if size > len(output):
        output[HEAD_BYTES:HEAD_BYTES] = f"\n[... {size - len(output)} bytes cut ...]\n".encode()
    return output.decode("utf-8", "replace")

def inside(session, path) -> pathlib.Path:
    """The real path of a file in the workspace; PermissionError if it is not for the model."""
    root, log = (pathlib.Path(each).resolve() for each in (session.workspace, session.path))
    real = (root / path).resolve()
    own = real == log or ".tinyharness" in real.parts[len(root.parts) :]
    endless = real.exists() and not (real.is_file() and real.stat().st_size <= FILE_BYTES)
    # Behind a loop of links resolve() gives up, and would go on the next time.
    if own or endless or real != real.resolve() or not real.is_relative_to(root):
        raise PermissionError(f"{path} is outside the workspace, reserved, no file, or too large")
    return real

def replace_file(path, data) -> str:
    """Put new bytes in the place of a file; a kill leaves the old or the new, and maybe a .tmp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tinyharness-{os.urandom(6).hex()}.tmp")
    with contextlib.ExitStack() as stack:
        stack.callback(temporary.unlink, missing_ok=True)
        with open(temporary, "xb", 0) as file:
            if path.exists():
                temporary.chmod(path.stat().st_mode & 0o7777)
            write_all(file, data)
        temporary.replace(path)
    sync_folders(path)
    return f"wrote {len(data)} bytes to {path.name}"

@tool(TOOLS, read_only=True)
def read_file(session, path: str, start: int = 1, lines: int = 2000) -> str:
    """Read a text file of the workspace: `lines` lines from line `start` on, counted from 1."""
    every = inside(session, path).read_bytes().splitlines(keepends=True)[max(start, 1) - 1 :]
    wanted = every[: max(lines, 0)]
    more = f"\n[{len(every) - len(wanted)} more lines]" if len(every) > len(wanted) else ""
    return clip(bytearray().join(wanted), sum(map(len, wanted))) + more

@tool(TOOLS, plans=True)
def write_file(session, path: str, content: str) -> tuple:
    """Write a whole text file of the workspace, new or in place of the old one."""
    return inside(session, path), content.encode()

@tool(TOOLS, plans=True)
def edit_file(session, path: str, old: str, new: str) -> tuple:
    """Replace the text `old`, which must be in the file exactly once, by `new`."""
    data = (target := inside(session, path)).read_bytes()
    # The lookahead counts overlapping matches too, which bytes.count does not.
    matches = len(re.findall(b"(?=" + re.escape(old.encode()) + b")", data)) if old else 0
    if matches != 1:
        raise ValueError(f"the old text is {matches} times in {path}; it must be there once")
    return target, data.replace(old.encode(), new.encode())

@tool(TOOLS)
def bash(session, command: str, timeout: float = 120) -> str:
    """Run a bash command in the workspace, without input; its process group ends with it."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    secretless = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    how = {"cwd": session.workspace, "env": secretless, "start_new_session": True, **pipes}
    output, sizes, limit = bytearray(), [], min(BASH_SECONDS, float(timeout))  # so NaN is 600
    born, pool, ending = [], concurrent.futures.ThreadPoolExecutor(1), f"timed out; {UNKNOWN}"
    def drain():
        while chunk := os.read(born[0].stdout.fileno(), 65_536):
            sizes.append(len(chunk))
            output.extend(chunk)
            del output[HEAD_BYTES:-TAIL_BYTES]
        born[0].stdout.close()
    # In threads: Ctrl-C cannot lose a process at its birth, a kept pipe cannot keep the harness.
    reader = threading.Thread(target=drain, daemon=True)
    pool.submit(int).result()  # its thread begins here, where Ctrl-C loses nothing
    try:
        pool.submit(lambda: born.append(subprocess.Popen(["bash", "-c", command], **how))).result()
        reader.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            ending = f"exit code {born[0].wait(limit)}"
    finally:
        pool.shutdown()
        for process in born:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if fcntl else process.kill()
            process.wait()
        reader.is_alive() and reader.join(1)
    return f"{clip(output, sum(sizes)).rstrip()}\n[{ending}]".lstrip("\n")

# ── §3 log ────────────────────────────────────────────────────────────────────────────────────────
# Append a line and sync it. Read line by line, and let no damaged line cost another one.

def encode_record(record) -> bytes:
    """One line of UTF-8 that a person can read; ValueError or TypeError if it is no JSON."""
    text = clean(json.dumps(record, ensure_ascii=False, allow_nan=False))
    for separator in "\u2028\u2029\u0085":  # other readers split lines there
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return text.encode() + b"\n"

def open_log(path):
    """Open a log, unbuffered; a new one, and its folder, can be read by its owner only."""
    os.path.exists(path) or pathlib.Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(path, "ab+", 0, opener=lambda name, flags: os.open(name, flags, 0o600))

def write_all(file, data):
    """Write bytes to an unbuffered file, and sync them: they survive a kill and a power loss."""
    while data:  # a disk that fills up takes a part, and refuses only the rest
        data = data[file.write(data) :]
    getattr(os, "fdatasync", os.fsync)(file.fileno())

def sync_folders(path):
    """Put a file's name on disk, and the names of its folders, which may be as new as the file."""
    for folder in pathlib.Path(path).absolute().parents:
        with contextlib.suppress(PermissionError), contextlib.ExitStack() as stack:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no folder that syncs
                    raise

def append_jsonl(path, record):
    """Add a record to a log as one line of JSON.
    Errors: ValueError or TypeError before the file is touched; OSError from the disk.
    Promise: on disk when it returns; old bytes stay; a torn last line never swallows this one.
    If killed here: the log is as before, ends in this record, or is torn; the next append mends."""
    data = encode_record(record)
    with open_log(path) as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
        last = file.read(1)
        write_all(file, data if last in (b"", b"\n") else b"\n" + data)
    if not last:
        sync_folders(path)

def read_jsonl(path, skipped=None) -> list:
    """All records of a log, [] without a file; `skipped` collects (line number, problem) pairs."""
    return [record for _, record in number_records(path, skipped)]

def number_records(path, skipped=None):
    """The same one by one, with line numbers: a long log need not be in memory as a whole."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for number, line in enumerate(file, 1):  # read as bytes, a line ends at b"\n" only
            records, problem = parse_line(line)
            if problem and skipped is not None:
                skipped.append((number, problem))
            yield from ((number, record) for record in records)

def parse_line(line) -> tuple:
    """The records on a line (two, where a newline was lost), and what is wrong with the line."""
    text, records, trusted, damages = line.decode("utf-8", "replace"), [], 0, 0
    damaged = "\0" in text or ("\ufffd" in text and text.encode() != line)
    problem, position = "bytes that are no text" if damaged else "", GAP.match(text).end()
    while 0 <= position < len(text) and damages < DAMAGES:
        try:
            value, position = DECODE(text, position)
            position = GAP.match(text, position).end()
            records += [value] if is_record(value) else []
            problem = problem or ("" if is_record(value) else "neither a message nor an event")
        except (ValueError, RecursionError) as error:
            problem, place = "torn or damaged JSON", getattr(error, "pos", position)
            if text[position] == "{":
                trusted = len(records)  # what came before this torn record stands
            elif text[position] in "]}":
                del records[trusted:]  # what came before this end was the inside of a record
            # A torn record (say, within \u0041) breaks the grammar at most 8 characters later.
            damages, position = damages + 1, text.find('{"', max(position + 1, place - 8))
    return records, problem if damages < DAMAGES else "damaged in too many places to read on"

def is_record(value) -> bool:
    """Whether a JSON value is a message or an event."""
    fields = value if isinstance(value, dict) else {}
    return fields.get("role") in ROLES or isinstance(fields.get("event"), str)

# ── §4 repair ─────────────────────────────────────────────────────────────────────────────────────
# Any list of records becomes a history that a provider accepts: results are grouped under calls.

def dicts_in(value) -> list:
    """The objects in a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

def text_of(content) -> str:
    """All text in a string or in a list of content blocks; "" in anything else."""
    texts = [content, *(block.get("text") for block in dicts_in(content))]
    return clean("\n".join(text for text in texts if isinstance(text, str)))

def arguments_text(said) -> str:
    """Arguments as a string that holds a JSON object, whatever the model said."""
    text = clean(said) if isinstance(said, str) else ""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        value = STRICT(text) if text else said
        if isinstance(value, dict):
            spelled = json.dumps(value, ensure_ascii=False, allow_nan=False)
            # Letter for letter, unless an escape hides half a character.
            return text if text and clean(spelled) == spelled else clean(spelled)
    empty = text.strip() in ("", "null")
    return json.dumps({} if empty else {"arguments_were_no_json_object": text})

def read_message(record) -> tuple:
    """The text, calls and results of a message, in the API's fields or in blocks of its content."""
    role, content = record["role"], record.get("content")
    calls = [(call.get("id"), call.get("function")) for call in dicts_in(record.get("tool_calls"))]
    results = [(record.get("tool_call_id"), text_of(content))] if role == "tool" else []
    for block in dicts_in(content):
        if block.get("type") == "tool_use":
            calls.append((block.get("id"), {**block, "arguments": block.get("input")}))
        elif block.get("type") == "tool_result":
            results.append((block.get("tool_use_id"), text_of(block.get("content"))))
    return text_of(content), calls if role == "assistant" else [], results

class Call:
    """A call in a log; tracked: whoever wrote its batch would have logged that it had begun."""
    __slots__ = "id name arguments sent started result unsure arrived cut_off tracked".split()
    def __init__(self, said, function, sent_ids, counter, record, tracked):
        function = function if isinstance(function, dict) else {}
        self.id, self.name = text_of(said), text_of(function.get("name"))
        self.started, self.result, self.arrived = {}, "", float("inf")
        self.unsure = False  # whether its result is a verdict, or came without an id
        self.cut_off, self.tracked = record.get("finish_reason") == "length", tracked
        sent_id = self.id  # or one of nine letters and digits, which every provider takes
        while not sent_id or sent_id in sent_ids or len(sent_id) > 64:
            sent_id = f"c{next(counter):08d}"
        sent_ids.add(sent_id)
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64] or "unknown"
        self.arguments = arguments_text(function.get("arguments"))
        function = {"name": name, "arguments": self.arguments}
        self.sent = {"id": sent_id, "type": "function", "function": function}

def group_calls(records) -> list:
    """The fold: (role, text, calls) of each message, each call with what became of it."""
    groups, by_id, sent_ids, counter = [], {}, set(), itertools.count()
    for record in filter(is_record, records):
        if record.get("role") not in ROLES:
            begin, _, _ = by_id.get(text_of(record.get("tool_call_id")), ((), (), ()))
            begin = (call for call in begin if not call.started and not call.result)
            if record["event"] == "started" and (call := next(begin, None)):
                call.started = record
                call.tracked.append(record)  # who logs one beginning of a batch logs them all
            continue
        text, said, results = read_message(record)
        for said_id, result in results:
            key, synthetic = text_of(said_id), "verdict" in record
            _, waiting, again = by_id.get(key, ((), (), ()))
            call = next((call for call in waiting if not call.result), None)
            if not call and not synthetic:  # a real result beats a verdict, and one without an id
                call = next((call for call in again if call.unsure and call.id == key), None)
            if call:
                call.result = result if result.strip() else "(no output)"
                call.arrived = min(call.arrived, next(counter))
                call.unsure = synthetic or key != call.id
            groups += [] if key in by_id else [("orphan", result, ())]
        tracked = [record] if record.get("tracked") is True else []  # one list for the whole batch
        calls = [Call(*each, sent_ids, counter, record, tracked) for each in said]
        same_id = {}  # from here on an id means these calls; no id, those without one, or all
        for call in calls:
            same_id.setdefault(call.id, []).append(call)
        for key, same in {"": calls, **same_id}.items() if calls else ():
            by_id[key] = (iter(same), iter(same), iter(same))  # to begin, answer, answer for sure
        if record["role"] != "tool" and (text.strip() or calls):
            groups.append((record["role"], text, calls))
    return groups

def open_calls(records) -> list:
    """The calls without a result, in order."""
    return [call for _, _, calls in group_calls(records) for call in calls if not call.result]

def repair(records, prompt="") -> list:
    """Turn any list of records into messages ready to send: pure, total, linear, idempotent."""
    records = itertools.chain([{"role": "system", "content": prompt}], records)
    with contextlib.ExitStack() as stack:  # a search for garbage among many new calls finds none
        stack.callback(gc.enable if gc.isenabled() else gc.disable)
        gc.disable()
        groups, messages = group_calls(records), []
        for role, text, calls in groups:
            if role in ("user", "assistant"):
                said = {"role": role, "content": text if text.strip() else None}
                messages.append(said | ({"tool_calls": [c.sent for c in calls]} if calls else {}))
            for call in sorted(calls, key=lambda call: call.arrived):
                result = call.result or f"no result is in the log; {judge_call(call)}"
                messages += [{"role": "tool", "tool_call_id": call.sent["id"], "content": result}]
    first = "\n\n".join(dict.fromkeys(text for role, text, _ in groups if role == "system"))
    return [{"role": "system", "content": first}, *messages] if first else messages

def load_session(path) -> list:
    """The messages of a session, ready to send; [] without a file. Promise: it only reads."""
    return repair(record for _, record in number_records(path))

# ── §5 intent ─────────────────────────────────────────────────────────────────────────────────────
# A `started` record before each effect tells apart: never ran, ran, or nobody can know.

def hash_file(path, data=None) -> str:
    """SHA-256 of what a file holds, or is to hold; this is the probe, and it only reads."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if data is None and os.stat(path) and not os.path.isfile(path):
            return "no regular file"  # reading a pipe could wait for ever
        return hashlib.sha256(pathlib.Path(path).read_bytes() if data is None else data).hexdigest()
    return "no file"

def make_intent(call, tool, path="", data=b"") -> dict:
    """The record that is on disk before an effect; of a planned one it holds both hashes."""
    intent = {"event": "started", "tool_call_id": call.id, "tool": call.name}
    plan = {"path": str(path), "before": hash_file(path), "after": hash_file(path, data)}
    return {**intent, **(plan if path else {}), "read_only": tool.read_only}

def judge_call(call, probe=None) -> str:
    """The verdict on a call without a result: from the log alone, or with a look at the file."""
    if not call.started:
        return NOT_STARTED if call.tracked else UNKNOWN
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):  # no plan, or no look
        seen = {call.started["before"]: NOT_APPLIED, call.started["after"]: APPLIED}
        return seen.get(probe(str(call.started["path"])), DIFFERS) if probe else UNKNOWN
    return INTERRUPTED if call.started.get("read_only") else UNKNOWN

def settle_calls(session, cause="the harness stopped while no result was on record"):
    """Put a verdict on disk for each open call: the same after a crash and after Ctrl-C."""
    for call in open_calls(session.records):
        verdict = judge_call(call, hash_file)
        verdict == APPLIED and sync_folders(call.started["path"])  # the kill may have come first
        text = f"{cause.partition(' while')[0] if verdict == NOT_STARTED else cause}; {verdict}"
        result = {"role": "tool", "tool_call_id": call.id, "content": text}
        session.append({**result, "verdict": verdict.partition(":")[0]})

# ── §6 control ────────────────────────────────────────────────────────────────────────────────────
# A turn can be stopped or steered at any moment, and the history stays valid.

@contextlib.contextmanager
def control_turn(session):
    """Open a turn, and close it however it ends: done, aborted, or error."""
    if session.in_turn:
        raise RuntimeError("this session is in a turn: steer(text) adds to it, abort() ends it")
    session.in_turn, ending = True, {"event": "turn", "state": "error"}
    try:
        settle_calls(session)
        yield
        ending["state"] = "done"
    except (KeyboardInterrupt, Failure) as why:
        ending |= {"state": "error" if isinstance(why, Failure) else "aborted", "reason": str(why)}
        session.records = read_jsonl(session.path) or session.records  # a Ctrl-C may part the two
        settle_calls(session, "interrupted by the user while it ran")
        session.add_prompts([])  # what was typed is not lost
        raise
    finally:
        session.in_turn = False
        session.append(ending)

# ── §7 resume ─────────────────────────────────────────────────────────────────────────────────────
# Lock, load, say what was found, wait for the user. Nothing runs by itself.

class Session(contextlib.ExitStack):
    """One session file, held by this process alone; a missing one is made. Errors: SessionError."""
    def __init__(self, path, workspace=None, model=None, canary=None):
        super().__init__()
        self.path, self.workspace = os.path.abspath(path), workspace
        self.model, self.canary = model, canary
        self.folder, self.inbox, self.skipped = os.path.dirname(self.path), [], []
        self.in_turn = self.announced = False

    def __enter__(self):
        try:
            self.file = self.enter_context(open_log(self.path))  # closed where `with` ends
            # A list that looks holds it too, but only for an instant.
            if not any(take_lock(self.file) for _ in range(10_000)):
                raise SessionError(describe_holder(self.path))
            sync_folders(self.path)  # its creator may have been killed before that
            self.records = read_jsonl(self.path, self.skipped)
        except OSError as error:
            raise SessionError(f"cannot open {self.path}: {error.strerror}") from error
        fcntl and os.register_at_fork(after_in_child=self.file.close)  # or a fork shares the lock
        first = next((record for record in self.records if "cwd" in record), {})
        self.workspace = os.path.abspath(self.workspace or text_of(first.get("cwd")) or ".")
        self.model = self.model or text_of(first.get("model"))
        return self

    def append(self, record):
        """Put a record on disk, then into memory; the first one says who writes from here on."""
        for each in [record] if self.announced else [describe_opening(self), record]:
            each = {**each, "ts": round(time.time(), 3)}
            if not (os.path.exists(self.path) and os.path.samefile(self.path, self.file.fileno())):
                raise SessionError(f"{self.path} was deleted or replaced while in use")
            try:
                append_jsonl(self.path, each)
            except OSError as error:
                raise SessionError(f"cannot write {self.path}: {error.strerror}") from error
            self.records.append(each)
            self.announced = True

    def add_prompts(self, lines) -> bool:
        """Append what the user typed or steered, but no blank line; whether there was any."""
        lines, self.inbox = [line for line in [*self.inbox, *lines] if line.strip()], []
        for line in lines:
            self.append({"role": "user", "content": line})
        return bool(lines)

    def messages(self) -> list:
        """The history, ready to send, behind the system prompt."""
        return repair(self.records, SYSTEM_PROMPT.format(workspace=self.workspace))

    def steer(self, text):
        """Add a user message to the running turn, at its next safe place."""
        self.inbox.append(text)

    def abort(self):
        """End the running turn as Ctrl-C does; the turn runs in the main thread."""
        self.in_turn and os.kill(os.getpid(), signal.SIGINT)

def write_receipt(session, did="resumed") -> str:
    """What was found in the file of a session, and by which build; looks, and changes nothing."""
    read, bad, told = session.records, session.skipped, [f"{did} {session.path}"]
    told += [f"  {len(read)} records read, {len(bad)} lines skipped; state: {describe_state(read)}"]
    builds = [text_of(record["build"]) for record in read if "build" in record]
    told += [f"  of build {each}, this is {BUILD}" for each in builds[-1:] if each != BUILD]
    told += [f"  skipped line {number}: {problem}" for number, problem in bad]
    lost = (text for role, text, _ in group_calls(read) if role == "orphan")
    told += [f"  not sent, a result without a call: {text[:60]!r}" for text in lost]
    told += [f"  call {call.name}: {judge_call(call, hash_file)}" for call in open_calls(read)]
    return "\n".join(told)

# ── §8 lifecycle ──────────────────────────────────────────────────────────────────────────────────
# A session's id is the name of its file, and its state is derived from its records.

def describe_opening(session) -> dict:
    """The event that says who writes from here on: where, by which build, and with which model."""
    git = f"git -C {shlex.quote(session.workspace)} rev-parse -q --verify HEAD 2>{os.devnull}"
    return {"event": "resumed" if session.records else "session", "format": 1, "build": BUILD,
            "id": pathlib.Path(session.path).stem, "cwd": session.workspace, "model": session.model,
            "platform": sys.platform, "python": sys.version.split()[0], "canary": session.canary,
            "created": time.strftime("%Y-%m-%d %H:%M:%S %z"), "commit": subprocess.getoutput(git),
            "self": HERE.is_relative_to(os.path.realpath(session.workspace)), "pid": os.getpid()}

def describe_holder(path) -> str:
    """Why a session cannot be opened: who wrote to it last, and what to do now."""
    last = ([record for _, record in number_records(path) if "pid" in record] or [{}])[-1]
    who = f"last writer: pid {last.get('pid', 'unknown')}, since {last.get('created', 'unknown')}"
    return f"{path} is held by another process ({who}); a copy of it is an independent session"

def new_session_path(folder) -> str:
    """A new, empty session file, named by date, time and a word that can be remembered."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    while True:
        path = os.path.join(folder, time.strftime(f"%Y-%m-%d_%H%M%S_{random.choice(WORDS)}.jsonl"))
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            return path

def list_paths(folder) -> list:
    """The session files in a folder, the newest first: a name begins with date and time."""
    return sorted(filter(os.path.isfile, pathlib.Path(folder).glob("*.jsonl")), reverse=True)

def find_session(folder, target) -> str:
    """The path of a session: a path, an id, the beginning of one, or `last`; a new one for None."""
    if target is None:
        return new_session_path(folder)
    if os.path.isfile(target):
        return target
    paths = list_paths(folder)
    found = [path for path in paths if target and path.stem.startswith(target)]
    found = [path for path in found if path.stem == target] or found
    if target == "last":  # of those that were begun
        found = sorted(filter(os.path.getsize, paths[::-1]), key=os.path.getmtime)[-1:] or paths[:1]
    if len(found) != 1:
        ids = ", ".join(path.stem for path in found) or "none"
        raise SessionError(f"{target!r} is no file, and must fit one id in {folder}; it fits {ids}")
    return str(found[0])

def describe_state(records) -> str:
    """Where a session stands: empty, done, waiting, or interrupted before a tool or in it."""
    said = [group for group in group_calls(records) if group[0] in ("user", "assistant")]
    for call in (call for _, _, calls in said for call in calls if not call.result):
        where = "in" if call.started or not call.tracked else "before"
        return f"interrupted {where} tool {call.name}"
    ended = text_of(records[-1].get("state")) if records else ""
    if not said:
        return "empty"
    if ended == "done" or (said[-1][0] == "assistant" and not said[-1][2]):
        return "done"
    return f"waiting for an answer ({ended})" if ended else "waiting for an answer"

def take_lock(file, shared=False) -> bool:
    """Lock a log until it is closed, so at most until the process ends; whether it was free."""
    with contextlib.suppress(BlockingIOError):
        fcntl and fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return True
    return False

def list_sessions(session, text="") -> str:
    """A row a session that holds a text, newest first: id, age, status, title, messages, place."""
    rows = map(list_session, list_paths(session.folder))
    return "\n".join(row for row in rows if text in row) or "there is no such session"

def list_session(path) -> str:
    """A row of the list, from the two ends of a file: it only looks, and marks a guess by ~."""
    try:
        with open(path, "rb", 0) as file:
            about, head = os.fstat(file.fileno()), file.read(END_BYTES)
            file.seek(max(about.st_size - END_BYTES, 0))
            tail, guess = file.read(), "~" * (about.st_size > END_BYTES)
            tail = tail.partition(b"\n")[2] or path.read_bytes() if guess else tail
            held = not take_lock(file, shared=True)
    except OSError as error:
        return f"{path.stem} | unreadable: {error.strerror}"
    opening, lines = ([*map(parse_line, data.split(b"\n"))] for data in (head, tail))
    opening = opening[:-1] + lines  # the last line of the head may be cut
    records = [record for found, _ in lines for record in found] or [{}]
    first = next((each for found, _ in opening for each in found if "cwd" in each), {})
    last, end = records[-1], describe_state([{"role": "user", "content": guess}, *records])
    end = f"interrupted in tool {last.get('tool')}" if last.get("event") == "started" else end
    end = end if end in ("done", "empty") else f"crashed, {end}"
    end = text_of(last.get("state")) or end  # of a turn that was closed
    status = ["active" if held else end, *["damaged" for _, problem in opening if problem][:1]]
    status += [f"canary {text_of(first['canary'])}"] if first.get("canary") else []
    status += ["works on itself"] * (first.get("self") is True)
    title = TITLE.search(head + b'{"role": "user", "content": "')[1].decode("utf-8", "replace")
    count = tail.count(b'"role":') * about.st_size // (len(tail) or 1)
    row = f"{path.stem} | {(time.time() - about.st_mtime) / 3600:.1f} h | {', '.join(status)}"
    row += f" | {title[:60]} | {guess}{count} messages | {text_of(first.get('cwd'))}"
    return " ".join(row.split())

# ── §11 search and replay ─────────────────────────────────────────────────────────────────────────
# A question about the past is one more way to read the same log.

@tool(TOOLS, read_only=True)
def search_sessions(session, query: str) -> str:
    """Find what was said in other sessions: messages with all words of the query, in any case."""
    words, rows, own = clean(query).lower().split(), [], pathlib.Path(session.path)
    # Only a file with all of these bytes, or with escapes (\u4fee), is parsed.
    fixed = [encode_record(word)[1:-2] for word in words if word.isascii() or word == word.upper()]
    for path in list_paths(session.folder) if words else ():
        with contextlib.suppress(OSError):  # an unreadable file costs only itself
            data = path.read_bytes().lower()
            maybe = all(word in data for word in fixed) or not query.isascii() and b"\\u" in data
            for number, record in number_records(path) if path != own and maybe else ():
                text = " ".join(text_of(record.get("content")).split())
                place = max(text.lower().find(words[0]) - 40, 0)
                if all(word in text.lower() for word in words):
                    rows += [] if path.stem in rows else [path.stem]
                    rows.append(f"  line {number}: {text[place : place + 120].strip()}")
        if len(rows) > FOUND_ROWS:
            return "\n".join([*rows[:FOUND_ROWS], "[and more: ask with more words]"])
    return "\n".join(rows) or "nothing was found"

def show_session(session, target="") -> str:
    """The timeline: a row a record, with clock, tool, seconds, verdict, text, a crash in a tool."""
    path, begun, rows = find_session(session.folder, target or session.path), {}, []
    for number, record in number_records(path, rows):  # what is skipped has its place there, too
        key, moment = text_of(record.get("tool_call_id")), record.get("ts")
        moment = moment if isinstance(moment, (int, float)) and 0 <= moment < 1e10 else 0
        kind = record["role"] if record.get("role") in ROLES else record["event"]
        words = [time.strftime("%X", time.localtime(moment)) if moment else "--:--:--", kind]
        if kind == "started":
            begun[key] = text_of(record.get("tool")), moment
        elif kind == "tool" and key in begun:
            tool, start = begun.pop(key)
            words += [tool, "" if record.get("verdict") else f"({max(moment - start, 0):.1f} s)"]
        elif kind == "resumed" and begun:
            words += ["after a crash in tool", *(tool for tool, _ in begun.values())]
        words += [call.name for call in open_calls([record])]
        words += [text_of(record.get(name)) for name in "tool verdict state reason content".split()]
        rows.append(f"{number:5} " + " ".join(" ".join(words).split())[:130])
    rows = [row if isinstance(row, str) else "{:5} skipped: {}".format(*row) for row in rows]
    return "\n".join([*rows, f"state: {describe_state(read_jsonl(path))}"])

def check_session(session, target="") -> str:
    """What is in a file, skipped, and open; the first word says whether it is sound."""
    seen = Session(find_session(session.folder, target or session.path))
    seen.records = read_jsonl(seen.path, seen.skipped)
    verdict = "damaged" if seen.skipped else "open" if open_calls(seen.records) else "sound"
    return write_receipt(seen, f"{verdict}:")

def fork_session(session, target="") -> str:
    """A new session from the good records of another one, all or up to PATH:LINE; says where.
    Promise: the old file is only read, and it is not said of its open calls that they never ran.
    If killed here: the new session is empty or whole."""
    source, last = re.fullmatch(r"(?s)(.*?)(?::(\d+))?", target).groups("inf")
    source, skipped = find_session(session.folder, source or session.path), []
    records = [each for number, each in number_records(source, skipped) if number <= float(last)]
    records = json.loads(json.dumps(records), parse_constant=str)  # NaN is no JSON
    told = {"role": "tool", "content": f"{FORKED}; {UNKNOWN}", "verdict": "outcome unknown"}
    added = [{**told, "tool_call_id": call.id} for call in open_calls(records)]
    note = f"{FORKED}; a copy of {source}, which has {len(skipped)} damaged lines"
    added += [{"role": "user", "content": note}, {"event": "turn", "state": "forked"}]
    records += [{**each, "ts": round(time.time(), 3)} for each in added]
    path = new_session_path(session.folder)
    replace_file(pathlib.Path(path), b"".join(map(encode_record, records)))
    return f"{note}\n{path}"

# ── models ────────────────────────────────────────────────────────────────────────────────────────
# A model is a function from messages and tools to a message: no counter, no clock, no memory.

BROKEN = '''def parse_date(text):
    day, month, year = text.split()
    number = "jan feb mar apr may jun jul aug sep oct nov dec".split().index(month[:3])
    return f"{year}-{number:02d}-{int(day):02d}"
'''
TEST = '''from parse_date import parse_date
for text, want in [("3 mar 2026", "2026-03-03"), ("24 December 2025", "2025-12-24")]:
    assert (got := parse_date(text)) == want, f"{text!r} gives {got!r}, not {want!r}"
'''
TASK = "The test of parse_date.py fails. Repair parse_date.py, and run the test until it passes."
CAN_DO = "I am the rehearsal model: a script, for parse_date.py alone; else set OPENAI_API_KEY."
FILE = {"path": "parse_date.py"}
SCRIPT = (  # a pattern in the last message, then a tool and its arguments, or "" and words
    (f"(?i)^user: ({TASK}|continue|继续)", "read_file", FILE),  # whatever happened: look
    ("^user: ", "", CAN_DO),
    (r"^tool: (error|refused|not run):|\[timed out", "", "I stop here, because a call failed: {}"),
    ("not '2026-03-03'", "edit_file", {**FILE, "old": "month[:3])", "new": "month[:3]) + 1"}),
    ("not in list", "edit_file", {**FILE, "old": "month[:3]", "new": "month[:3].lower()"}),
    (r"\[exit code 0", "", "parse_date.py is repaired: both faults are gone. The test passes."),
    (r"\[exit code", "", "My script has no step for this:\n{}"),
    ("", "bash", {"command": "python3 -B test_parse_date.py"}))

def rehearsal_model(messages, tools) -> dict:
    """Play the one task that needs no language model: the last message says what is next."""
    text, said = messages[-1]["content"], [each["content"] for each in messages]
    news = f"{messages[-1]['role']}: {text}"
    _, tool, step = next(row for row in SCRIPT if re.search(row[0], news))
    if not tool or TASK not in said:
        return {"role": "assistant", "content": CAN_DO if tool else step.format(text)}
    function = {"name": tool, "arguments": json.dumps(step)}
    call = {"id": f"rehearsal{len(messages)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}

def openai_model(name, show=print):
    """A model behind the Chat Completions protocol, through the openai package, streamed."""
    def ask(messages, tools):
        try:  # so late, for it takes long; in a thread, for an import cut by Ctrl-C stays broken
            openai = concurrent.futures.ThreadPoolExecutor(1).submit(__import__, "openai").result()
        except ImportError as error:
            raise ImportError("the openai package is missing: pip install openai") from error
        ask.client = ask.client or openai.OpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "none")
        request = {"model": name, "messages": messages, "tools": tools or openai.omit}
        with ask.client.chat.completions.create(**request, stream=True) as stream:
            return collect_reply(stream, show)
    ask.streams, ask.client = True, None
    return ask

def collect_reply(stream, show) -> dict:
    """Build the message by hand (a dump has keys that servers refuse); ConnectionError if cut."""
    reply, calls, keys = {"role": "assistant", "content": "", "finish_reason": None}, {}, {}
    for choice in (choice for chunk in stream for choice in chunk.choices or []):
        for key in ("content", "reasoning_content"):
            if piece := getattr(choice.delta, key, None):
                reply[key] = reply.get(key, "") + piece
        show(choice.delta.content or "", end="")
        for part in choice.delta.tool_calls or []:
            # Some servers give each call the index 0: an id begins a call, or a name without id.
            if part.id or part.function.name:
                keys[part.index] = part.index, part.id or len(calls)
            function = {"name": part.function.name or "", "arguments": ""}
            new = {"id": part.id or "", "type": "function", "function": function}
            call, said = calls.setdefault(keys.get(part.index), new), part.function.arguments or ""
            call["function"]["arguments"] += said if isinstance(said, str) else json.dumps(said)
        reply["finish_reason"] = choice.finish_reason or reply["finish_reason"]
    reply["content"] and show("")
    reply["finish_reason"] == "length" and show("[cut off: the reply reached its length limit]")
    if not reply["finish_reason"]:
        raise ConnectionError("the reply broke off in the middle")
    return {**reply, "tool_calls": [*calls.values()]} if calls else reply

# ── main ──────────────────────────────────────────────────────────────────────────────────────────
# The command line: everything that prints, asks or exits.

COMMANDS = {"/list": list_sessions, "/search": search_sessions, "/show": show_session,
            "/check": check_session, "/fork": fork_session, "/salvage": fork_session,
            "/help": lambda *_: " ".join(COMMANDS), "/exit": lambda *_: sys.exit()}

def show_text(text, end="\n", file=None):
    """Print text with its control characters made visible: a terminal would obey them."""
    text = CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    try:
        print(text, end=end, file=file or sys.stdout, flush=True)
    except OSError:  # nobody reads on; the turn does, for the log has it all
        os.dup2(os.open(os.devnull, os.O_WRONLY), (file or sys.stdout).fileno())

def resume_command(path) -> str:
    """What to type here to go on with a session."""
    return shlex.join([sys.executable, sys.argv[0], "--resume", os.path.relpath(path)])

def parse_options(arguments):
    """The command line, as the docstring of this file shows it; exit code 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="tinyharness.py", add_help=False, allow_abbrev=False)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT")
    kinds = {"": {"action": "store_true"}, "[": {"nargs": "?", "const": ""}}
    for name, value in re.findall(r"(?m)^ {6}(--[a-z]+) ?(\[|[A-Z]|)", __doc__):
        parser.add_argument(name, **kinds.get(value, {}))
    parser.add_argument("--version", action="version", version="tinyharness 0.8")
    parser.set_defaults(sessions=os.path.join(".tinyharness", "sessions"))
    return parser.parse_args(arguments)

def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None

def typed_lines() -> list:
    """The lines that were typed on the terminal while something else went on."""
    typed, chunk = b"", b"\n"
    while chunk and os.name == "posix" and is_terminal() and select.select([0], [], [], 0)[0]:
        chunk = os.read(0, 65_536)  # past Python's buffer: what stays in there is seen by nobody
        typed += chunk
    return typed.decode("utf-8", "replace").splitlines()

def ask_person(session, options, name, arguments):
    """Why a call is refused, or None: an answer at the terminal, if none was given for all."""
    if options.yes or not is_terminal():
        return None if options.yes else "there is no terminal to ask at; --yes allows every call"
    session.inbox += typed_lines()  # typed before the question, so no answer to it
    show_text(f"{name} {json.dumps(arguments, ensure_ascii=False)}")
    answer = ""
    with contextlib.suppress(EOFError):
        answer = input("allow? [y/N/a] ").strip().lower()
    options.yes = answer in ("a", "all")
    return None if options.yes or answer in ("y", "yes") else "the user did not allow it"

def make_demo(workspace):
    """Put the rehearsal's task into a workspace; a file that is there stays as it is."""
    os.makedirs(workspace, exist_ok=True)
    for name, text in (("parse_date.py", BROKEN), ("test_parse_date.py", TEST)):
        with contextlib.suppress(FileExistsError), open(os.path.join(workspace, name), "x") as file:
            file.write(text)

def run_command(session, line):
    """Show the answer to a command, and return its exit code; None if the line is a prompt."""
    name, _, text = line.strip().partition(" ")
    if name not in COMMANDS:
        return None
    show_text(said := COMMANDS[name](session, text.strip()))
    return int(name == "/check" and not said.startswith("sound"))

def take_turns(session, options, model) -> int:
    """The turn of the prompt, or one for each line that a person types; returns an exit code."""
    approve, typed = functools.partial(ask_person, session, options), options.prompt is None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() its line editing
    while True:
        try:
            code, line = 0, input("> ") if typed else options.prompt
            if not typed or run_command(session, line) is None:
                code = 1  # unless the turn comes to its end
                run_turn(session, line, model, TOOLS, approve, show_text, typed_lines)
                code = 0
        except EOFError:
            return 0
        except (Failure, SessionError, OSError) as error:
            with contextlib.suppress(OSError):  # deleted while in use? memory has it all
                for record in () if os.path.lexists(session.path) else session.records:
                    append_jsonl(session.path, record)
            what = "the request failed: " if isinstance(error, Failure) else ""
            show_text(f"tinyharness: {what}{' '.join(str(error).split())[:500]}", file=sys.stderr)
        except KeyboardInterrupt as interrupt:
            code, typed = 130, typed and not str(interrupt)  # a signal ends the program
            show_text("\ninterrupted (Ctrl-D ends)" if typed else "\ninterrupted", file=sys.stderr)
        if session.records and (code or not typed):
            show_text(f"to go on: {resume_command(session.path)}", file=code and sys.stderr)
        if not typed:
            return code

def choose_model(session, options):
    """The model of a session; SessionError where it, its workspace or the prompt is missing."""
    has_key = os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    new, default = not options.resume, os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL
    scripted = options.rehearse or not has_key and (new or not session.model)
    session.model = "rehearsal" if scripted else session.model or default
    demo = os.path.join(".tinyharness", "demo", pathlib.Path(session.path).stem)
    if new and scripted and not options.prompt:
        options.prompt, session.workspace = TASK, os.path.abspath(options.workspace or demo)
        make_demo(session.workspace)
    if options.prompt == "":
        raise SessionError("there is no prompt: give one, or write it to standard input")
    if not os.path.isdir(session.workspace):
        raise SessionError(f"{session.workspace} is no folder; --workspace names another one")
    if session.model != "rehearsal" and not has_key:
        raise SessionError(f"{session.model} needs OPENAI_API_KEY or OPENAI_BASE_URL or --rehearse")
    if session.model != "rehearsal":
        return openai_model(session.model, show_text)
    options.yes |= session.workspace.endswith(demo)  # only there: nobody needs to be asked
    if not options.rehearse:
        why = "This is a rehearsal" if has_key else "No OPENAI_API_KEY or OPENAI_BASE_URL is set"
        show_text(f"{why}: the rehearsal model plays, an offline script", file=sys.stderr)
    return rehearsal_model

def run_session(options) -> int:
    """Start or resume a session, and take its turns; a new one without a word leaves no file."""
    if options.prompt is None and not is_terminal():
        options.prompt = sys.stdin.buffer.read() if sys.stdin else ""
    if options.prompt is not None:  # else a person types
        options.prompt = os.fsencode(options.prompt).decode("utf-8", "replace").strip()
    path = find_session(options.sessions, options.resume)
    try:
        with Session(path, options.workspace, options.model, options.canary) as session:
            if options.resume:
                show_text(write_receipt(session), file=sys.stderr)
            if session.skipped and not session.records:
                raise SessionError(f"{path} holds no session; nothing is written to it")
            if options.resume and options.prompt == "":
                return 0
            return take_turns(session, options, choose_model(session, options))
    finally:
        if not options.resume and os.path.exists(path) and not os.path.getsize(path):
            os.unlink(path)

def run_demo(options) -> int:
    """Kill a real agent in the middle of a tool, after its effect, and resume its session."""
    if not hasattr(os, "fork"):
        raise SessionError("--demo needs a system with fork: Linux, macOS, or WSL on Windows")
    def replace_and_die(*change, replace=replace_file):
        replace(*change)
        os.kill(os.getpid(), signal.SIGKILL)
    path, options.rehearse, options.prompt = new_session_path(options.sessions), True, ""
    if (child := os.fork()) == 0:
        globals().update(replace_file=replace_and_die, find_session=lambda *_: path)
        os._exit(run_session(options))
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        raise SessionError("the agent could not work: are bash and python3 on the PATH?")
    records = read_jsonl(path)
    show_text(f"KILLED by SIGKILL, {describe_state(records)}")
    show_text(f"on disk: {len(records)} records, the last one {json.dumps(records[-1])[:60]} ...")
    show_text(f"$ {resume_command(path)} continue")
    options.resume, options.prompt = path, "continue"
    code = run_session(options)
    source = pathlib.Path(records[0]["cwd"], "parse_date.py").read_text()
    once = source.count("+ 1") == source.count("lower") == 1
    show_text(f"each edit is in the file {'exactly once' if once else 'NOT exactly once'}")
    return code if once else 1

def main(arguments=None) -> int:
    """Run the command line and return its exit code."""
    def end_by_signal(number, frame):  # it ends a turn as Ctrl-C does, and then the program
        raise KeyboardInterrupt(signal.Signals(number).name)
    for stream in filter(None, (sys.stdin, sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace")
    options = parse_options(arguments)
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end_by_signal)
    try:
        for name in COMMANDS:
            if isinstance(text := getattr(options, name[1:], None), str):
                line = f"{name} {text} {options.prompt or ''}"
                return run_command(Session(pathlib.Path(options.sessions, "-")), line)
        return run_demo(options) if options.demo else run_session(options)
    except (SessionError, OSError) as error:
        show_text(f"tinyharness: {error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) else 2
    except KeyboardInterrupt:
        return 130

if __name__ == "__main__":
    sys.exit(main())

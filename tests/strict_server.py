"""A chat provider on loopback that answers 400 where strict ones do: judge and StrictServer."""

import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PLAIN_KEYS = {"role", "content"}
MESSAGE_KEYS = {"system": PLAIN_KEYS, "user": PLAIN_KEYS, "tool": PLAIN_KEYS | {"tool_call_id"},
                "assistant": PLAIN_KEYS | {"tool_calls"}}
BODY_KEYS = {"model", "messages", "tools", "stream", "stream_options", "temperature", "max_tokens",
             "max_completion_tokens", "tool_choice", "parallel_tool_calls", "reasoning_effort"}
CALL = {"id": str, "type": "function", "function": {"name": str, "arguments": str}}
TOOL = {"type": "function", "function": {"name": str, "description": str, "parameters": dict}}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


# ─── judge: what strict providers, taken together, have against a history ────────────────────────

def judge(messages) -> list[str]:
    """Return the objections to a history in the order of its messages; [] means accepted."""
    # type(), because isinstance() may run code of the object it looks at, and that code may raise.
    if type(messages) is not list or not messages:
        return ["messages must be a non-empty list"]
    copies, found = [], []
    for index, given in enumerate(messages):
        copy, objections = copy_as_json(given)
        copies.append(copy)
        found += [(index, text) for text in objections or judge_message(index, copy)]
    found = sorted([*found, *judge_pairs(copies)], key=lambda pair: pair[0])
    return [f"messages[{index}]: {text}" for index, text in found]


def copy_as_json(given) -> tuple[dict, list[str]]:
    """Return a message as a provider reads it and [], or {} and why it cannot be read."""
    # A foreign object may raise anything while it is encoded; all after this sees plain JSON only.
    try:
        copy = json.loads(encode_strictly(given))
    except UnicodeEncodeError:
        return {}, ["holds a lone surrogate, which UTF-8 cannot encode"]
    except Exception as error:
        return {}, [f"cannot be encoded as JSON ({type(error).__name__})"]
    return (copy, []) if isinstance(copy, dict) else ({}, ["must be an object"])


def encode_strictly(value) -> bytes:
    """Encode a value as UTF-8 JSON; NaN, infinity and lone surrogates raise ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def judge_message(index: int, message: dict) -> list[str]:
    """Return the objections to one message that can be seen without its neighbours."""
    role, content = message.get("role"), message.get("content")
    # A role may be a list here, and a dict cannot be asked for a list.
    if not isinstance(role, str) or role not in MESSAGE_KEYS:
        return ["role must be one of system, user, assistant, tool"]
    agent, calling = role == "assistant", role == "assistant" and "tool_calls" in message
    blank = not isinstance(content, str) or not content.strip()
    odd = content is not None and not isinstance(content, str)
    unknown = sorted(message.keys() - MESSAGE_KEYS[role])
    rules = (
        (role == "system" and index, "a system message may come once, as the first message"),
        (unknown, f"unknown keys {unknown!r:.200} in a message of role {role}"),
        (blank and not agent, f"content of a {role} message must be a non-blank string"),
        (odd and agent, "content of an assistant message must be a string or null"),
        (blank and agent and not odd and not calling, "must have content or tool_calls"),
        (calling and not read_calls(message), "tool_calls must be a non-empty list"))
    return [text for broken, text in rules if broken] + [
        f"tool_calls[{position}] {text}"
        for position, call in enumerate(read_calls(message)) for text in judge_call(call)]


def read_calls(message: dict) -> list:
    """Return the calls of an assistant message, [] if there is no list of them."""
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    return calls if isinstance(calls, list) else []


def fits(value, shape) -> bool:
    """Tell whether a value from JSON has a shape: a type, a constant or a dict of these keys."""
    if isinstance(shape, dict):
        return (isinstance(value, dict) and value.keys() == shape.keys()
                and all(fits(value[key], shape[key]) for key in shape))
    return isinstance(value, shape) if isinstance(shape, type) else value == shape


def judge_call(call) -> list[str]:
    """Return the objections to one call."""
    if not fits(call, CALL):
        return ["must be {id, type: 'function', function: {name, arguments}} of strings, no more"]
    function = call["function"]
    rules = (
        (not 1 <= len(call["id"]) <= 64, "id must have 1 to 64 characters"),
        (not NAME.fullmatch(function["name"]), "name must match ^[a-zA-Z0-9_-]{1,64}$"),
        (not holds_object(function["arguments"]), "arguments must hold a strict JSON object"))
    return [text for broken, text in rules if broken]


def holds_object(arguments: str) -> bool:
    """Tell whether a string holds strict JSON of an object."""
    try:
        # int() stands for refusal: it raises ValueError on each of NaN, Infinity and -Infinity.
        value = json.loads(arguments, parse_constant=int)
        # The escape \ud800 and the number 1e999 are harmless until they are read: encode the value.
        encode_strictly(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def judge_pairs(messages: list[dict]):
    """Yield (index, objection) where calls and results do not pair up, batch by batch."""
    seen, waiting, asked_at = set(), {}, 0
    # The empty message at the end closes the last batch.
    for index, message in enumerate([*messages, {}]):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or call_id not in waiting:
                yield index, "tool_call_id answers no open call of the batch right before it"
            else:
                del waiting[call_id]
            continue
        if waiting:
            yield asked_at, ("tool_calls must be followed directly by one tool message for each"
                             f" call; there is none for {', '.join(map(repr, waiting))}")
        call_ids = [call["id"] for call in read_calls(message) if fits(call, CALL)]
        for call_id in call_ids:
            if call_id in seen:
                yield index, f"the call id {call_id!r} was used before"
            seen.add(call_id)
        waiting, asked_at = dict.fromkeys(call_ids), index


def judge_body(body) -> list[str]:
    """Return the objections to a parsed request body: unknown keys, odd tools, bad history."""
    if not isinstance(body, dict):
        return ["the body must be a JSON object"]
    found = [f"unknown parameter {key!r:.80}" for key in sorted(body.keys() - BODY_KEYS)]
    tools = body.get("tools")
    if "tools" in body and not (isinstance(tools, list) and tools and all(map(is_tool, tools))):
        found.append("tools must be a non-empty list of {type: 'function', function: {name, "
                     "description, parameters}}, parameters {type: 'object', properties: {...}}")
    return found + judge(body.get("messages"))


def is_tool(tool) -> bool:
    """Tell whether a value from JSON describes a function the way every provider takes it."""
    function = tool["function"] if fits(tool, TOOL) else {"name": "", "parameters": {}}
    schema = function["parameters"]
    return bool(NAME.fullmatch(function["name"]) and schema.get("type") == "object"
                and isinstance(schema.get("properties"), dict))


# ─── replies: a scripted message as a provider sends it ──────────────────────────────────────────

def encode_reply(value) -> bytes:
    """Encode JSON with Chinese and emoji as raw UTF-8, and a lone surrogate as its escape."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def cut_text(text) -> list:
    """Cut a text into pieces of three characters, or longer ones from 800 characters on."""
    # A script may hold wrong arguments on purpose, such as an object: that goes out as it is.
    if not isinstance(text, str):
        return [text]
    size = max(3, len(text) // 200)
    return [text[start:start + size] for start in range(0, len(text), size)]


def list_deltas(reply: dict):
    """Yield the deltas of a streamed message: role, reasoning, content, then call by call."""
    yield {"role": "assistant", "content": None if reply.get("content") is None else ""}
    for key in ("reasoning_content", "content"):
        yield from ({key: piece} for piece in cut_text(reply.get(key) or ""))
    for index, call in enumerate(reply.get("tool_calls") or []):
        function = {**call["function"], "arguments": ""}
        yield {"tool_calls": [{**call, "index": index, "function": function}]}
        for piece in cut_text(call["function"].get("arguments", "")):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def list_events(reply: dict, head: dict):
    """Yield a reply as server-sent events, each one HTTP chunk, as far as the script lets it go."""
    choices = [{"delta": delta, "finish_reason": None} for delta in list_deltas(reply)]
    last_choice = {"delta": {}, "finish_reason": reply["finish_reason"]}
    chunks = [{**head, "choices": [{"index": 0, **choice}]} for choice in [*choices, last_choice]]
    chunks.append({**head, "choices": [], "usage": USAGE})
    events = [*map(encode_reply, chunks), b"[DONE]"]
    if "hang_up" in reply:
        events = events[:min(reply["hang_up"], len(choices))]
    for event in events:
        yield b"%x\r\ndata: %s\n\n\r\n" % (len(event) + len(b"data: \n\n"), event)
    # Without this empty chunk the client sees a connection that died in the middle of a body.
    if "hang_up" not in reply or reply.get("clean"):
        yield b"0\r\n\r\n"


# ─── StrictServer: judge and a script behind HTTP ────────────────────────────────────────────────

class StrictHandler(BaseHTTPRequestHandler):
    """Answer one request and close: when the server has ended, no old connection lives on."""

    protocol_version = "HTTP/1.1"
    # Many small writes would each wait for the client's delayed acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Write no log lines."""

    def do_GET(self):
        """Answer 404: the one path there is takes POST only."""
        self.send_failure(404, f"there is no {self.command} {self.path}", {})

    do_PUT = do_DELETE = do_GET

    def do_POST(self):
        """Judge and record a request; answer with objections or with the next reply."""
        # Read in any case: closing a connection with unread bytes would destroy the answer.
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        if self.path != "/v1/chat/completions":
            return self.do_GET()
        # A client that was killed while it asked has asked nothing.
        if len(data) < length:
            return
        try:
            body = json.loads(data.decode(), parse_constant=int)
        except (ValueError, RecursionError):
            body = None
        objections = self.server.admit_request(body, self.headers)
        if objections:
            return self.send_failure(400, "; ".join(objections[:5]), {})
        self.send_reply(self.server.pick_reply(body), body)

    def send_reply(self, reply: dict, body: dict):
        """Play one reply of the script."""
        time.sleep(reply.get("wait", 0))
        if "status" in reply:
            text, headers = reply.get("error", ""), reply.get("headers", {})
            return self.send_failure(reply["status"], text, headers)
        reply = {"finish_reason": "tool_calls" if reply.get("tool_calls") else "stop", **reply}
        head = {"id": "chatcmpl-strict", "created": int(time.time()), "model": body.get("model")}
        if body.get("stream"):
            headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
            events = list_events(reply, {**head, "object": "chat.completion.chunk"})
            return self.send_parts(200, headers, events)
        keys = {"content", "reasoning_content", "tool_calls"} & reply.keys()
        message = {"role": "assistant", "content": None, **{key: reply[key] for key in keys}}
        choice = {"index": 0, "message": message, "finish_reason": reply["finish_reason"]}
        value = {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}
        self.send_json(200, value, {}, cut="hang_up" in reply)

    def send_failure(self, status: int, text: str, headers: dict):
        """Send an error in OpenAI's shape."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": text, "type": kind, "param": None, "code": None}
        self.send_json(status, {"error": error}, headers)

    def send_json(self, status: int, value: dict, headers: dict, cut: bool = False):
        """Send a JSON body, or its first half if it is to be cut."""
        data = encode_reply(value)
        headers = {"Content-Type": "application/json", "Content-Length": len(data), **headers}
        self.send_parts(status, headers, [data[:len(data) // 2] if cut else data])

    def send_parts(self, status: int, headers: dict, parts):
        """Send status, headers and then the body, one write for each part."""
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, str(value))
        self.end_headers()
        for part in parts:
            self.wfile.write(part)


class StrictServer(ThreadingHTTPServer):
    """A provider on 127.0.0.1 that plays a script: a list of replies, or a model function."""

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), StrictHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.requests, self.headers, self.refusals = [], [], []
        self.script = script if callable(script) else iter(script)
        self.lock = threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Report an error of a handler, unless it is a client that went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def admit_request(self, body, headers) -> list[str]:
        """Record a request (None if it was no JSON) and return the objections to it."""
        objections = judge_body(body)
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            if objections:
                self.refusals.append((len(self.requests) - 1, objections))
        return objections

    def pick_reply(self, body: dict) -> dict:
        """Return the next reply of the list, or what the model function says."""
        if not callable(self.script):
            with self.lock:
                return next(self.script, {"status": 500, "error": "script used up"})
        # The client waits for an answer, so a failure of the function has to become one.
        try:
            return self.script(body["messages"], body.get("tools", []))
        except Exception as error:
            return {"status": 500, "error": f"the model function raised {error!r}"}

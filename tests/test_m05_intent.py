"""Claim: after a kill the harness says of each call what is known, and never more than that."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import traceback
import types
from pathlib import Path

import chapter
import pytest
import tinyharness as reference
from strict_server import judge

SCRIPT = Path(__file__).resolve().parent.parent / "tinyharness.py"
NAME, OLD, NEW = "修复 🐞.txt", "旧的 bug 🐛\n", "新的 fix 🚀\n"  # both have the same size
LEDGER = "账本 💰.txt"
UNKNOWN, FORBIDDEN = "outcome unknown", ("not executed", "cancelled", "canceled")


# ── the learner's two functions: a verdict, and a probe ───────────────────────────────────────────

def make_call(started=None, tracked=True, name="write_file"):
    """An open call, as the fold finds it in a log."""
    arguments = json.dumps({"path": NAME, "content": NEW})
    function = {"name": name, "arguments": arguments}
    asked = {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]}
    records = [{**asked, "tracked": tracked}]
    begun = {"event": "started", "tool_call_id": "c1", "tool": name, "read_only": False}
    records += [] if started is None else [{**begun, **started}]
    return reference.open_calls(records)[0]


VERDICTS = (  # what the started record adds, what the file held before, holds now, verdict, why
    (None, None, NEW, "not started",
     "our log has no `started` of this call: it certainly never ran, and the model may repeat it"),
    ({"tool": "bash"}, None, None, UNKNOWN,
     "`started` only says that it began: whether it was done nobody can know without a probe"),
    ({"tool": "read_file", "read_only": True}, None, None, "interrupted",
     "a tool that only reads can be called again: that is all the model has to know"),
    ({}, OLD, NEW, "applied", "the file holds the bytes that were asked for: it is done"),
    ({}, OLD, OLD, "not applied", "the file is as before: that it exists, or has the size of the "
                                  "new one, does not show that the call was applied"),
    ({}, OLD, OLD[::-1], "differs", "the file is neither as before nor as asked for: only its "
                                    "content tells that, not its size, and not a yes or no"),
    ({}, OLD, None, "differs", "the file was there before, and is gone: somebody else was here"),
    ({}, None, None, "not applied", "there was no file before, and there is none now"),
    ({}, None, "", "differs", "an empty file is another state than no file"),
    ({}, NEW, NEW, "applied", "identical content: what was asked for is there, so it is done"),
)


def check_verdicts(judge_call, folder):
    """`judge_call(call, probe)` claims what the log and the file prove, and nothing else."""
    assert judge_call(make_call(tracked=False), reference.hash_file).startswith(UNKNOWN), (
        "a log of a program that writes no `started` proves nothing by its absence")
    for number, (added, before, now, want, why) in enumerate(VERDICTS):
        path, started = folder / f"{number}-{NAME}", added
        if added == {}:
            prints = {"before": print_of(before), "after": print_of(NEW)}
            started = {"path": str(path), **prints}
        if now is not None:
            path.write_text(now)
        verdict = judge_call(make_call(started, name=(added or {}).get("tool", "write_file")),
                             reference.hash_file)
        assert not any(word in verdict.lower() for word in FORBIDDEN), (
            f"{verdict!r} claims more than a log can know")
        assert verdict.startswith(want), f"{verdict!r} is not {want!r}: {why}"
    started = {"path": str(folder), "before": print_of(OLD), "after": print_of(NEW)}
    assert judge_call(make_call(started), None).startswith(UNKNOWN), (
        "without a look at the file its state is unknown")


def print_of(text):
    """What a probe sees in a file that holds this text; None stands for no file."""
    return "no file" if text is None else reference.hash_file("", text.encode())


STATES = {"an empty file": b"", "the old text": OLD.encode(),
          "another text, same size": NEW.encode(),
          "two lines": b"one\ntwo\n", "two lines of Windows": b"one\r\ntwo\r\n",
          "bytes that are no text": b"\xff\0" * 9, "other such bytes": b"\xfe\0" * 9}


def check_probe(probe, folder):
    """`probe(path)` depends on what the file holds and on nothing else, and changes nothing."""
    path = folder / NAME
    try:
        nothing = probe(str(path))
    except OSError:
        raise AssertionError("a missing file is a state too, no error: the call made a new one, or "
                             "somebody deleted it") from None
    assert not path.exists(), "a probe only reads: this one made the file"
    seen = {"no file": nothing}
    for state, data in STATES.items():
        path.write_bytes(data)
        os.utime(path, (1, 1))
        seen[state] = probe(str(path))
        assert path.stat().st_mtime == 1, "a probe only reads: this one changed the file"
    for one, two in itertools.combinations(seen, 2):
        assert seen[one] != seen[two], f"it sees no difference between {one} and {two}"
    os.utime(path, (2, 2))
    assert probe(str(path)) == seen[state], "the same bytes at another time look different"


LEARNED = {"judge_call": check_verdicts, "hash_file": check_probe}


@pytest.mark.parametrize("name", LEARNED)
def test_function(impl, name, tmp_path):
    assert hasattr(impl, name), f"the file has no function {name}"
    LEARNED[name](getattr(impl, name), tmp_path)


def begun(call):
    return call.started


def path_of(call):
    return Path(call.started.get("path", "/no file"))


def trust_the_size(call, probe=None):
    size, made = path_of(call).stat().st_size if path_of(call).is_file() else -1, len(NEW.encode())
    return "applied" if size == made else reference.judge_call(call, probe)


def doubt_nothing(call, probe=None):
    verdict = reference.judge_call(call, probe)
    return "not applied" if verdict.startswith("differs") else verdict


WRONG_VERDICTS = {  # name: (a wrong version, the misconception that the message names)
    "the chapter: always unknown": (lambda call, probe=None: chapter.LOST, "by its absence"),
    "not executed, for everything": (
        lambda call, probe=None: "not executed" if call.started or call.tracked else UNKNOWN,
        "claims more than a log can know"),
    "not started, for everything": (
        lambda call, probe=None: "not started" if call.started or call.tracked else UNKNOWN,
        "only says that it began"),
    "no started in any log": (
        lambda call, probe=None: reference.judge_call(call, probe) if begun(call)
        else "not started",
        "proves nothing by its absence"),
    "started means done": (
        lambda call, probe=None: "applied" if begun(call) else reference.judge_call(call, probe),
        "only says that it began"),
    "the file exists": (
        lambda call, probe=None: "applied" if path_of(call).is_file()
        else reference.judge_call(call, probe), "that it exists"),
    "the size is right": (trust_the_size, "the size"),
    "yes or no": (doubt_nothing, "neither as before nor as asked for"),
    "never looks": (lambda call, probe=None: reference.judge_call(call), "it is done"),
}


def read_print(path, read):
    """A probe of another kind."""
    return read(path) if os.path.exists(path) else "no file"


WRONG_PROBES = {
    "is it there": (os.path.exists, "an empty file and the old text"),
    "size": (lambda path: read_print(path, os.path.getsize), "same size"),
    "time": (lambda path: read_print(path, os.path.getmtime), "an empty file and the old text"),
    "text": (lambda path: read_print(path, lambda name: open(name, errors="replace").read()),
             "two lines and two lines of Windows"),
    "missing is empty": (lambda path: open(path, "rb").read() if os.path.exists(path) else b"",
                         "no file and an empty file"),
    "missing is an error": (lambda path: open(path, "rb").read(), "a missing file is a state"),
    "makes it": (lambda path: open(path, "ab+").read(), "made the file"),
}


def raise_stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("check", [check_verdicts, check_probe])
def test_check_rejects_the_stub(check, tmp_path):
    with pytest.raises(NotImplementedError):
        check(raise_stub, tmp_path)


@pytest.mark.parametrize("check, name", [(check_verdicts, name) for name in WRONG_VERDICTS]
                         + [(check_probe, name) for name in WRONG_PROBES])
def test_check_rejects(check, name, tmp_path):
    wrong, words = {**WRONG_VERDICTS, **WRONG_PROBES}[name]
    with pytest.raises(AssertionError, match=words):
        check(wrong, tmp_path)


# ── three worlds, one log: real kills before, in and after the effect ─────────────────────────────

CALLS = {
    "write_file": {"path": NAME, "content": NEW},
    "edit_file": {"path": NAME, "old": OLD, "new": NEW},
    "bash": {"command": f"printf 修 >> '{LEDGER}'"},
    "read_file": {"path": NAME},
    "pay": {"amount": 7},
}
MOMENTS = ("before it began", "before the effect", "in the middle", "after the effect")
WORLDS = {  # tool: the verdict for each moment
    "write_file": ("not started", "not applied", "not applied", "applied"),
    "edit_file": ("not started", "not applied", "not applied", "applied"),
    "bash": ("not started", UNKNOWN, UNKNOWN, UNKNOWN),
    "read_file": ("not started", "interrupted", "interrupted", "interrupted"),
    "pay": ("not started", UNKNOWN, UNKNOWN, UNKNOWN),
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def ask(call_id, name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def make_tools(module, dies=False):
    """The tools, and a payment: its effect is a line in a ledger, and no probe can see it."""
    tools = dict(module.TOOLS)

    @module.tool(tools)
    def pay(session, amount: int):
        """Pay an amount."""
        with open(Path(session.workspace) / LEDGER, "a", buffering=1) as ledger:
            ledger.write(f"paid 付款 {amount} 元\n")
            if dies:
                die()
    return tools


def arm(module, moment):
    """Make this process die at a moment of the first call: the real code, and a real SIGKILL."""
    append, edges = module.Session.append, {
        "before it began": ("started", "before"), "before the effect": ("started", "after"),
        "after the effect": ("tool", "before"), "after the result": ("tool", "after")}

    def append_or_die(session, record):
        kind = record.get("event") or record.get("role")
        if edges.get(moment) == (kind, "before"):
            die()
        append(session, record)
        if edges.get(moment) == (kind, "after"):
            die()
    module.Session.append = append_or_die
    begun = []

    def watch(event, arguments):
        # New bytes wait for their rename; a tool that reads opens its file.
        if event == "os.rename" or (event == "open" and str(arguments[0]).endswith(NAME)):
            caller = sys._getframe(1)
            while caller and caller.f_code.co_name not in ("read_file", "replace_file"):
                caller = caller.f_back
            begun.append(caller and die())
    if moment == "in the middle":
        sys.addaudithook(watch)


def kill_in_turn(module, folder, moment, *calls):
    """Take a turn with these calls in a child that dies in it; return the path of its log."""
    folder.mkdir(exist_ok=True)
    path = folder / "会话.jsonl"
    child = os.fork()
    if child == 0:
        try:
            arm(module, moment)
            with module.Session(path, folder) as session:
                tools = make_tools(module, moment == "in the middle")
                module.run_turn(session, "付 7 元 💰", lambda *_: {"tool_calls": [*calls]}, tools,
                                show=list)
        except BaseException:  # a child that lives on would run the rest of the tests too
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{moment} never came"
    return path


def one_call(tool, moment):
    arguments = dict(CALLS[tool])
    if (tool, moment) == ("bash", "in the middle"):
        arguments["command"] += f"; kill -9 $PPID; printf 改 >> '{LEDGER}'"
    return ask("c1", tool, arguments)


def resume(module, path, workspace=None):
    """Resume with a next prompt: the receipt, and what the model was sent."""
    sent, old = [], path.read_bytes()

    def model(messages, tools):
        sent.extend(messages)
        assert judge(messages) == []
        on_disk = [each.get("content") for each in module.read_jsonl(path)]
        assert "继续" in on_disk, "the prompt is not on disk before the request"
        return {"content": "好的 ✅"}
    with module.Session(path, workspace) as session:
        receipt = module.write_receipt(session)
        module.run_turn(session, "继续", model, show=list)
    assert path.read_bytes().startswith(old), "old bytes were changed"
    return receipt, sent, module.read_jsonl(path)[len(old.splitlines()):]


def check_verdict_everywhere(module, path, want, workspace=None):
    """The log, the receipt, the record on disk and the model's message carry the same verdict."""
    [call] = module.open_calls(module.read_jsonl(path))
    verdict = module.judge_call(call, module.hash_file)
    assert verdict.startswith(want), f"{verdict!r} is not {want!r}"
    receipt, sent, new = resume(module, path, workspace)
    assert f"call {call.name}: {want}" in receipt
    messages = [record for record in new if "role" in record]
    assert messages[0].get("verdict") == want, "the first new message is not the verdict"
    assert want in messages[0]["content"] and messages[1]["content"] == "继续"
    assert messages[0]["content"] in [message["content"] for message in sent]
    unfounded = (*FORBIDDEN, *(() if want == "not started" else ("before it", "not started")))
    for text in (verdict, receipt, messages[0]["content"]):
        assert not [words for words in unfounded if words in text], f"{text!r} claims too much"
    verdicts = [record for record in module.read_jsonl(path) if "verdict" in record]
    resume(module, path)
    again = [record for record in module.read_jsonl(path) if "verdict" in record]
    assert again == verdicts, "resumed twice, it was judged twice"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("tool", WORLDS)
def test_three_worlds(tool, moment, tmp_path):
    (tmp_path / NAME).write_text(OLD)
    path = kill_in_turn(reference, tmp_path, moment, one_call(tool, moment))
    check_verdict_everywhere(reference, path, WORLDS[tool][MOMENTS.index(moment)])


@pytest.mark.parametrize("tool", WORLDS)
def test_a_result_on_disk_needs_no_verdict(tool, tmp_path):
    (tmp_path / NAME).write_text(OLD)
    path = kill_in_turn(reference, tmp_path, "after the result", one_call(tool, ""))
    assert not reference.open_calls(reference.read_jsonl(path))
    assert not [record for record in resume(reference, path)[2] if "verdict" in record]


def test_each_call_of_a_batch_gets_its_own_verdict(tmp_path):
    calls = [ask("c1", "write_file", CALLS["write_file"]),
             ask("c2", "bash", {"command": "kill -9 $PPID"}), ask("c3", "pay", CALLS["pay"])]
    path = kill_in_turn(reference, tmp_path, "", *calls)
    _, sent, new = resume(reference, path)
    assert [record["verdict"] for record in new if "verdict" in record] == [UNKNOWN, "not started"]
    texts = [message["content"] for message in sent if message["role"] == "tool"]
    assert "wrote" in texts[0] and UNKNOWN in texts[1] and "not started" in texts[2]


# ── what the world may do between the crash and the resume ────────────────────────────────────────

def make_folder(path):
    path.unlink()
    path.mkdir()


AFTERWARDS = {  # what somebody else does to the file: (moment of the kill, deed, verdict)
    "changed": ("after the effect", lambda path: path.write_text(NEW + "x"), "differs"),
    "changed, same size": ("after the effect", lambda path: path.write_text(NEW[::-1]), "differs"),
    "changed before it": ("before the effect", lambda path: path.write_text("外"), "differs"),
    "deleted": ("after the effect", Path.unlink, "differs"),
    "undone": ("after the effect", lambda path: path.write_text(OLD), "not applied"),
    "done by hand": ("before the effect", lambda path: path.write_text(NEW), "applied"),
    "touched": ("after the effect", lambda path: os.utime(path, (1, 1)), "applied"),
    "a folder in its place": ("after the effect", make_folder, UNKNOWN + "|differs"),
}


@pytest.mark.parametrize("deed", AFTERWARDS)
def test_somebody_else_was_there(deed, tmp_path):
    moment, act, want = AFTERWARDS[deed]
    (tmp_path / NAME).write_text(OLD)
    path = kill_in_turn(reference, tmp_path, moment, one_call("write_file", moment))
    act(tmp_path / NAME)
    _, _, new = resume(reference, path)
    assert [record["verdict"] in want.split("|") for record in new if "verdict" in record] == [True]


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_write_of_identical_content_is_applied(moment, tmp_path):
    (tmp_path / NAME).write_text(NEW)
    path = kill_in_turn(reference, tmp_path, moment, one_call("write_file", moment))
    check_verdict_everywhere(reference, path, "applied")


@pytest.mark.parametrize("moment, want", [*zip(MOMENTS, WORLDS["write_file"])][1:])
def test_the_probe_of_a_new_file_looks_where_the_call_ran(moment, want, tmp_path):
    elsewhere = tmp_path / "另一个"
    elsewhere.mkdir()
    (elsewhere / NAME).write_text("not this one")
    path = kill_in_turn(reference, tmp_path / "workspace", moment, one_call("write_file", moment))
    check_verdict_everywhere(reference, path, want, elsewhere)


def test_a_pipe_in_place_of_the_file_does_not_hold_the_resume(tmp_path):
    path = kill_in_turn(reference, tmp_path, MOMENTS[3], one_call("write_file", MOMENTS[3]))
    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME)
    ended = run_script("--rehearse", "--resume", str(path), timeout=5)
    assert "call write_file: " in ended.stderr and ": applied" not in ended.stderr


def run_script(*arguments, timeout=60):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, input="")


def test_a_probe_that_cannot_look_claims_nothing(tmp_path):
    workspace = tmp_path / "锁"
    path = kill_in_turn(reference, workspace, MOMENTS[3], one_call("write_file", MOMENTS[3]))
    [call] = reference.open_calls(reference.read_jsonl(path))
    workspace.chmod(0)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(Exception):
            if os.geteuid() == 0:  # modes are no obstacle for root
                os.setuid(65534)
            verdict = reference.judge_call(call, reference.hash_file)
            os._exit(0 if verdict.startswith(UNKNOWN) else 3)
        os._exit(4)
    status = os.waitpid(child, 0)[1]
    workspace.chmod(0o700)
    assert os.waitstatus_to_exitcode(status) == 0, "it may not look, and yet says what is there"


# ── who wrote the log, and which calls leave no record ────────────────────────────────────────────

def said(call_id="c1", **more):
    return {"role": "assistant", "content": None, "tool_calls": [ask(call_id, "pay", {})], **more}


BLOCKS = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "pay",
                                            "input": {"amount": 7}}]}
FOREIGN = {  # what another program wrote: (into our file?, records)
    "a log of its own": (False, [{"role": "user", "content": "付款"}, said()]),
    "a log of its own, with times": (
        False, [{"role": "user", "content": "付", "ts": 1}, said(ts=2)]),
    "the chapter's blocks": (False, [{"role": "user", "content": "付款"}, BLOCKS]),
    "a log of its own, opened as we do": (
        False, [{"event": "session", "format": 1, "ts": 1}, said(ts=2), {"event": "started", "ts": 3}]),
    "a mark that is none": (False, [said(tracked="yes")]),
    "on in our file": (True, [{"role": "user", "content": "付款"}, said()]),
    "on in our file, with times": (True, [{"role": "user", "content": "付", "ts": 1}, said(ts=2)]),
    "on in our file, in blocks": (True, [BLOCKS]),
}


def write_lines(path, records):
    with open(path, "a") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_foreign_log(module, folder, name):
    ours, records = FOREIGN[name]
    path = folder / "外来.jsonl"
    if ours:
        with module.Session(path, folder) as session:
            module.run_turn(session, "你好", lambda messages, tools: {"content": "好"}, show=list)
    write_lines(path, records)
    return path


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_log_proves_nothing_by_what_it_lacks(name, tmp_path):
    check_verdict_everywhere(reference, write_foreign_log(reference, tmp_path, name), UNKNOWN)


def test_our_own_calls_after_a_foreign_log_are_known_again(tmp_path):
    path = write_foreign_log(reference, tmp_path, "a log of its own")
    path.rename(tmp_path / "会话.jsonl")
    path = kill_in_turn(reference, tmp_path, MOMENTS[0], ask("c2", "pay", {"amount": 7}))
    _, _, new = resume(reference, path)
    assert [record["verdict"] for record in new if "verdict" in record] == ["not started"]


@pytest.mark.parametrize("moment, want", [*zip(MOMENTS, WORLDS["pay"])][:2])
def test_an_id_used_again_is_another_call(moment, want, tmp_path):
    kill_in_turn(reference, tmp_path, "after the result", one_call("pay", ""))
    path = kill_in_turn(reference, tmp_path, moment, one_call("pay", ""))
    check_verdict_everywhere(reference, path, want)


def refuse(name, arguments):
    return "不行"


NEVER_BEGUN = {  # name: (the call, more of the reply, approve)
    "refused": (ask("c1", "bash", {"command": "touch 不"}), {}, refuse),
    "outside": (ask("c1", "write_file", {"path": "../外", "content": ""}), {}, None),
    "no match": (ask("c1", "edit_file", {"path": NAME, "old": "没有", "new": ""}), {}, None),
    "bad arguments": (ask("c1", "write_file", {"paht": NAME}), {}, None),
    "unknown tool": (ask("c1", "no_such_tool", {}), {}, None),
    "cut off": (ask("c1", "bash", {"command": "touch 不"}), {"finish_reason": "length"}, None),
}


@pytest.mark.parametrize("name", NEVER_BEGUN)
def test_what_never_began_leaves_no_started(name, tmp_path):
    call, more, approve = NEVER_BEGUN[name]
    (tmp_path / NAME).write_text(OLD)
    replies = [{"tool_calls": [call], **more}, {"content": "好"}]
    with reference.Session(tmp_path / "s.jsonl", tmp_path) as session:
        reference.run_turn(session, "做", lambda *_: replies.pop(0), approve=approve, show=list)
    records = reference.read_jsonl(tmp_path / "s.jsonl")
    assert [record for record in records if record.get("role") == "tool"]
    assert not [record for record in records if record.get("event") == "started"]


# ── on disk, and in which order ───────────────────────────────────────────────────────────────────

def check_started_is_on_disk_before_the_effect(module, folder):
    """A tool that reads the log while it runs finds its own call begun there."""
    tools, path, seen = {}, folder / "s.jsonl", []

    @module.tool(tools)
    def witness(session):
        seen.extend(module.read_jsonl(path))
    replies = [{"tool_calls": [ask("见证", "witness", {})]}, {"content": "好"}]
    with module.Session(path, folder) as session:
        module.run_turn(session, "看", lambda *_: replies.pop(0), tools, show=list)
    begun = [record for record in seen if record.get("event") == "started"]
    assert [record["tool_call_id"] for record in begun] == ["见证"], "no `started` before the effect"


def test_started_is_on_disk_before_the_effect(tmp_path):
    check_started_is_on_disk_before_the_effect(reference, tmp_path)


def test_resume_and_quit_leaves_the_file_byte_identical(tmp_path):
    path = kill_in_turn(reference, tmp_path, MOMENTS[2], one_call("pay", MOMENTS[2]))
    os.utime(path, (1, 1))
    before = path.read_bytes()
    ended = run_script("--rehearse", "--resume", str(path))
    assert ended.returncode == 0 and f"call pay: {UNKNOWN}" in ended.stderr
    assert path.read_bytes() == before and path.stat().st_mtime == 1


def test_a_real_result_beats_the_verdict_and_words_do_not_make_one(tmp_path):
    path = kill_in_turn(reference, tmp_path, MOMENTS[2], one_call("pay", MOMENTS[2]))
    resume(reference, path)
    real = {"role": "tool", "tool_call_id": "c1", "content": "outcome unknown: 银行 says 收到 ✅"}
    reference.append_jsonl(path, real)
    reference.append_jsonl(path, {**real, "content": "a second result"})
    messages = reference.load_session(path)
    assert judge([*messages, {"role": "user", "content": "好"}]) == []
    assert [each["content"] for each in messages if each["role"] == "tool"] == [real["content"]]


# ── the protections, one by one, taken out ────────────────────────────────────────────────────────

def careful_model(messages, tools):
    """Does what the verdict says: calls again what never ran, and looks where nobody knows."""
    last = messages[-1] if messages[-1]["role"] == "tool" else {"content": ""}
    told = [each["content"] for each in messages if each["role"] == "tool"]
    number = f"c{len(messages)}"
    if not told or (last["content"] == "" and "not started" in told[-1]):
        return {"tool_calls": [ask(number, "pay", CALLS["pay"])]}
    if last["content"] == "" and UNKNOWN in told[-1]:
        return {"tool_calls": [ask(number, "read_file", {"path": LEDGER})]}
    return {"content": "付过了 ✅"}


def check_payment_is_made_once(module, folder):
    """Killed after the effect and resumed by a model that believes the verdict: one payment."""
    path = kill_in_turn(module, folder, "in the middle", one_call("pay", ""))
    with module.Session(path) as session:
        module.run_turn(session, "继续", careful_model, make_tools(module), show=list)
    assert "付过了" in module.load_session(path)[-1]["content"]
    assert (folder / LEDGER).read_text().count("付款") == 1, "paid twice: the verdict was wrong"


def check_write_is_judged(module, folder):
    path = kill_in_turn(module, folder / "here", MOMENTS[3], one_call("write_file", ""))
    check_verdict_everywhere(module, path, "applied", folder)


def check_foreign_log(module, folder):
    check_verdict_everywhere(module, write_foreign_log(module, folder, "on in our file"), UNKNOWN)


def test_payment_is_made_once(tmp_path):
    check_payment_is_made_once(reference, tmp_path)


REMOVALS = {  # protection: (its text in the script, what stands there instead, check, its words)
    "started": ("session.append(attempt(make_intent, call, tool, *change))", "pass",
                check_payment_is_made_once, "paid twice"),
    "started before the effect": (
        "session.append(attempt(make_intent, call, tool, *change))", "pass",
        check_started_is_on_disk_before_the_effect, "no `started`"),
    "the look at the file": ("verdict = judge_call(call, hash_file)", "verdict = judge_call(call)",
                             check_write_is_judged, "not the verdict"),
    "where the call ran": ('"path": str(path)', '"path": path.name',
                           check_write_is_judged, "is not 'applied'"),
    "whose log it is": ("NOT_STARTED if call.tracked else UNKNOWN", "NOT_STARTED",
                        check_foreign_log, "is not 'outcome unknown'"),
    "the verdict on disk": ("        settle_calls(session)\n", "",
                            check_write_is_judged, "the first new message"),
    "the verdict's own field": ('{**result, "verdict": verdict.partition(":")[0]}', "result",
                                check_write_is_judged, "the first new message"),
}


@pytest.mark.parametrize("protection", REMOVALS)
def test_check_sees_that_a_protection_is_gone(protection, tmp_path):
    old, new, check, words = REMOVALS[protection]
    source = SCRIPT.read_text()
    assert source.count(old) == 1, f"the script holds {old!r} {source.count(old)} times, not once"
    broken = types.ModuleType("broken")
    broken.__file__ = str(SCRIPT)
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken.__dict__)
    with pytest.raises(AssertionError, match=words):
        check(broken, tmp_path)

"""Claim: the command line does its jobs on a fresh machine, and says plainly what it cannot do."""

import json
import os
import pty
import re
import select
import statistics
import subprocess
import sys
import time

import pytest
from strict_server import StrictServer
from test_models import (SCRIPT, break_script, call_tool, find_log, folder, list_stages, make_env,
                         read_log, read_results, run_forked, run_script)

import tinyharness

BARE = (sys.executable, "-I", "-S")  # no package can be imported, no variable is obeyed
SHOUT = "\x1b[31m红\x07\x9b2J"  # what a terminal would obey


# ─── the README's jobs ───────────────────────────────────────────────────────────────────────────

def check_bare_run(script, folder):
    done = run_script(folder, script=script, python=BARE)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and all(name in lines[0] for name in (
        "OPENAI_API_KEY", "OPENAI_BASE_URL", "rehearsal")), lines
    workspace = folder / ".tinyharness" / "demo" / find_log(folder).stem
    said = [record.get("content") or "" for record in read_log(folder)]
    tests = [text for text in said if "[exit code" in text]
    assert "[exit code 1]" in tests[0] and "[exit code 0]" in tests[-1], "it must be broken first"
    subprocess.run([sys.executable, "-B", "test_parse_date.py"], cwd=workspace, check=True)
    check_paste(folder, done.stdout.splitlines()[-1])


def check_paste(folder, line):
    # A fresh machine has python3; that it has a `python` in its PATH is not promised.
    (folder / "bin").mkdir()
    for name in ("bash", "python3"):
        (folder / "bin" / name).symlink_to(subprocess.check_output(
            ["bash", "-c", f"command -v {name}"], text=True).strip())
    before, command = find_log(folder).read_bytes(), line.partition("to go on: ")[2]
    env = make_env(folder) | {"PATH": str(folder / "bin")}
    done = subprocess.run([str(folder / "bin" / "bash"), "-c", command], cwd=folder, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "state: done" in done.stderr, (command, done.stderr)
    assert find_log(folder).read_bytes() == before


def test_without_key_and_package_the_rehearsal_repairs_a_broken_file(folder):
    check_bare_run(SCRIPT, folder)


def test_bare_run_of_a_script_that_lies_in_the_folder_itself(folder):
    check_bare_run(break_script(folder).relative_to(folder), folder)


def check_demo(script, folder):
    (folder / "openai.py").write_text("raise SystemExit('the demo needs no package')")
    done = run_script(folder, "--demo", script=script, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stdout and "applied" in done.stderr, "the kill and verdict are shown"
    records = read_log(folder)
    pids = [record["pid"] for record in records if "pid" in record]
    assert len(set(pids)) == 2, "two processes wrote: the one that was killed, and the next"
    verdicts = [record["verdict"] for record in records if "verdict" in record]
    assert verdicts == ["applied"], verdicts
    text = (folder / ".tinyharness" / "demo" / find_log(folder).stem / "parse_date.py").read_text()
    assert text == list_stages(tinyharness)[-1], "each edit is in place exactly once"
    return done.stdout.splitlines() + done.stderr.splitlines()


def test_demo_is_killed_and_resumed_with_each_edit_applied_once(folder):
    check_demo(SCRIPT, folder)


def test_demo_is_short_enough_to_read(folder):
    assert 10 <= len(check_demo(SCRIPT, folder)) <= 16


# ─── where the prompt comes from ─────────────────────────────────────────────────────────────────

KEY = {"OPENAI_API_KEY": "sk-not-for-anyone", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
CLOSED = ("bash", "-c", 'exec "$@" <&-', "closed", sys.executable)
PROMPTS = {  # kind: (arguments, standard input, python, variables, exit code, words in the output)
    "argument": (["修一下 🐞"], "", BARE, {}, 0, "rehearsal model: a script"),
    "standard input": ([], "修一下 🐞\n", BARE, {}, 0, "rehearsal model: a script"),
    "empty input": ([], "", BARE, {}, 0, "The test passes"),
    "blank input": ([], " \n\t\n", BARE, {}, 0, "The test passes"),
    "closed input": ([], "", CLOSED, {}, 0, "The test passes"),
    "empty input with a key": ([], "", (sys.executable,), KEY, 2, "prompt"),
    "closed input with a key": ([], "", CLOSED, KEY, 2, "prompt"),
    "rehearsal with a key": (["--rehearse"], "", (sys.executable,), KEY, 0, "The test passes"),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_prompt_comes_from(kind, folder):
    arguments, stdin, python, env, code, words = PROMPTS[kind]
    done = run_script(folder, *arguments, stdin=stdin, python=python, **env)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done.stderr
    if code:
        assert len(done.stderr.splitlines()) == 1 and not list(folder.rglob("*.jsonl"))
    elif "修一下" in (arguments or [stdin])[0]:
        assert "修一下 🐞" in find_log(folder).read_text(encoding="utf-8"), "a person can read it"


@pytest.mark.parametrize("stdin, python", [("", BARE), (" \n\n", BARE), ("", CLOSED)])
def test_nothing_to_say_to_a_resumed_session_leaves_its_file_alone(stdin, python, folder):
    run_script(folder, python=BARE)
    path, before = find_log(folder), find_log(folder).read_bytes()
    written = path.stat().st_mtime_ns
    done = run_script(folder, "--resume", path, stdin=stdin, python=python)
    assert done.returncode == 0 and "state: done" in done.stderr and done.stdout == ""
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, written)


def test_invalid_bytes_in_the_prompt_become_replacement_characters(folder):
    done = run_script(folder, b"\xff\xed\xa0\xbd \xe4\xbf\xae", python=BARE)
    assert done.returncode == 0, done.stderr
    said = [record["content"] for record in read_log(folder) if record.get("role") == "user"]
    assert said[0].startswith("\ufffd") and said[0].endswith(" 修")


def test_missing_workspace_is_one_line_and_leaves_no_session_behind(folder):
    done = run_script(folder, "--workspace", "没有", "修", python=BARE)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "没有" in done.stderr and "--workspace" in done.stderr
    assert not list(folder.rglob("*.jsonl")), "`--resume last` would open an empty session"


def test_workspace_named_in_bytes_that_are_no_text_can_be_used_and_must_be_named_again(folder):
    """A log is UTF-8, so it cannot keep such a name: the line says so, and an option helps."""
    place = os.fsencode(folder) + b"/\xff\xfe"
    os.mkdir(place)
    with StrictServer([{"content": "好"}] * 2) as server:
        assert run_script(place, "做", server=server).returncode == 0
        lost = run_script(place, "--resume", "last", "做", server=server)
        assert lost.returncode == 2 and "--workspace" in lost.stderr, lost.stderr
        found = run_script(place, "--resume", "last", "--workspace", ".", "做", server=server)
        assert found.returncode == 0, found.stderr


# ─── approval ────────────────────────────────────────────────────────────────────────────────────

CALLS = [call_tool("read_file", "r", path="旧.txt"),
         call_tool("write_file", "w", path="新.txt", content="新"),
         call_tool("bash", "b", command="echo x >b"),
         call_tool("edit_file", "e", path="旧.txt", old="旧", new="换"),
         call_tool("bash", "a", command="echo x >a"), call_tool("bash", "z", command="echo x >z")]
WORK = [{"content": None, "tool_calls": CALLS}, {"content": "好了"}]


def list_effects(folder) -> set:
    """The ids of the calls whose effect is in the folder."""
    found = {"w": (folder / "新.txt").exists(), "e": (folder / "旧.txt").read_text() == "换"}
    return {key for key, there in found.items() if there} | {
        name for name in "baz" if (folder / name).exists()}


def check_approval(script, folder):
    for options, effects in ([], set()), (["--yes"], set("webaz")):
        (folder / "旧.txt").write_text("旧", encoding="utf-8")
        with StrictServer(WORK) as server:
            done = run_forked(folder, *options, "改", server=server, script=script)
        assert done.returncode == 0, done.stderr
        results = read_results(server)
        refused = {key for key, text in results.items() if text.startswith("refused")}
        assert results["r"] == "旧" and refused == set("webaz") - effects, results
        assert list_effects(folder) == effects


def test_without_terminal_and_without_yes_the_model_reads_a_refusal(folder):
    check_approval(SCRIPT, folder)


def check_only_the_rehearsal_is_trusted(script, folder):
    path, elsewhere = folder / ".tinyharness" / "sessions" / "獭.jsonl", folder / "别处"
    workspace = folder / ".tinyharness" / "demo" / "獭"
    opened = {"event": "session", "format": 1, "cwd": str(workspace), "model": "rehearsal"}
    for record in opened, {"role": "user", "content": tinyharness.TASK}:
        tinyharness.append_jsonl(path, record)
    tinyharness.make_demo(workspace)
    elsewhere.mkdir()
    done = run_script(elsewhere, "--resume", path, "continue", python=BARE, script=script)
    assert done.returncode == 0 and "The test passes" in done.stdout, done.stdout
    # Its own demo workspace makes no other model trustworthy, whatever a session file says.
    with StrictServer([{"content": None, "tool_calls": [CALLS[2]]}, {"content": "好"}]) as server:
        options = ["--resume", path, "--model", "m"]
        done = run_forked(folder, *options, "做", server=server, script=script)
    assert done.returncode == 0 and read_results(server)["b"].startswith("refused"), done.stdout


def test_only_the_rehearsal_works_in_its_demo_workspace_without_approval(folder):
    check_only_the_rehearsal_is_trusted(SCRIPT, folder)


def talk(folder, dialogue, *arguments, server, script=SCRIPT, **env) -> str:
    """All that a terminal showed while the texts of a dialogue were awaited, and answers typed."""
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, script, *arguments], cwd=folder, env=make_env(folder, server, **env),
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    seen, place, steps = b"", 0, [(wanted.encode(), typed) for wanted, typed in dialogue]
    deadline = time.monotonic() + 30
    try:
        while select.select([keyboard], [], [], max(deadline - time.monotonic(), 0))[0]:
            try:
                seen += os.read(keyboard, 4096)
            except OSError:  # the terminal closed with its last process
                break
            if steps and steps[0][0] in seen[place:]:
                place = len(seen)
                os.write(keyboard, steps.pop(0)[1].encode())
    finally:
        process.kill()
        os.close(keyboard)
    assert not steps and process.wait() in (0, -9), (steps, seen.decode("utf-8", "replace"))
    return seen.decode("utf-8", "replace")


def check_terminal(script, folder):
    (folder / "旧.txt").write_text("旧", encoding="utf-8")
    asked = [("[y/N/a]", answer) for answer in ("y\n", "n\n", "\n", "a\n")]
    with StrictServer(WORK) as server:
        seen = talk(folder, [("> ", "改\n"), *asked, ("好了", ""), ("> ", "\x04")], server=server,
                    script=script, NO_COLOR="1")
    assert seen.count("[y/N/a]") == 4, "read_file is never asked for, and nothing after `a`"
    assert list_effects(folder) == set("waz")
    assert not re.search(r"\x1b\[[\d;]*m", seen), "NO_COLOR is honoured"


def test_a_person_is_asked_for_each_call_that_changes_something(folder):
    check_terminal(SCRIPT, folder)


# ─── what is printed, and where to ───────────────────────────────────────────────────────────────

def check_help_time(script, folder):
    whole = {"help": [script, "--help"], "pass": ["-c", "pass"]}
    ratios = []
    for _ in range(3):  # a busy machine may spoil a round
        seconds = {name: [] for name in whole}
        for name in [*whole] * 9:
            began = time.perf_counter()
            subprocess.run([sys.executable, *whole[name]], stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - began)
        ratios.append(statistics.median(seconds["help"]) / statistics.median(seconds["pass"]))
        if ratios[-1] <= 2.5:
            return
        if ratios[-1] > 4:
            break
    pytest.fail(f"--help takes {ratios} times as long as starting Python")


def test_help_takes_at_most_two_and_a_half_times_as_long_as_starting_python(folder):
    check_help_time(SCRIPT, folder)


def test_help_names_each_option_and_no_other(folder):
    done = run_script(folder, "--help", python=BARE)
    assert done.returncode == 0 and list(folder.iterdir()) == []
    known = {f"--{name}" for name in vars(tinyharness.parse_options([])) if name != "prompt"}
    assert set(re.findall(r"--\w+", done.stdout)) == known | {"--version"} and len(known) >= 8
    for option in known:  # the source was read right: the command line takes each
        wrong = run_script(folder, option, "--no-such-option", python=BARE).stderr
        assert f"unrecognized arguments: {option}" not in wrong, wrong


def check_escapes(script, folder):
    shout = call_tool("bash", command=f"printf '{SHOUT}'; exit 3")
    wrong = {"status": 400, "error": f"no {SHOUT}"}
    with StrictServer([{"content": SHOUT, "tool_calls": [shout]}, wrong]) as server:
        done = run_forked(folder, "--yes", SHOUT, server=server, script=script)
    assert done.returncode == 1 and "\\x1b" in done.stdout and "红" in done.stdout
    path = find_log(folder)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"role": "tool", "tool_call_id": SHOUT, "content": SHOUT}) + "\n")
        file.write(json.dumps({"role": "assistant", "tool_calls": [call_tool(SHOUT)]}) + "\n")
    again = run_forked(folder, "--resume", path, script=script)
    shown = done.stdout + done.stderr + again.stderr
    assert again.returncode == 0 and not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


def test_control_characters_are_escaped(folder):
    check_escapes(SCRIPT, folder)


LOCALES = [{"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
           {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]


def check_c_locale(script, folder):
    for number, locale in enumerate(LOCALES):
        place, reply = folder / str(number), {"content": "完成 ✅"}
        place.mkdir()
        with StrictServer([reply]) as server:
            done = run_script(place, "修复 🐞", server=server, script=script, **locale)
        assert done.returncode == 0 and "\\u5b8c" in done.stdout, done.stderr
        log = find_log(place).read_text(encoding="utf-8")
        assert '"修复 🐞"' in log and '"完成 ✅"' in log
        done = run_script(place, "--resume", "last", script=script, **locale)
        assert done.returncode == 0 and "state: done" in done.stderr


def test_output_works_in_a_c_locale(folder):
    check_c_locale(SCRIPT, folder)


def check_closed_output(script, folder):
    # The reader goes while the reply is on its way: between two writes, or between two pieces.
    reply = {"content": "一\n二\n" * 20_000}
    with StrictServer([reply, {"content": "好"}]) as server:
        for arguments, first, env in ([], "read_file", {}), (["说"], "一", make_env(folder, server)):
            close_early(script, folder, arguments, first, env)
            done = run_script(folder, "--resume", "last", "continue", script=script, **env)
            assert done.returncode == 0 and ("好" if env else "The test passes") in done.stdout


def close_early(script, folder, arguments, first, env):
    command, env = [sys.executable, script, *arguments], make_env(folder, **env)
    with subprocess.Popen(command, cwd=folder, env=env, encoding="utf-8", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert first in process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read()
    assert "Traceback" not in complaint and "Exception ignored" not in complaint, complaint


def test_output_that_nobody_reads_ends_without_a_traceback(folder):
    check_closed_output(SCRIPT, folder)


def check_deleted_in_use(script, folder):
    def delete_and_fail(messages, tools):
        find_log(folder).unlink()
        return {"status": 400, "error": "没有"}

    with StrictServer(delete_and_fail) as server:
        done = run_forked(folder, "做 🐞", server=server, script=script)
    assert done.returncode == 1 and "to go on: " in done.stderr, done.stderr
    texts = [record.get("content") for path in folder.rglob("*.jsonl")
             for record in tinyharness.read_jsonl(path)]
    assert "做 🐞" in texts, "what was said is nowhere any more"


def test_a_log_that_is_deleted_while_a_request_fails_is_written_anew(folder):
    check_deleted_in_use(SCRIPT, folder)


# ─── as a library ────────────────────────────────────────────────────────────────────────────────

IMPORTER = """
import os, runpy, signal, sys
sys.modules["fcntl"] = None  # a system without it
handlers = [signal.getsignal(number) for number in signal.valid_signals()]
library = runpy.run_path(sys.argv[1], run_name="library")
assert handlers == [signal.getsignal(number) for number in signal.valid_signals()], "a handler"
assert os.listdir() == [], "a file"
assert not {"openai", "httpx"} & set(sys.modules), "what only a provider needs"
with library["Session"]("无锁.jsonl") as session:
    session.append({"role": "user", "content": "修复 🐞"})
assert library["load_session"]("无锁.jsonl") == [{"role": "user", "content": "修复 🐞"}]
"""


def check_import(script, folder):
    done = subprocess.run([*BARE, "-X", "utf8", "-c", IMPORTER, script, "--help"], cwd=folder,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr


def test_import_has_no_side_effects_and_needs_no_fcntl(folder):
    check_import(SCRIPT, folder)


# ─── each protection is seen when it is gone ─────────────────────────────────────────────────────

REMOVED = {  # name: (the check that has to see it, the protection, what is there instead)
    "the word about the two variables": (
        check_bare_run, '"No OPENAI_API_KEY or OPENAI_BASE_URL is set"', '"There is no model"'),
    "the real kill of the demo": (
        check_demo, "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"),
    "the question before a change": (check_approval, "if approve and not", "if None and not"),
    "distrust of other models": (
        check_only_the_rehearsal_is_trusted, '    if session.model != "rehearsal":\n',
        '    options.yes |= session.workspace.endswith(demo)\n    if session.model != "rehearsal":\n'),
    "the exception for reading": (check_approval, "not tool.read_only and", "True and"),
    "NO_COLOR": (
        check_terminal, "print(text, end=end,", 'print(f"\\x1b[32m{text}\\x1b[0m", end=end,'),
    "help before the imports": (
        check_help_time, "import sys\nif", "import argparse, subprocess, sys, typing\n\nif"),
    "escapes": (check_escapes, 'f"\\\\x{ord(found[0]):02x}"', "found[0]"),
    "output in any encoding": (
        check_c_locale, 'stream.reconfigure(errors="backslashreplace")', "pass"),
    "the end of the pipe": (
        check_closed_output, "except OSError:  # nobody reads on", "except EOFError:  #"),
    "the memory of a log that is gone": (check_deleted_in_use, " or session.records", ""),
    "import without fcntl": (check_import, "suppress(ImportError):  # Windows", "suppress(EOFError):  #"),
    "import without exit": (check_import, 'if __name__ == "__main__" and {', "if {"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVED)
def test_the_check_sees_that_this_is_removed(name, folder, tmp_path):
    check, old, new = REMOVED[name]
    script = break_script(tmp_path / "broken", (old, new))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(script, folder)

"""Claim: a disk that fails stops the turn with one plain line; later it goes on, nothing lost."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from crash_tools import (SCRIPT, Place, fast_folder, load_module, needs_strace, run_served,
                         write_copy)
from strict_server import StrictServer, judge

REFERENCE = load_module(SCRIPT)
LOG = "sessions/修复.jsonl"  # in the folder of a place
LAST = 23  # the records of a whole rehearsal that is resumed, the one that was there included
# What strace does to the n-th call of a kind on the log: once, or from then on.
FAULTS = {"the disk is full": "write:error=ENOSPC:when={}+",
          "the disk is full for a moment": "write:error=ENOSPC:when={}",
          "a write fails": "write:error=EIO:when={}",
          "a sync fails": "fdatasync:error=EIO:when={}",
          "no sync works any more": "fdatasync:error=EIO:when={}+",
          "the file system turns read-only": "openat:error=EROFS:when={}+"}
# A resume opens the log twice before it appends: to hold it, and to read it.
FIRST = {"openat": 3}
LIMIT = """import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])"""


class FaultyPlace(Place):
    """A place with a session that waits for its task, and a tool that counts its runs."""

    def __init__(self, folder, script=SCRIPT):
        super().__init__(folder, load_module(script))
        self.path, self.runs = self.folder / LOG, self.workspace / "runs"
        self.module.append_jsonl(self.path, {
            "event": "session", "format": 1, "cwd": str(self.workspace), "model": "rehearsal",
            "ts": 1.5})
        # What happens to the log happens while the tool runs.
        (self.workspace / "test_parse_date.py").write_text(
            'import os\nopen("runs", "a").write("x")\nos.system(os.environ.get("TAMPER", "true"))\n'
            + self.module.TEST, encoding="utf-8")

    def run(self, *arguments, before=(), **more):
        """Run the script to its end; `before` is a command that runs it."""
        command = [*before, sys.executable, *self.arguments(*arguments)]
        environment = self.environment(LOG=LOG, **more)
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20,
                             cwd=self.folder, env=environment)
        run.out, run.err = run.stdout.decode(), run.stderr.decode()
        return run

    def start(self, *arguments, **more):
        """Take the rehearsal's turn in the session that waits."""
        return self.run("--resume", str(self.path), *arguments, self.module.TASK, **more)

    def start_faulty(self, fault, number):
        """Take the turn under strace, with a fault at the n-th call on the log."""
        name = fault.partition(":")[0]
        inject = fault.format(number - 1 + FIRST.get(name, 1))
        tracer = ["strace", "-o", os.devnull, "-P", str(self.path), "-e", f"trace={name}",
                  "-e", f"inject={inject}", "-e", "signal=none"]
        return self.start(before=tracer)

    def count_effects(self):
        """How often the test ran, and how many edits are in the file."""
        return len(self.runs.read_text()) if self.runs.exists() else 0, self.stage()


def count_started(records):
    """The effects that the log announces: runs of the test, and edits."""
    tools = [record["tool"] for record in records if record.get("event") == "started"]
    return tools.count("bash"), tools.count("edit_file")


@pytest.fixture
def folder():
    """A folder in memory: no test here looks at what a power loss would leave."""
    with fast_folder() as path:
        yield path


@pytest.fixture(scope="module")
def whole():
    """The records of a turn that nothing disturbs."""
    with fast_folder() as folder:
        place = FaultyPlace(folder)
        assert place.start().returncode == 0
        records = place.module.read_jsonl(place.path)
    assert len(records) == LAST and count_started(records) == (3, 2)
    return records


# ─── what must be true ───────────────────────────────────────────────────────────────────────────

def is_plain(line):
    """Whether a line says what failed."""
    return line.startswith("tinyharness: ")


def read_plain_line(run):
    """The one line that says what failed."""
    assert "Traceback" not in run.err, f"a traceback instead of a plain line: {run.err[-300:]}"
    assert run.returncode == 1, f"exit code {run.returncode}: the fault was not noticed"
    plain = [*filter(is_plain, run.err.splitlines())]
    assert len(plain) == 1, f"one plain line must say what failed, not {plain}"
    return plain[0]


def check_stopped(place, run, on_disk):
    """One plain line and the command; no effect but those begun by what was on disk before."""
    plain, lines = read_plain_line(run), run.err.splitlines()
    assert lines[-2] == plain and lines[-1].startswith("to go on: "), (
        f"the line and the command must come last: {lines[-3:]}")
    assert str(place.path) in plain, f"the line does not say which file: {plain}"
    assert place.count_effects() == count_started(on_disk), (
        "a tool ran whose call, or whose `started`, is not on disk")


def describe_record(record):
    """What a record is, without what differs from run to run."""
    return record.get("role"), record.get("event"), str(record.get("content"))[:40]


def check_kept(place, on_disk):
    """What was on disk before the fault is there, in the same order."""
    found = place.module.read_jsonl(place.path)[:len(on_disk)]
    assert [*map(describe_record, found)] == [*map(describe_record, on_disk)], (
        "a record that was on disk is lost")
    messages = place.module.load_session(place.path)
    assert not messages or judge(messages) == []


def check_goes_on(place, run, served=False):
    """With the fault gone, the printed command ends the task; `served`: through a strict server."""
    before, arguments = place.path.read_bytes(), shlex.split(run.err.splitlines()[-1])[5:]
    records = place.module.read_jsonl(place.path)
    heard = any(record.get("role") == "user" for record in records)
    prompt = "continue" if heard else place.module.TASK
    with StrictServer(place.module.rehearsal_model) as server:
        again = (run_served(place, server, *arguments, prompt) if served
                 else place.run(*arguments, prompt))
    assert not server.refusals, f"the strict server refused: {server.refusals[0][1]}"
    assert again.returncode == 0, f"the session does not go on: {again.err}"
    assert place.path.read_bytes().startswith(before), "old bytes must be a prefix of the new file"
    assert place.stage() == 2 and "is repaired" in again.out, "each edit must be in place once"
    messages = place.module.load_session(place.path)
    sent = [message["content"] for message in messages]
    assert judge(messages) == [] and bool(server.requests) == served
    lost = [record["content"] for record in records
            if record.get("role") in ("user", "tool") and record["content"] not in sent]
    assert lost == [], f"what was on disk is not sent any more: {lost}"


def check_fault(folder, whole, fault, number, script=SCRIPT, served=False):
    """The whole story of one fault: stopped, kept, gone on."""
    place = FaultyPlace(folder, script)
    run = place.start_faulty(FAULTS[fault], number)
    check_stopped(place, run, whole[:number])
    check_kept(place, whole[:number])
    check_goes_on(place, run, served)


def check_limit(folder, whole, cut, script=SCRIPT):
    """A limit on the file's size: the system takes a part of a record, and refuses the rest."""
    place = FaultyPlace(folder, script)
    run = place.start(before=[sys.executable, "-c", LIMIT, str(cut(place.path.stat().st_size))])
    on_disk = whole[:place.path.read_bytes().count(b"\n")]
    check_stopped(place, run, on_disk)
    check_kept(place, on_disk)
    check_goes_on(place, run)


def check_tampered(folder, tamper, undo, script=SCRIPT, before=()):
    """The log is taken away while a tool runs: nothing is written to what stands there now."""
    place = FaultyPlace(folder, script)
    other = place.folder / "other.jsonl"
    other.write_text('{"role": "user", "content": "别人的会话 🙂"}\n', encoding="utf-8")
    here = 'cd "$HOME"; '
    try:
        run = place.start(before=before, TAMPER=f"{here}ln $LOG kept; {tamper}")
    finally:
        subprocess.run(["sh", "-c", here + undo], check=True, env=place.environment(LOG=LOG))
    assert other.read_text(encoding="utf-8").count("\n") == 1, "another file was written to"
    assert not [*place.folder.rglob("nowhere")], "a file was made behind a dangling link"
    on_disk = place.module.read_jsonl(place.path)
    check_stopped(place, run, on_disk)
    assert on_disk[-1]["event"] == "started", "what was there must be what was on disk"
    check_goes_on(place, run)


# ─── faults at the n-th call ─────────────────────────────────────────────────────────────────────

# The prompt, a call, its `started`, its result, the end of the turn: in turns, for speed.
POINTS = [*zip(FAULTS, (2, 6, 7, 8, LAST - 1, 7)), *zip(FAULTS, (7, 8, 2, 7, 2, 6))]


@needs_strace
@pytest.mark.parametrize("fault, number", POINTS)
def test_a_fault_stops_the_turn_at_once(folder, whole, fault, number):
    check_fault(folder, whole, fault, number)


@needs_strace
@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_record_stops_the_turn_at_once(folder, whole, fault, survived):
    for number in range(1, LAST):
        check_fault(folder / str(number), whole, fault, number, served=number % 6 == 2)
    survived(LAST - 1)


@needs_strace
def test_the_strict_server_takes_what_a_fault_left(folder, whole):
    check_fault(folder, whole, "the disk is full for a moment", 8, served=True)


@needs_strace
@pytest.mark.parametrize("name", ("write", "fdatasync"))
def test_interrupted_system_calls_are_repeated(folder, whole, name):
    place = FaultyPlace(folder)
    run = place.start_faulty(name + ":error=EINTR:when={}+2", 1)
    assert run.returncode == 0 and place.count_effects() == (3, 2), run.err
    assert [*map(describe_record, place.module.read_jsonl(place.path))] == [
        *map(describe_record, whole)]


@needs_strace
@pytest.mark.parametrize("number", (5, 12, 20))
def test_a_log_that_cannot_be_read_any_more_stops_the_turn(folder, number):
    place = FaultyPlace(folder)
    run = place.start_faulty("read:error=EIO:when={}+", number)
    on_disk = place.module.read_jsonl(place.path)
    check_stopped(place, run, on_disk)
    check_goes_on(place, run)


@needs_strace
def test_a_log_that_cannot_be_read_at_the_start_is_named(folder):
    place = FaultyPlace(folder)
    before = place.path.read_bytes()
    run = place.start_faulty("read:error=EIO:when={}+", 1)
    assert run.returncode and "Traceback" not in run.err and place.path.read_bytes() == before
    assert len(run.err.splitlines()) == 1 and str(place.path) in run.err, run.err


@needs_strace
def test_a_folder_that_cannot_be_synced_stops_the_turn(folder):
    place = FaultyPlace(folder)
    place.path.unlink()
    run = place.run(place.module.TASK, before=[
        "strace", "-o", os.devnull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"])
    assert run.returncode and len([*filter(is_plain, run.err.splitlines())]) == 1, run.err
    assert place.count_effects() == (0, 0), "a tool ran in a session whose name is not on disk"


# ─── real limits: a part of a record is taken ────────────────────────────────────────────────────

@pytest.mark.parametrize("room", (0, 1, 260, 1_500, 3_000))
def test_a_limit_on_the_size_of_the_file_stops_the_turn(folder, whole, room):
    check_limit(folder, whole, lambda size: size + room)


@pytest.mark.long
def test_a_limit_anywhere_stops_the_turn(folder, whole):
    sizes = [len(REFERENCE.encode_record(record)) for record in whole[1:]]
    for room in range(0, sum(sizes) - 10, 61):
        check_limit(folder / str(room), whole, lambda size: size + room)


def test_the_first_record_of_a_new_session_fails(folder):
    place = FaultyPlace(folder)
    place.path.unlink()
    run = place.run(place.module.TASK, before=[sys.executable, "-c", LIMIT, "0"])
    read_plain_line(run)
    if "to go on: " in run.err:
        command = shlex.split(run.err.splitlines()[-1])[5:]
        again = place.run(*command, "--rehearse", place.module.TASK)
        assert again.returncode == 0, f"the command that was printed leads nowhere: {again.err}"
    assert place.run(place.module.TASK).returncode == 0


def test_a_new_session_that_is_deleted_while_in_use(folder):
    place = FaultyPlace(folder)
    place.path.unlink()
    run = place.run(place.module.TASK, TAMPER='cd "$HOME"; ln sessions/* kept; rm sessions/*')
    read_plain_line(run)
    kept, rescued = place.folder / "kept", next(place.sessions.iterdir())
    assert place.count_effects() == count_started(place.module.read_jsonl(kept))
    assert rescued.read_bytes() == kept.read_bytes(), "what was in memory is not saved"


def test_a_disk_that_is_really_full(folder):
    """One page is left on a disk of 64 KB: the record at its end is torn by the system itself."""
    place, disk = FaultyPlace(folder), folder / "disk"
    mount = "mount -t tmpfs -o size=64k none disk"
    disk.mkdir()
    trial = subprocess.run(["unshare", "-m", "sh", "-c", mount], cwd=folder, capture_output=True)
    if trial.returncode:
        pytest.skip(f"a disk cannot be made here: {trial.stderr.decode().strip()}")
    start = [sys.executable, *place.arguments("--resume", "disk/log.jsonl")]
    story = f"""{mount}; cp {shlex.quote(str(place.path))} disk/log.jsonl
        head -c 61440 /dev/zero > disk/filler
        {shlex.join([*start, place.module.TASK])} 2> full.err; echo $? > full.code
        cp disk/log.jsonl full.jsonl; rm disk/filler
        {shlex.join([*start, "continue"])}; cp disk/log.jsonl after.jsonl"""
    again = subprocess.run(["unshare", "-m", "sh", "-c", story], cwd=folder, capture_output=True,
                           env=place.environment(), timeout=60)
    full, after = (folder / f"{name}.jsonl" for name in ("full", "after"))
    assert (folder / "full.code").read_text() == "1\n"
    assert "No space left on device" in (folder / "full.err").read_text()
    assert full.stat().st_size == 4_096 and after.read_bytes().startswith(full.read_bytes())
    assert "is repaired" in again.stdout.decode() and place.stage() == 2
    assert judge(place.module.load_session(after)) == []


SAME_PROCESS = """
import importlib.util, json, resource, sys
spec = importlib.util.spec_from_file_location("harness", sys.argv[1])
harness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(harness)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with harness.Session(sys.argv[2]) as session:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), hard))
    try:
        harness.run_turn(session, harness.TASK, harness.rehearsal_model)
    except harness.SessionError:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        heard = any(record.get("role") == "user" for record in session.records)
        prompt = "continue" if heard else harness.TASK
        print("then:", harness.run_turn(session, prompt, harness.rehearsal_model))
    assert session.records == harness.read_jsonl(sys.argv[2])
"""


@pytest.mark.parametrize("room", (10, 700, 2_000))
def test_the_same_process_goes_on_when_there_is_room_again(folder, room):
    place = FaultyPlace(folder)
    given = str(SCRIPT), str(place.path), str(place.path.stat().st_size + room)
    run = place.run(before=[sys.executable, "-c", SAME_PROCESS, *given])
    assert run.returncode == 0 and "then: parse_date.py is repaired" in run.out, run.err
    assert judge(place.module.load_session(place.path)) == [] and place.stage() == 2


# ─── the log is taken away, replaced, or closed while a tool runs ────────────────────────────────

PUT_BACK = "rm -rf $LOG; mv kept $LOG"
TAMPERS = {  # what happens to the log, and how it is undone
    "deleted": ("rm $LOG", "true"),  # the records are in memory, and are saved from there
    "deleted with its folder": ("rm -r sessions", "true"),
    "moved away": ("mv $LOG away", "mv away $LOG"),
    "replaced by another session": (
        "mv other.jsonl $LOG", "mv $LOG other.jsonl; mv kept $LOG"),
    "replaced by a hard link to another session": ("ln -f other.jsonl $LOG", PUT_BACK),
    "replaced by a link to another session": ("ln -sf ../other.jsonl $LOG", PUT_BACK),
    "replaced by a dangling link": ("ln -sf nowhere $LOG", PUT_BACK),
    "replaced by a link to itself": ("ln -sf 修复.jsonl $LOG", PUT_BACK),
    "replaced by a folder": ("rm $LOG; mkdir $LOG", PUT_BACK),
    "replaced by a pipe": ("rm $LOG; mkfifo $LOG", PUT_BACK),
    "its folder moved away": ("mv sessions away", "mv away sessions")}
CHANGES = {
    "the file became read-only": ("chmod 400 $LOG", "chmod 600 $LOG"),
    "the file became unreadable": ("chmod 000 $LOG", "chmod 600 $LOG"),
    "the folder became unreadable": ("chmod 000 sessions", "chmod 700 sessions")}
# Modes are no obstacle to root, unless it lays down the powers that make it so.
POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * (os.geteuid() == 0)
PLAIN = not POWERLESS or (shutil.which("setpriv") and not subprocess.call([*POWERLESS, "true"]))
needs_modes = pytest.mark.skipif(
    not PLAIN, reason="root cannot lay down its powers here, and modes are no obstacle to it")


@pytest.mark.parametrize("kind", TAMPERS)
def test_a_log_that_was_replaced_is_not_written_to(folder, kind):
    check_tampered(folder, *TAMPERS[kind])


@needs_modes
@pytest.mark.parametrize("kind", CHANGES)
def test_a_log_that_was_closed_to_us_stops_the_turn(folder, kind):
    check_tampered(folder, *CHANGES[kind], before=POWERLESS)


@needs_modes
@pytest.mark.parametrize("mode", (0o400, 0o000))
def test_a_closed_file_is_refused_in_one_line_and_stays_as_it_is(folder, mode):
    place = FaultyPlace(folder)
    before = place.path.read_bytes(), place.path.stat().st_mtime_ns
    place.path.chmod(mode)
    run = place.start(before=POWERLESS)
    assert run.returncode == 2 and len(run.err.splitlines()) == 1, run.err
    assert str(place.path) in run.err and "Permission denied" in run.err
    assert (place.path.read_bytes(), place.path.stat().st_mtime_ns) == before
    assert place.count_effects() == (0, 0)


@needs_modes
@pytest.mark.parametrize("mode", (0o500, 0o000))
def test_a_new_session_in_a_closed_folder_is_refused_in_one_line(folder, mode):
    place = FaultyPlace(folder)
    place.sessions.chmod(mode)
    for arguments in (["看 👀"], *[["--resume", "last", "继续"]] * (mode == 0)):
        run = place.run(*arguments, before=POWERLESS)
        assert run.returncode in (1, 2) and len(run.err.splitlines()) == 1, run.err
        assert str(place.sessions) in run.err and place.count_effects() == (0, 0)
    place.sessions.chmod(0o700)
    assert [*place.sessions.iterdir()] == [place.path]


@needs_modes
def test_a_read_only_folder_is_no_obstacle_to_the_session_in_it(folder):
    place = FaultyPlace(folder)
    place.sessions.chmod(0o500)
    run = place.start(before=POWERLESS)
    place.sessions.chmod(0o700)
    assert run.returncode == 0 and place.count_effects() == (3, 2), run.err


@needs_modes
def test_a_read_only_file_can_still_be_loaded(folder):
    place = FaultyPlace(folder)
    assert place.start().returncode == 0
    place.path.chmod(0o400)
    loader = "import runpy, sys; load = runpy.run_path(sys.argv[1])['load_session']\n"
    loader += "print(len(load(sys.argv[2])))"
    run = place.run(before=[*POWERLESS, sys.executable, "-c", loader, str(SCRIPT), str(place.path)])
    assert int(run.out) == len(place.module.load_session(place.path)) > 10, run.err


# ─── without a protection its test is red ────────────────────────────────────────────────────────

def cut_a_started(folder, whole, script):
    """A limit in the middle of a `started`."""
    sizes = [len(REFERENCE.encode_record(record)) for record in whole[:8]]
    check_limit(folder, whole, lambda size: sum(sizes[:7]) + sizes[7] // 2, script)


def cut_off_by(fault):
    return lambda folder, whole, script: check_fault(folder, whole, fault, 7, script)


def replace_by_a_link(folder, whole, script):
    check_tampered(folder, *TAMPERS["replaced by a link to another session"], script)


UNPROTECTED = {  # what is taken out of a copy, by which text, and the check that sees it
    "a failed write is passed over": (
        'raise SessionError(f"cannot write {self.path}: {error.strerror}") from error', "pass",
        cut_off_by("a write fails"), "not noticed"),
    "no sync": (
        'getattr(os, "fdatasync", os.fsync)(file.fileno())', "pass",
        cut_off_by("a sync fails"), "not noticed"),
    "one write, and no look at what it took": (
        "data = data[file.write(data) :]", "data = data[file.write(data) : 0]",
        cut_a_started, "a tool ran"),
    "no look at whether it is the same file": (
        "if not (os.path.exists(self.path) and os.path.samefile(self.path, self.file.fileno())):",
        "if False:", replace_by_a_link, "another file was written to"),
    "a failed turn shows no way on": (
        "except (Failure, SessionError, OSError) as error:", "except Failure as error:",
        cut_off_by("a write fails"), "exit code 2")}


@needs_strace
@pytest.mark.parametrize("name", UNPROTECTED)
def test_without_its_protection_a_check_is_red(folder, whole, name):
    old, new, check, words = UNPROTECTED[name]
    with pytest.raises(AssertionError, match=words):
        check(folder, whole, write_copy(folder, (old, new)))

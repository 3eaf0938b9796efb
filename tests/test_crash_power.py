"""Claim: after a power loss at any moment, all that the user saw as done is still there.

A kill cannot show this: what a killed process wrote is still in the kernel. So the system calls of
a real run are replayed into a disk that keeps only what was synced. Of a file the bytes of its last
sync are sure, and any beginning of what was written later is possible; a name is sure when its
folder was synced, and the name of that folder likewise.
"""

import itertools
import json
import os
import re
from types import SimpleNamespace

import pytest
from crash_tools import (RENAMES, SCRIPT, SPAWNS, Place, check_edits, check_log, fast_folder,
                         list_kill_points, load_module, needs_strace, read_facts, run_traced,
                         write_copy)

DISK_CALLS = ("openat", "creat", "close", "write", "pwrite64", "writev", "ftruncate", "truncate",
              "fsync", "fdatasync", "mkdir", "mkdirat", "unlink", "unlinkat", "link", "linkat",
              "symlink", "symlinkat", *RENAMES, *SPAWNS)


# ─── a disk that keeps only what was synced ──────────────────────────────────────────────────────

class Node:
    """A file (bytes) or a folder (name -> node): first what is sure, last what the kernel has."""

    def __init__(self, value):
        self.versions = [value]

    @property
    def now(self):
        return self.versions[-1]

    def change(self, value):
        self.versions.append(value)

    def sync(self):
        del self.versions[:-1]

    def list_states(self):
        """What a power loss may leave of it, and of all that is in it."""
        if isinstance(self.now, bytes):
            # All of it, all but the last byte, half of what is new, and what is sure.
            sure, now = self.versions[0], self.now
            kept = len(sure) if now.startswith(sure) else 0
            yield from {now, now[:max(kept, len(now) - 1)], now[:(kept + len(now)) // 2], sure}
        else:
            for names in self.versions:
                states = [node.list_states() for node in names.values()]
                for chosen in itertools.product(*states):
                    yield dict(zip(names, chosen))


def read_tree(path):
    """A real file or folder as a node, all of it sure."""
    if path.is_dir():
        return Node({child.name: read_tree(child) for child in path.iterdir()})
    return Node(path.read_bytes())


class Disk:
    """The simulated disk below one folder, where the system calls of runs are replayed."""

    def __init__(self, root):
        self.root, self.tree, self.open = str(root), read_tree(root), {}

    def find(self, text):
        """The folder node and the name of a path, (None, "") outside of this disk."""
        path = os.path.join(self.root, text.decode())
        parts, node = os.path.relpath(path, self.root).split(os.sep), self.tree
        if parts[0] == "..":
            return None, ""
        for part in parts[:-1]:
            node = node.now[part]
        return node, parts[-1]

    def replay(self, call):
        """Apply a call that succeeded."""
        found = re.match(r"\d+", call.arguments)
        file = self.open.get(int(found[0])) if found else None
        here = [text for text in call.texts if call.name != "write" and self.find(text)[0]]
        if call.name == "openat":
            self.open[call.result] = self.open_file(call)
        elif call.name == "close":
            self.open.pop(int(found[0]), None)
        elif call.name == "write" and file:
            self.write(file, call.texts[0][:call.result])
        elif call.name in ("fsync", "fdatasync") and file:
            file.node.sync()
        elif call.name.startswith("mkdir") and here:
            self.name(here[0], Node({}))
        elif call.name.startswith("rename") and here:
            self.rename(*here)
        elif call.name.startswith("unlink") and here:
            self.name(here[0], None)
        else:
            assert not file and not here, f"the disk has no {call.name}"

    def write(self, file, data):
        """Write at the end, or where the last write ended."""
        now = file.node.now
        start = len(now) if file.append else file.position
        file.position = start + len(data)
        file.node.change(now[:start] + data + now[file.position:])

    def open_file(self, call):
        """What a file descriptor stands for, None outside of this disk; made or emptied if new."""
        folder, name = self.find(call.texts[0])
        if folder and "O_CREAT" in call.arguments and name not in folder.now:
            self.name(call.texts[0], Node(b""))
        node = self.tree if name == "." else folder and folder.now.get(name)
        if node and "O_TRUNC" in call.arguments and node.now:
            node.change(b"")
        return node and SimpleNamespace(node=node, append="O_APPEND" in call.arguments, position=0)

    def name(self, text, node):
        """Give a name to a node, or with None take the name away."""
        folder, name = self.find(text)
        names = {**folder.now, name: node}
        folder.change({name: node for name, node in names.items() if node})

    def rename(self, old, new):
        """Move a node to another name in its folder, both at once."""
        folder, name = self.find(old)
        assert folder is self.find(new)[0], "the disk knows no move between folders"
        names = {each: node for each, node in folder.now.items() if each != name}
        folder.change({**names, self.find(new)[1]: folder.now[name]})


# ─── what must be true ───────────────────────────────────────────────────────────────────────────

def check_every_loss(disk, traces, check):
    """Replay runs; after each call, `check` each state that a power loss may leave.
    It gets the state, the standard output so far, and the number of processes begun for a tool."""
    seen, begun, checked, points = "", 0, set(), 0
    for trace in traces:
        before = begun
        disk.open, spawned = {}, -1  # the first process of a run is git: which commit is it?
        for call in trace:
            if call.result is None or call.result < 0:
                continue
            disk.replay(call)
            spawned += call.name in SPAWNS and "CLONE_THREAD" not in call.arguments
            if call.name == "write" and call.arguments.startswith("1,"):
                seen += call.texts[0].decode()
            begun = before + max(spawned, 0)
            points, when = points + 1, f"power lost behind call {points + 1}, {call.name}"
            for state in disk.tree.list_states():
                if (key := (repr(state), seen, begun)) not in checked:
                    checked.add(key)
                    explain(check, state, seen, begun, when)
    return points, len(checked)


def explain(check, state, seen, begun, when):
    """Say when it was that the check failed."""
    try:
        check(state, seen, begun)
    except AssertionError as error:
        raise AssertionError(f"{when}: {error}") from error


def write_log(state, folder):
    """The one log of a simulated disk as a real file, None if there is none."""
    logs = [data for data in state.get("sessions", {}).values() if data]
    assert len(logs) < 2, "there must be one session"
    path = folder / "log.jsonl"
    path.write_bytes(logs[0] if logs else b"")
    return path if logs else None


def check_rehearsal(place, folder):
    """The check of the rehearsal: what is seen, said and begun is on the disk."""
    def check(state, seen, begun):
        path = write_log(state, folder)
        stage = place.stage(state["work"]["parse_date.py"])
        facts = check_edits(check_log(read_facts(place.module, path, stage), seen))
        commands = [record for record in facts.started if record["tool"] == "bash"]
        assert begun <= len(commands), "a command was begun whose `started` is not on disk"
    return check


def lose_power(module, folder, first=None):
    """Run a rehearsal, killed at `first` and resumed where that is given, and check each loss."""
    place = Place(folder / "run", module)
    disk, traces, arguments = Disk(place.folder), [], [module.TASK]
    for kill_at in [first, None] if first else [None]:
        run = run_traced(place, *arguments, "--rehearse", kill_at=kill_at, calls=DISK_CALLS)
        assert run.returncode == (-9 if kill_at else 0), run.err
        traces.append(run.trace)
        arguments = place.go_on()[1]
    assert place.stage() == len(place.stages) - 1
    return check_every_loss(disk, traces, check_rehearsal(place, folder))


REFERENCE = load_module(SCRIPT)


def is_rename(call):
    return call.name in RENAMES


def is_session_record(call):
    return call.name == "write" and call.texts[0].startswith(b'{"event": "session"')


def find_kill(folder, module, after, name):
    """Where to kill: at the first call of this name behind the one that `after` tells."""
    place = Place(folder / "whole", module)
    points = list_kill_points(place, run_traced(place, module.TASK, "--rehearse"), after)
    return next(point for point in points if point[0] == name)


@needs_strace
def test_after_a_power_loss_behind_any_call_all_that_was_seen_is_there(capsys, survived):
    with fast_folder() as folder:
        points, states = lose_power(REFERENCE, folder)
    with capsys.disabled():
        print(f"\npower lost behind each of {points} calls, {states} states of disk and screen")
    assert states > 60, "too little was tried"
    survived(points)


KILLS = {  # where the first run is killed, and what the second one must not build on
    "before the log's name is synced": (is_session_record, "fsync"),
    "before an edit's name is synced": (is_rename, "fsync"),
    "before a result is synced": (is_rename, "fdatasync"),
}


@needs_strace
@pytest.mark.parametrize("kind", KILLS)
def test_a_resume_does_not_build_on_what_the_killed_run_had_not_synced(kind):
    with fast_folder() as folder:
        lose_power(REFERENCE, folder, find_kill(folder, REFERENCE, *KILLS[kind]))


@needs_strace
@pytest.mark.long
@pytest.mark.parametrize("name", ["fsync", "fdatasync", "rename"])
def test_killed_at_any_sync_and_resumed_nothing_is_lost_with_the_power(name):
    with fast_folder() as folder:
        place = Place(folder / "all", REFERENCE)
        points = list_kill_points(place, run_traced(place, REFERENCE.TASK, "--rehearse"))
        for number, point in enumerate(point for point in points if point[0] == name):
            lose_power(REFERENCE, folder / str(number), point)


# ─── new files in new folders ────────────────────────────────────────────────────────────────────

DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tinyharness
replies = iter(json.loads(sys.argv[2]))
with tinyharness.Session("sessions/新/修复 🐞.jsonl", "work") as session:
    tinyharness.run_turn(session, "写 ✍️", lambda messages, tools: next(replies),
                         show=lambda text: print(text, flush=True))
"""
FILES = {"甲 🚀.txt": "一\n", "新/深/乙.txt": "二 🐞\n", "新/丙.txt": "三\n"}


def make_call(number, path, content):
    arguments = json.dumps({"path": path, "content": content}, ensure_ascii=False)
    function = {"name": "write_file", "arguments": arguments}
    return {"id": f"c{number}", "type": "function", "function": function}


def look_up(state, path):
    """What a path of a simulated disk holds, None without it."""
    for part in path.split("/"):
        state = (state or {}).get(part)
    return state


def check_new_files(module, folder):
    """The check of three parallel calls that write new files, partly into new folders."""
    def check(state, seen, begun):
        data = look_up(state, "sessions/新/修复 🐞.jsonl")
        path = write_log({"sessions": {"log": data}}, folder)
        facts = check_log(read_facts(module, path), seen, last_words="全部 is repaired")
        meant = {record["path"] for record in facts.started}
        done = {result["tool_call_id"] for result in facts.real}
        for number, (name, content) in enumerate(FILES.items()):
            held = look_up(state, f"work/{name}")
            assert held is None or any(each.endswith(name) for each in meant), (
                f"{name} is there, and its `started` is not in the log")
            assert held == content.encode() or (held is None and f"c{number}" not in done), (
                f"{name} holds {held!r}, and in the log are results of {done}")
    return check


def lose_new_files(module, folder):
    """Write new files under strace, and check each loss."""
    place = Place(folder / "run", module)
    calls = [make_call(number, *item) for number, item in enumerate(FILES.items())]
    replies = [{"role": "assistant", "content": None, "tool_calls": calls},
               {"role": "assistant", "content": "全部 is repaired ✅"}]
    program = ["-c", DRIVER, os.path.dirname(module.__file__), json.dumps(replies)]
    disk = Disk(place.folder)
    run = run_traced(place, program=program, calls=DISK_CALLS)
    assert run.returncode == 0 and run.out.count(" -> wrote ") == len(FILES), run.err
    return check_every_loss(disk, [run.trace], check_new_files(module, folder))


@needs_strace
def test_after_a_power_loss_each_new_file_whose_result_was_seen_is_there():
    with fast_folder() as folder:
        assert lose_new_files(REFERENCE, folder)[0] > 100, "too little was tried"


APPENDS = """
import sys
sys.path.insert(0, sys.argv[1])
import tinyharness
for number in range(3):
    tinyharness.append_jsonl("sessions/新/日志.jsonl", {"role": "user", "content": f"第 {number} 🐞"})
    print(number, flush=True)
"""


def lose_appends(module, folder):
    """Append to a new log in new folders under strace, and check each loss."""
    place = Place(folder / "run", module)

    def check(state, seen, begun):
        path = write_log({"sessions": {"log": look_up(state, "sessions/新/日志.jsonl")}}, folder)
        records = module.read_jsonl(path) if path else []
        returned = len(seen.split())
        assert len(records) >= returned, f"{len(records)} records are on disk, {returned} returned"
    disk = Disk(place.folder)
    run = run_traced(place, program=["-c", APPENDS, os.path.dirname(module.__file__)],
                     calls=DISK_CALLS)
    assert run.out.split() == ["0", "1", "2"], run.err
    return check_every_loss(disk, [run.trace], check)


@needs_strace
def test_a_record_is_on_disk_when_append_jsonl_returns():
    with fast_folder() as folder:
        assert lose_appends(REFERENCE, folder)[1] > 10, "too little was tried"


# ─── proofs: each sync that is left out turns it red ─────────────────────────────────────────────

OPENED = ("sync_folders(self.path)", "pass")  # when a session is opened
CREATED = ("    if not last:\n        sync_folders(path)", "    if not last:\n        pass")
LEFT_OUT = {  # what is left out: (words of the failure, changes)
    "the sync of the log": (
        "printed as done, but not in the log",
        ('write_all(file, data if last in (b"", b"\\n") else b"\\n" + data)', "file.write(data)")),
    "the sync of a new log's folder": ("printed as done, but not in the log", OPENED, CREATED),
    "the sync of the folders above": (
        "printed as done, but not in the log",
        (".absolute().parents:", ".absolute().parents[:1]:")),
    "the sync of a new file before its rename": (
        "neither old nor new",
        ("write_all(file, data)\n        temporary", "file.write(data)\n        temporary")),
    "the sync of the folder behind a rename": (
        "but the log says of 1", ("    sync_folders(path)\n    return", "    return")),
}
RESUMES = {  # which kill shows it: (words of the failure, what is left out)
    "before the log's name is synced": ("printed as done, but not in the log", OPENED),
    "before an edit's name is synced": (
        "but the log says of 1", ('sync_folders(call.started["path"])', "None")),
}


@needs_strace
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_the_power_check_is_red_without(kind, tmp_path):
    words, *changes = LEFT_OUT[kind]
    broken = load_module(write_copy(tmp_path, *changes))
    with fast_folder() as folder, pytest.raises(AssertionError, match=words):
        lose_power(broken, folder)


@needs_strace
@pytest.mark.parametrize("kind", ["the sync of the folders above",
                                  "the sync of the folder behind a rename"])
def test_the_power_check_of_new_files_is_red_without(kind, tmp_path):
    broken = load_module(write_copy(tmp_path, *LEFT_OUT[kind][1:]))
    with fast_folder() as folder, pytest.raises(AssertionError, match="not in the log|holds None"):
        lose_new_files(broken, folder)


@needs_strace
@pytest.mark.parametrize("kind", RESUMES)
def test_the_power_check_of_a_resume_is_red_without_the_sync_that_was_due(kind, tmp_path):
    words, *changes = RESUMES[kind]
    broken = load_module(write_copy(tmp_path, *changes))
    with fast_folder() as folder, pytest.raises(AssertionError, match=words):
        lose_power(broken, folder, find_kill(folder, broken, *KILLS[kind]))


@needs_strace
@pytest.mark.parametrize("kind", ["the sync of the log", "the sync of a new log's folder"])
def test_the_power_check_of_append_alone_is_red_without(kind, tmp_path):
    change = LEFT_OUT[kind][-1]
    broken = load_module(write_copy(tmp_path, change))
    with fast_folder() as folder, pytest.raises(AssertionError, match="records are on disk"):
        lose_appends(broken, folder)

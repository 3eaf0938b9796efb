"""Claim: what the README shows is what happens."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from reliability import check_row, write_row

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.split("\n") for block in re.findall(r"(?:^    .*\n)+", README, re.M)]
COMMANDS, SHOWN = [[line[4:] for line in block if line] for block in BLOCKS[:2]]


def run(command, folder):
    """Run a command of the README in a folder of its own, without any key."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
    )


def normalize(text):
    """Ids and the script's place are different each time."""
    text = re.sub(r"\d{4}-\d\d-\d\d_\d{6}_[a-z]+", "<id>", text)
    return re.sub(r"(?m)^\$ .*tinyharness\.py'?", "$ python tinyharness.py", text)


def test_the_demo_prints_what_the_readme_shows_in_that_order(tmp_path):
    done = run([sys.executable, str(ROOT / "tinyharness.py"), "--demo"], tmp_path)
    assert done.returncode == 0, done.stdout
    printed = normalize(done.stdout).split("\n")
    position = 0
    for line in map(normalize, SHOWN):
        assert line in printed[position:], f"the demo does not print {line!r} here"
        position = printed.index(line, position) + 1


def test_each_command_that_looks_back_prints_what_the_readme_shows(tmp_path):
    """In the README's order, behind the demo; a clock and an id are different each time."""
    rows = re.findall(r"(?m)^\| `python (tinyharness.py --[^`]*)` \|[^|]*\| `([^`]*)` \|$", README)
    assert len(rows) == 6
    script, clock = str(ROOT / "tinyharness.py"), r"\d\d:\d\d:\d\d"
    assert run([sys.executable, script, "--demo"], tmp_path).returncode == 0
    for command, shown in rows:
        done = run([sys.executable, script, *shlex.split(command)[1:]], tmp_path)
        printed, wanted = (re.sub(clock, "<clock>", normalize(text)) for text in (done.stdout, shown))
        assert done.returncode == 0 and wanted in printed, f"{command} prints {printed}"


def test_ci_runs_the_two_commands_as_written():
    script = (ROOT / ".ci" / "run").read_text().split("\n")
    assert len(COMMANDS) == 2
    assert all(command in script for command in COMMANDS)


def test_the_library_example_runs_as_written(tmp_path):
    example = re.search(r"```python\n(.*?)```", README, re.S)[1]
    done = run([sys.executable, "-c", example], tmp_path)
    assert done.returncode == 0, done.stdout
    assert "paid 5 to 小明" in done.stdout


def test_each_self_check_names_a_test_file_that_exists():
    names = re.findall(r"(tests/test_\w+\.py) --impl", README)
    assert len(names) == 7
    assert all((ROOT / name).exists() for name in names)


def test_looking_changes_no_byte(tmp_path):
    script = str(ROOT / "tinyharness.py")
    run([sys.executable, script], tmp_path)
    (log,) = tmp_path.glob(".tinyharness/sessions/*.jsonl")
    before = log.read_bytes(), log.stat().st_mtime_ns
    looked = run([sys.executable, script, "--resume", "last"], tmp_path)
    assert looked.returncode == 0 and "state: done" in looked.stdout
    assert (log.read_bytes(), log.stat().st_mtime_ns) == before


def test_each_self_check_grades_something(tmp_path):
    """The command of each milestone collects checks of the learner's file."""
    names = re.findall(r"(tests/test_\w+\.py) --impl", README)
    wanted = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--rootdir", str(ROOT)]
    files = [str(ROOT / name) for name in names]
    done = run([*wanted, "--impl", str(ROOT / "tinyharness.py"), *files], tmp_path)
    assert done.returncode == 0, done.stdout
    assert all(Path(name).name in done.stdout for name in names), done.stdout


def test_each_row_of_what_it_survives_is_held_by_its_test():
    """A row that no test measures would be a claim and nothing else."""
    rows = set(re.findall(r"\| `(test_\w+)` \|$", README, re.M))
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/test_*.py"))
    held = {name for name, given in re.findall(r"def (test_\w+)\(([^)]*)\)", sources)
            if "survived" in given}
    assert rows == held and len(rows) >= 10


ROW = "| cut | 200 | 0 | `test_cut` |"


@pytest.mark.parametrize("tried, lost", [(199, 0), (200, 1), (400, 0)])
def test_a_row_that_claims_too_much_or_far_too_little_is_red(tried, lost):
    with pytest.raises(AssertionError, match="says of test_cut"):
        check_row(ROW, "test_cut", tried, lost)


@pytest.mark.parametrize("tried, row", [(34, "30"), (432, "400"), (8_399, "8,000")])
def test_a_row_is_written_so_that_it_holds(tried, row):
    text = write_row(ROW, "test_cut", tried, 0)
    assert text == f"| cut | {row} | 0 | `test_cut` |"
    check_row(text, "test_cut", tried, 0)

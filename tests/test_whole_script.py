"""Claim: the patch adds §9 and §10 to the script as it is, in its style; they make it too long."""

import ast
import re
import subprocess
import sys

from test_budget import LINES
from whole_script import PATCH, SCRIPT, write_whole_script

WHOLE = SCRIPT.read_text(encoding="utf-8")
TREE = ast.parse(WHOLE, feature_version=(3, 10))


def test_the_patch_applies_and_each_section_is_in_its_place(tmp_path):
    assert write_whole_script(tmp_path).read_text(encoding="utf-8") == WHOLE
    marks = re.findall("(?m)^# ── §?([^ ]+)", WHOLE)
    assert marks == [*map(str, range(1, 12)), "models", "main"]


def test_what_is_added_keeps_the_style():
    assert max(map(len, WHOLE.splitlines())) <= 100
    functions = [node for node in ast.walk(TREE) if isinstance(node, ast.FunctionDef)]
    assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40
    public = [node for node in TREE.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert all(map(ast.get_docstring, public))
    lines = WHOLE.splitlines()
    first, behind = (lines.index(next(line for line in lines if line.startswith(f"# ── §{n} ")))
                     for n in (1, 8))
    assert behind - first <= 500


def test_it_is_too_long_and_only_for_these_sections():
    """The README says so; if it ever fits, apply the patch and delete these files."""
    assert len(WHOLE.splitlines()) > 1000 >= len(LINES)
    added = subprocess.run(["git", "apply", "--numstat", PATCH], capture_output=True, text=True).stdout
    added, removed, _ = added.split(maxsplit=2)
    assert int(added) < 200 and int(removed) < 40, "the patch changes more than it adds"


def test_help_names_what_is_added(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True)
    assert "--context TOKENS" in done.stdout and "10 memory" in done.stdout

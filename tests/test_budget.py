"""Claim: the script stays small enough to read, and says of itself only what is true."""

import ast
import io
import re
import statistics
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = (ROOT / "tinyharness.py").read_text(encoding="utf-8")
LINES = SOURCE.splitlines()
TREE = ast.parse(SOURCE)


def section_lines():
    """Name of each section -> its first line, in the file's order."""
    marks = [(number, line) for number, line in enumerate(LINES) if line.startswith("# ── ")]
    return {line.strip("# ─"): number for number, line in marks}


def functions():
    """(lines, name) of each function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(TREE) if isinstance(node, kinds)]
    return [(node.end_lineno - node.lineno + 1, node.name) for node in found]


def prose_lines():
    """The numbers of the lines that are comment or docstring."""
    numbers = set()
    for token in tokenize.generate_tokens(io.StringIO(SOURCE).readline):
        if token.type == tokenize.COMMENT:
            numbers.add(token.start[0])
    for node in ast.walk(TREE):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            numbers.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return numbers


def test_sections_stand_in_reading_order():
    names = list(section_lines())
    numbered = [name for name in names if name.startswith("§")]
    assert numbered == sorted(numbered, key=lambda name: int(re.search(r"\d+", name)[0]))
    assert [name.split()[0] for name in numbered[:7]] == [f"§{number}" for number in range(1, 8)]
    assert names[-2:] == ["models", "main"]


def test_each_section_mark_is_followed_by_one_sentence():
    for name, number in section_lines().items():
        assert len(LINES[number]) == 100, name
        assert LINES[number + 1].startswith("# ") and LINES[number + 1].endswith("."), name


def test_sections_1_to_7_have_at_most_500_lines():
    marks = section_lines()
    first = next(number for name, number in marks.items() if name.startswith("§1 "))
    behind = next(number for name, number in marks.items() if name.startswith(("§8", "models")))
    assert behind - first <= 500


def test_the_file_has_at_most_1000_lines_of_at_most_100_characters():
    assert len(LINES) <= 1000
    assert max(map(len, LINES)) <= 100


def test_functions_have_at_most_40_lines_and_a_median_of_at_most_12():
    assert max(functions())[0] <= 40, max(functions())
    assert statistics.median(lines for lines, _ in functions()) <= 12


def test_comments_and_docstrings_are_20_to_30_percent():
    share = len(prose_lines()) / len([line for line in LINES if line.strip()])
    assert 0.20 <= share <= 0.30, share


def test_everything_public_has_a_docstring():
    for node in ast.walk(TREE):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("__"):
            if node in TREE.body:
                assert ast.get_docstring(node), node.name


def test_only_the_standard_library_is_imported_at_the_top():
    names = set()
    for node in TREE.body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert names <= set(sys.stdlib_module_names)
    assert names, "the check must see the imports"


def test_there_is_one_broad_except():
    handlers = [node for node in ast.walk(TREE) if isinstance(node, ast.ExceptHandler)]
    caught = [ast.unparse(node.type) if node.type else "bare" for node in handlers]
    assert [text for text in caught if re.search(r"\bException\b|bare", text)] == [
        "(Exception, SystemExit)"
    ]


def test_the_syntax_is_that_of_python_3_10():
    ast.parse(SOURCE, feature_version=(3, 10))
    for node in ast.walk(TREE):
        assert not isinstance(node, getattr(ast, "TryStar", ())), "except* needs 3.11"


def test_the_inline_metadata_names_the_same_openai_as_the_requirements():
    block = re.search(r"(?m)^# /// script$\n(?P<body>(^#(| .*)$\n)+)^# ///$", SOURCE)["body"]
    wanted = re.search(r'"(openai[^"]*)"', block)[1]
    assert wanted in (ROOT / "requirements.txt").read_text().splitlines()
    assert 'requires-python = ">=3.10"' in block


def test_top_level_holds_only_what_belongs_there():
    allowed = {"tinyharness.py", "notebooks", "tests", "requirements.txt", "README.md", ".ci"}
    allowed |= {".gitignore", "pytest.ini", "LICENSE"}
    listed = __import__("subprocess").run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert {name.split("/")[0] for name in listed if name} <= allowed

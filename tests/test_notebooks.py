"""Claim: each notebook runs as it stands, dies where it says so, and its checks tell right from wrong."""

import ast
import re
import statistics
import types
import xml.dom.minidom
from pathlib import Path

import nbformat
import notebook_runner as runner
import pytest

import tinyharness

NAMES = runner.names()
NOT_THE_STARTER = [name for name in NAMES if name != "m00_start"]
ANSWERS = [(name, *answer) for name in NAMES if runner.load_answers(name) for answer in runner.answers(name)]
# Code, hints that are folded, and addresses.
NO_PROSE = re.compile(r"```.*?```|<details>.*?</details>|\(https://[^)]*\)", re.S)
ALLOWED_AGAIN = ("wrong", "small", "naive", "chapter", "my")  # a version with such a name says so itself


@pytest.fixture(scope="module")
def course():
    """The helper module of the notebooks."""
    import sys

    sys.path.insert(0, str(runner.NOTEBOOKS))
    import course

    return course


def committed(name):
    return nbformat.read(runner.NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code_cells(name) -> list:
    return [cell for cell in runner.build(name).cells if cell.cell_type == "code"]


def count_lines(source) -> int:
    """The lines of code that are not blank."""
    return len([line for line in source.splitlines() if line.strip()])


# ── Structure: what can be seen without running ───────────────────────────────────────────────────

def test_there_are_notebooks():
    assert NAMES[:2] == ["m00_start", "m01_loop"]


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_cells_are_those_of_the_source(name):
    built, found = runner.build(name), committed(name)
    assert [(cell.id, cell.source, cell.metadata) for cell in found.cells] == [
        (cell.id, cell.source, cell.metadata) for cell in built.cells], (
        f"python tests/notebook_runner.py {name[:3]}")
    assert found.metadata == built.metadata
    ids = [cell.id for cell in built.cells]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_outputs_are_normalized(name):
    text = (runner.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.search(r"/(tmp|home|root|usr|work|Users)/", text), "an absolute path"
    assert not re.search(r'"image/(png|jpeg)"|"execution_count": \d', text)
    for cell in committed(name).cells:
        assert len(str(cell.get("outputs", ""))) < 100_000, cell.id
        assert not any(output.output_type == "error" for output in cell.get("outputs", ())), cell.id


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name):
    cells, codes = runner.build(name).cells, code_cells(name)
    assert (8 if name == "m00_start" else 20) <= len(cells) <= 30, f"{len(cells)} cells"
    for cell in codes:
        most = 25 if cell.source.startswith("%%exercise") else 15
        assert count_lines(cell.source) <= most, f"{cell.id}: {count_lines(cell.source)} lines"
        assert max(map(len, cell.source.split("\n"))) <= 110, f"{cell.id}: a line is too long"
    assert statistics.median(count_lines(cell.source) for cell in codes) <= 8


@pytest.mark.parametrize("name", NOT_THE_STARTER)
def test_there_is_prose_for_the_code_and_not_too_much(name):
    prose = [NO_PROSE.sub("", cell.source) for cell in runner.build(name).cells
             if cell.cell_type == "markdown"]
    words = sum(len(re.findall(r"\w[\w'’-]*", text)) for text in prose)
    ratio = words / sum(count_lines(cell.source) for cell in code_cells(name))
    assert 4 <= ratio <= 10, f"{ratio:.1f} words of prose for a line of code"


@pytest.mark.parametrize("name", NAMES)
def test_crashes_are_announced_few_and_followed_by_a_restart(name):
    cells = runner.build(name).cells
    crashes = [index for index, cell in enumerate(cells) if "crash" in cell.metadata.get("tags", [])]
    assert 1 <= len(crashes) <= 2, "Jupyter stops restarting a kernel that dies too often"
    for index in crashes:
        after, before = cells[index + 1], cells[index - 1]
        assert after.cell_type == "code" and f'course.reopen("{name}")' in after.source, (
            "the cell after a crash starts from nothing but the disk")
        assert "import course" in after.source and "import tinyharness" in after.source
        assert before.cell_type == "markdown" and "kill" in before.source, "a crash is announced"
    assert f'course.fresh("{name}")' in code_cells(name)[0].source


@pytest.mark.parametrize("name", NAMES)
def test_the_last_cell_asserts_what_must_be_true(name):
    last = runner.build(name).cells[-1]
    assert last.cell_type == "code" and "assert " in last.source


def defined_names(source) -> set:
    """The names that a cell gives to functions, classes and values."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_the_script_is_defined_again(name):
    tree = ast.parse(Path(tinyharness.__file__).read_text(encoding="utf-8"))
    own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {target.id for node in tree.body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)}
    assert {"run_turn", "Session", "TOOLS"} <= own
    for cell in code_cells(name):
        if not cell.source.startswith("%%"):
            assert not defined_names(cell.source) & own, cell.id


@pytest.mark.parametrize("name", NOT_THE_STARTER)
def test_each_exercise_has_a_check_a_solution_and_four_wrong_answers(name):
    answers, stubs = runner.load_answers(name), runner.stubs(name)
    sources = [cell.source for cell in runner.build(name).cells]
    assert stubs, "there is nothing for the learner to write"
    assert set(stubs) == set(answers.CHECKS) == set(answers.SOLUTION) == set(answers.WRONG)
    for exercise, stub in stubs.items():
        assert "raise NotImplementedError" in stub
        assert any(f'course.check("{exercise}"' in source for source in sources)
        assert len(answers.WRONG[exercise]) >= 4
        for words in (words for _, words in answers.WRONG[exercise].values()):
            assert len(words) >= 10, f"too few words to name a mistake: {words!r}"
        assert (runner.ROOT / answers.CHECKS[exercise][0]).exists()
    mistakes = " ".join(mistake for wrong in answers.WRONG.values() for mistake in wrong)
    assert "chapter" in mistakes.lower(), "the chapter's own code is among the wrong answers"


def test_the_source_format_is_refused_where_it_is_wrong():
    for text in ("print(1)\n", "# %%\nprint(1)\n", '# %% [markdown] id="a"\nno mark\n'):
        with pytest.raises(ValueError):
            runner.read_source(text)


# ── The helper, without a kernel ──────────────────────────────────────────────────────────────────

@pytest.fixture
def place(course, tmp_path, monkeypatch):
    """A place of its own for what the helper writes, and a kernel that only seems to be one."""
    message = {"header": {"date": "2020-01-01T00:00:00.500Z"}}
    shell = types.SimpleNamespace(user_ns={}, kernel=types.SimpleNamespace(get_parent=lambda channel: message))
    answers = tmp_path / "answers"
    answers.mkdir()
    (answers / "m99.py").write_text("CHECKS = {'one': ('no file',), 'two': ('no file',)}\n")
    monkeypatch.setattr(course, "ANSWERS", answers)
    monkeypatch.setattr(course, "MY", tmp_path)
    monkeypatch.setattr(course, "notebook", "m99_try")
    monkeypatch.setattr(course, "kernel_shell", lambda: shell)
    return types.SimpleNamespace(folder=tmp_path, shell=shell, message=message)


def test_exercises_are_blocks_of_one_file_and_run(course, place):
    course.exercise("one", "def one():\n    return 1\n")
    course.exercise("two", "def two():\n    return 1 / 0\n")
    course.exercise("one", "def one():\n    return 11\n")
    assert place.shell.user_ns["one"]() == 11
    module = course.mine()
    assert module.one() == 11
    with pytest.raises(ZeroDivisionError) as raised:
        place.shell.user_ns["two"]()
    frame = raised.traceback[-1]
    assert str(frame.statement).strip() == "return 1 / 0", "an error names the line of the saved file"


def test_an_exercise_that_is_no_python_is_not_saved_and_leaves_the_others_alone(course, place, capsys):
    course.exercise("one", "def one():\n    return 1\n")
    course.exercise("two", "def two():\n    return 2\n")
    course.exercise("one", "\ndef one(:\n")
    assert "line 3 of this cell" in capsys.readouterr().out
    assert course.mine().two() == 2
    assert course.grade("m99", "one", place.folder / "m99.py")[0].startswith("❌ one: nothing is saved yet")


def test_an_answer_that_a_stub_replaces_is_kept(course, place, capsys):
    course.exercise("one", "def one():\n    return '对'\n")
    course.exercise("one", "def one():\n    raise NotImplementedError\n")
    assert "return '对'" in (place.folder / "m99.one.before.py").read_text(encoding="utf-8")
    assert "my/m99.one.before.py" in capsys.readouterr().out


def test_an_exercise_that_the_notebook_does_not_have_is_not_saved(course, place, capsys):
    for line in ("on", "", "three"):
        course.exercise(line, "def one():\n    return 1\n")
        assert "the exercises here are one, two" in capsys.readouterr().out
    assert not (place.folder / "m99.py").exists()


def test_a_cell_that_waited_through_the_crash_is_refused(course, place):
    with pytest.raises(RuntimeError, match="sent before the crash"):
        course.reopen("m99_try")
    place.message["header"]["date"] = "2999-01-01T00:00:00.500Z"
    with pytest.raises(RuntimeError, match="No crash is on record"):
        course.reopen("m99_try")
    course.fresh("m99_try")
    crash = place.folder / "m99_try" / "crash.json"
    crash.write_text('{"pid": %d, "time": 9e9}' % course.os.getpid())
    with pytest.raises(RuntimeError, match="it lives"):
        course.reopen("m99_try")
    crash.write_text('{"pid": 1, "time": 1.5}')
    assert course.reopen("m99_try") == course.reopen("m99_try"), "it may be run twice"


def test_fresh_empties_and_reopen_does_not(course, place):
    folder = course.fresh("m99_try")
    (folder / "left").write_text("x")
    (folder / "crash.json").write_text('{"pid": 1, "time": 1.5}')
    place.message["header"].clear()
    assert (course.reopen("m99_try") / "left").exists()
    assert not (course.fresh("m99_try") / "left").exists()
    assert (folder / "workspace" / "parse_date.py").exists()


def parse_svg(drawing):
    return xml.dom.minidom.parseString(drawing._repr_svg_()).documentElement.toxml()


CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls <&>"}'}}


def test_the_picture_shows_the_crash_the_torn_bytes_and_the_verdict(course, tmp_path):
    path = tmp_path / "log.jsonl"
    assert "nothing is on disk" in parse_svg(course.picture(path))
    tinyharness.append_jsonl(path, {"role": "user", "content": "修复 🐞 <b>"})
    tinyharness.append_jsonl(path, {"role": "assistant", "content": None, "tool_calls": [CALL]})
    with open(path, "ab") as file:
        file.write(b'{"role": "tool", "tool_call_id": "c1", "cont\xe4')
    for shown in (parse_svg(course.picture(path)), repr(course.picture(path))):
        assert all(word in shown for word in ("修复", "torn", "⚡", "no result", "bash", "outcome unknown"))
    tinyharness.append_jsonl(path, {"role": "tool", "tool_call_id": "c1", "content": "ok"})
    tinyharness.append_jsonl(path, {"role": "assistant", "content": "done"})
    healed = repr(course.picture(path))
    assert "torn" in healed and "no result" not in healed and "⚡" not in healed


def test_the_picture_takes_any_log(course, tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [{"role": "assistant", "tool_calls": [{"id": ["x"], "function": None}, {}, 1]}, {"event": "?"},
            {"role": "tool", "content": None}, {"role": "user", "content": [{"type": "tool_result"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b\x00", "input": 1}]}]
    for row in rows * 2:
        tinyharness.append_jsonl(path, row)
        parse_svg(course.picture(path))
        parse_svg(course.columns(path))


def test_the_columns_say_what_is_lost(course, tmp_path):
    path = tmp_path / "log.jsonl"
    for text in ("one", "two"):
        tinyharness.append_jsonl(path, {"role": "user", "content": text})
    alive = course.columns(path, memory=["three", {"role": "user", "content": "four"}], synced=1)
    assert repr(alive).splitlines() == ["process   three, user", "OS cache  user, user", "disk      user"]
    assert all(word in parse_svg(alive) for word in ("one", "two", "three", "four"))
    killed = repr(course.columns(path, memory=["three"], lost="process")).splitlines()
    assert killed == ["process   ✗ lost", "OS cache  user, user", "disk      user, user"]
    dark = repr(course.columns(path, synced=0, lost="power")).splitlines()
    assert dark == ["process   ✗ lost", "OS cache  ✗ lost", "disk      nothing"]


# ── Running: kernels that die, answers that are right, wrong or missing ───────────────────────────

@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_untouched_notebook_runs_and_gives_the_committed_outputs(name):
    played = runner.play(name)
    said = "".join(str(cell.get("outputs", "")) for cell in played.cells)
    assert said.count("not written yet (NotImplementedError") >= len(runner.stubs(name))
    assert runner.encode(played) == (runner.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"), (
        f"python tests/notebook_runner.py {name[:3]}")


@pytest.mark.long
@pytest.mark.parametrize("name", NOT_THE_STARTER)
def test_a_solved_notebook_runs_and_every_check_is_green(name):
    said = "".join(str(cell.get("outputs", "")) for cell in runner.play(name, solved=True).cells)
    for exercise in runner.stubs(name):
        assert f"✅ {exercise}: " in said
    assert "❌" not in said and "💥" not in said


@pytest.mark.long
@pytest.mark.parametrize("name, exercise, kind, source, words", ANSWERS,
                         ids=[f"{answer[0]}-{answer[1]}-{answer[2]}" for answer in ANSWERS])
def test_an_answer_is_judged_and_the_mistake_named(name, exercise, kind, source, words):
    said = runner.grade(name, exercise, source)
    assert words in said
    assert said.startswith("✅" if kind == "the solution" else "❌")
    assert (kind == "the stub") == ("not written yet" in said)


BROKEN_TESTS = {
    "a syntax error": "def test_x(impl:\n",
    "an import of what is missing": "import no_such_module_at_all\ndef test_x(impl): pass\n",
    "no check at all": "x = 1\n",
    "no such check": "def test_other(impl): pass\n",
    "a broken fixture": "import pytest\n@pytest.fixture\ndef x(): return nothing\ndef test_x(impl, x): pass\n",
}


@pytest.mark.long
@pytest.mark.parametrize("problem", BROKEN_TESTS)
def test_a_broken_test_file_is_called_broken(course, problem, tmp_path, monkeypatch):
    test = runner.ROOT / "tests" / f"test_notebooks_broken_{tmp_path.name}.py"
    (tmp_path / "m99.py").write_text(f"CHECKS = {{'x': ({str(test)!r}, 'test_x')}}\n")
    (tmp_path / "my.py").write_text("# ── exercise x ──\ndef x():\n    raise NotImplementedError\n")
    monkeypatch.setattr(course, "ANSWERS", tmp_path)
    try:
        test.write_text(BROKEN_TESTS[problem])
        said = "\n".join(course.grade("m99", "x", tmp_path / "my.py"))
    finally:
        test.unlink()
    assert "broken" in said and "not your fault" in said and "not written yet" not in said


@pytest.mark.long
def test_a_cell_that_cannot_be_loaded_is_told_from_a_broken_check(course, tmp_path):
    for source, words in (("import no_such_module\n", "no_such_module"),
                          ("1 / 0\n", "ZeroDivisionError: division by zero (m01.py, line 2)")):
        (tmp_path / "m01.py").write_text(f"# ── exercise run_turn ──\n{source}")
        said = "\n".join(course.grade("m01", "run_turn", tmp_path / "m01.py"))
        assert said.startswith("❌ run_turn: what you saved cannot be loaded: ") and words in said
    assert "nothing is saved yet" in course.grade("m01", "run_turn", tmp_path / "m02.py")[0]


@pytest.mark.long
def test_an_answer_that_ends_the_process_or_never_ends_is_named_so(course, tmp_path, monkeypatch):
    file = tmp_path / "m01.py"
    file.write_text("# ── exercise run_turn ──\nimport os\ndef run_turn(*_, **__):\n    os._exit(7)\n")
    assert course.grade("m01", "run_turn", file) == [
        "❌ run_turn: your code ended the whole process (exit code 7)"]
    file.write_text("# ── exercise run_turn ──\ndef run_turn(*_, **__):\n    while True: pass\n")
    monkeypatch.setattr(course, "PATIENCE", 5)
    assert "is there an endless loop?" in course.grade("m01", "run_turn", file)[0]


RUN = 'import course\nprint("before", flush=True)\n'
WRONG_RUNS = {  # what goes wrong: (cells as (source, tags), words of the failure)
    "a crash that does not come": ([("print(1)", ["crash"])], "it lives"),
    "a death that nobody announced": ([(RUN + "course.kill_kernel()", [])], "died (-9)"),
    "an exit in the place of a kill": ([("import os\nos._exit(3)", ["crash"])], "died (3)"),
    "an exception in the place of a kill": ([("1 / 0", ["crash"])], "ZeroDivisionError"),
    "an exception": ([("1 / 0", [])], "ZeroDivisionError"),
}


@pytest.mark.long
@pytest.mark.parametrize("problem", WRONG_RUNS)
def test_the_runner_refuses(problem, tmp_path):
    cells, words = WRONG_RUNS[problem]
    runner.copy_project(tmp_path)
    notebook = nbformat.v4.new_notebook(metadata=runner.METADATA, cells=[
        nbformat.v4.new_code_cell('import course\ncourse.fresh("m99_try")'),
        *(nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in cells)])
    with pytest.raises(AssertionError, match=re.escape(words)):
        runner.run(notebook, tmp_path / "notebooks")


@pytest.mark.long
def test_a_real_kernel_refuses_the_cell_that_waited_for_it(tmp_path):
    from jupyter_client.manager import start_new_kernel

    runner.copy_project(tmp_path)
    place = tmp_path / "notebooks"
    manager, client = start_new_kernel(cwd=str(place), env=runner.kernel_environment(place))
    try:
        client.execute('import course\ncourse.fresh("m99_try")\ncourse.kill_kernel()')
        manager.provisioner.process.wait()
        waiting = client.execute('import course\ncourse.reopen("m99_try")')  # nobody is there to take it
        manager.restart_kernel()
        reply = client.get_shell_msg(timeout=60)
        while reply["parent_header"]["msg_id"] != waiting:
            reply = client.get_shell_msg(timeout=60)
        assert "sent before the crash" in reply["content"]["evalue"]
        again = client.execute('import course\ncourse.reopen("m99_try")', reply=True, timeout=60)
        assert again["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


DEADLY_CHILD = """
import sys, json, course, tinyharness
name, moment, arguments = sys.argv[1:]
def model(messages, tools):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
with tinyharness.Session("log.jsonl", "workspace") as session:
    tinyharness.run_turn(session, "go", model, course.deadly(tinyharness.TOOLS, name, moment))
"""
WRITE, BASH = '{"path": "new", "content": "x"}', '{"command": "touch new; sleep 2; touch end"}'


@pytest.mark.long
@pytest.mark.parametrize("name, arguments", [("write_file", WRITE), ("bash", BASH)])
def test_a_deadly_tool_kills_before_during_and_after_its_effect(course, name, arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "MY", tmp_path)
    seen = {}
    for moment in ("before", "during", "after"):
        folder = course.fresh("m99_try")
        assert course.in_child(DEADLY_CHILD, name, moment, arguments).startswith("killed by SIGKILL")
        last = tinyharness.read_jsonl(folder / "log.jsonl")[-1]
        assert last.get("event") == "started", "the effect begins after its `started` record"
        left = {path.name for path in (folder / "workspace").iterdir()}
        seen[moment] = {"new" in left, *(each for each in left if each.endswith(".tmp") or each == "end")}
    halfway = {True} if name == "bash" else {False, ".tinyharness-halfway.tmp"}
    done = {True, "end"} if name == "bash" else {True}
    assert seen == {"before": {False}, "during": halfway, "after": done}


@pytest.mark.long
def test_a_child_says_how_it_ended(course, place):
    course.fresh("m99_try")
    assert course.in_child("import sys; print(sys.argv[1:])", 1, "二") == "exit code 0\n['1', '二']"
    assert course.in_child("import sys; sys.exit(3)") == "exit code 3"
    assert course.in_child("import course; course.kill_kernel()") == "killed by SIGKILL"
    assert not (place.folder / "m99_try" / "crash.json").exists(), "a child's death is not the kernel's"


@pytest.mark.long
def test_the_strict_server_answers(course):
    assert course.ask_strict([{"role": "user", "content": "你好"}]) == "200 ok"
    refused = course.ask_strict([{"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert refused.startswith("400 messages[0]")


@pytest.mark.long
def test_a_real_turn_asks_the_model_whose_key_is_set(course, place, monkeypatch, capsys):
    from strict_server import StrictServer

    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    course.fresh("m99_try")
    course.real_turn("hello")
    assert "No key is set" in capsys.readouterr().out
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "touch x"}'}}
    with StrictServer([{"tool_calls": [call]}, {"content": "It looks well."}]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        course.real_turn("hello")
    assert "It looks well." in capsys.readouterr().out
    assert "only looks" in server.requests[-1]["messages"][-1]["content"]


# ── What the README says of the notebooks ─────────────────────────────────────────────────────────

def test_the_readme_links_each_notebook_and_names_its_self_check():
    readme = (runner.ROOT / "README.md").read_text(encoding="utf-8")
    for name in NOT_THE_STARTER:
        row = next(line for line in readme.splitlines() if f"(notebooks/{name}.ipynb)" in line)
        tests = re.search(r"python -m pytest (tests/test_\w+\.py) --impl notebooks/my/(\w+)\.py`", row)
        assert tests[2] == name[:3] and name[:3] in tests[1] and (runner.ROOT / tests[1]).exists()
    assert "jupyter lab notebooks/m00_start.ipynb" in readme
    assert "chromium" in (runner.ROOT / ".ci" / "run").read_text(), "CI shows a notebook to a browser"

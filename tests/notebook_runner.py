"""Build the notebooks from notebooks/source/, run them with real kernel deaths, write them with outputs.

    python tests/notebook_runner.py [m04 ...]           build, run, write notebooks/m04_*.ipynb
    python tests/notebook_runner.py m04 --solved        run with the solutions, print, write nothing
    python tests/notebook_runner.py m04 --grade         stub, solution and wrong answers: what `check` says
"""

import argparse
import asyncio
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbclient.util import ensure_async

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS, SOURCES = ROOT / "notebooks", ROOT / "notebooks" / "source"
MARK = re.compile(r'# %%(?P<markdown> \[markdown\])? id="(?P<id>[a-z0-9_-]+)"(?: tags=\[(?P<tags>[^\]]*)\])?')
EXERCISE = re.compile(r"%%exercise (\w+)\n")
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CHANGING = (  # what is different in each run, and what is written in its place
    (r"\d{4}-\d\d-\d\d_\d{6}_[a-z]+", "2026-01-01_120000_otter"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", "2026-01-01 12:00:00 +0000"),
    (r'"ts": \d+(\.\d+)?', '"ts": 1767268800.0'),
    (r"\bpid(\W{1,3})\d+", r"pid\g<1>4711"),
    (r"\b0x[0-9a-f]{6,}\b", "0x7f0000000000"),
    (r"\.tinyharness-[0-9a-f]{12}\.tmp", ".tinyharness-0123456789ab.tmp"),
    (r"/tmp/ipykernel_\d+/\d+\.py", "cell.py"),
)


def names(chosen=()) -> list:
    """The notebooks that have a source: m00_start, m01_loop, and so on; or those that were chosen."""
    every = sorted(path.stem for path in SOURCES.glob("m[0-9][0-9]_*.py"))
    return [name for name in every if not chosen or name.startswith(tuple(chosen))]


def read_source(text) -> list:
    """The cells of a py:percent text as notebook cells; ValueError where a mark is wrong."""
    cells = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("# %%"):
            mark = MARK.fullmatch(line)
            if not mark:
                raise ValueError(f'line {number}: want # %% [markdown] id="name" tags=["crash"]: {line}')
            cells.append((mark, []))
        elif cells:
            cells[-1][1].append(line)
        elif line.strip():
            raise ValueError(f"line {number}: text before the first cell")
    return [make_cell(mark, lines) for mark, lines in cells]


def make_cell(mark, lines):
    """One notebook cell."""
    if mark["markdown"]:
        wrong = [line for line in lines if line.strip() and not re.match(r"#( |$)", line)]
        if wrong:
            raise ValueError(f"a markdown line of {mark['id']} must begin with '# ': {wrong[0]}")
        lines = [line[2:] for line in lines]
    make = nbformat.v4.new_markdown_cell if mark["markdown"] else nbformat.v4.new_code_cell
    cell = make("\n".join(lines).strip(), id=mark["id"])
    if mark["tags"]:
        cell.metadata["tags"] = re.findall(r'"([^"]+)"', mark["tags"])
    return cell


def build(name):
    """The notebook of a source, without outputs."""
    cells = read_source((SOURCES / f"{name}.py").read_text(encoding="utf-8"))
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    notebook.nbformat_minor = 5
    return notebook


def load_answers(name):
    """The module tests/answers/mNN.py, or None."""
    path = ROOT / "tests" / "answers" / f"{name[:3]}.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(f"answers_{name[:3]}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def solve(notebook, solutions):
    """Put the solutions into the exercise cells."""
    for cell in notebook.cells:
        found = EXERCISE.match(cell.source)
        if found:
            cell.source = found[0] + solutions[found[1]].strip()
    return notebook


def copy_project(place):
    """A copy of the project in which a notebook can run: it knows no earlier answers."""
    for part in ("notebooks", "tests"):
        shutil.copytree(ROOT / part, place / part,
                        ignore=shutil.ignore_patterns("my", "__pycache__", ".ipynb_checkpoints"))
    for part in ("tinyharness.py", "pytest.ini"):
        shutil.copy(ROOT / part, place / part)


class Client(NotebookClient):
    """A client that sees at once that a kernel has died."""

    async def _async_poll_kernel_alive(self):
        while await ensure_async(self.km.is_alive()):
            await asyncio.sleep(0.05)
        self.task_poll_for_reply.cancel()


def kernel_environment(folder) -> dict:
    """What the kernel sees: no key of a real model, and nothing of the user's own IPython."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**kept, "IPYTHONDIR": str(folder.parent / ".ipython"), "PYTHONWARNINGS": "ignore"}


def run(notebook, folder):
    """Run all cells; a kernel must die by SIGKILL exactly in the cells that are tagged `crash`."""
    todo = [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    while todo:
        client = Client(notebook, timeout=120, kernel_name="python3",
                        resources={"metadata": {"path": str(folder)}})
        with client.setup_kernel(env=kernel_environment(folder)):
            while todo:
                number, cell = todo.pop(0)
                wanted = "crash" in cell.metadata.get("tags", [])
                try:
                    client.execute_cell(cell, number)
                except DeadKernelError:
                    ending = client.km.provisioner.process.poll()
                    if not wanted or ending != -9:
                        raise AssertionError(f"cell {cell.id}: the kernel died ({ending})") from None
                    break
                except CellExecutionError as error:
                    raise AssertionError(f"cell {cell.id}: {error}") from None
                if wanted:
                    raise AssertionError(f"cell {cell.id}: the kernel was to die here, and it lives")
    return notebook


def normalize(notebook, folder):
    """Take out of the outputs what is different in each run."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = join_streams(cell.outputs)
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
                if "text" in output:
                    output.text = normalize_text(output.text, folder)
                for kind, data in output.get("data", {}).items():
                    output.data[kind] = normalize_text(data, folder) if isinstance(data, str) else data
                if "traceback" in output:
                    output.traceback = [normalize_text(line, folder) for line in output.traceback]
    return notebook


def join_streams(outputs) -> list:
    """Neighbours of one stream in one output: how they were cut depends on the time."""
    joined = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def normalize_text(text, folder) -> str:
    """Text without this run's paths, times and numbers."""
    for place in sorted({str(folder), str(folder.resolve())}, key=len, reverse=True):
        text = text.replace(place, "tinyharness")
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return text


def play(name, solved=False):
    """Build and run a notebook in a copy of the project, and return it with its outputs."""
    notebook = build(name)
    if solved and load_answers(name):
        solve(notebook, load_answers(name).SOLUTION)
    with tempfile.TemporaryDirectory(prefix="tinyharness-", ignore_cleanup_errors=True) as place:
        copy_project(Path(place))
        run(notebook, Path(place) / "notebooks")
        return normalize(notebook, Path(place))


def encode(notebook) -> str:
    """The text of the file."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def show(notebook):
    """Print code cells with their outputs."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            print(f"── {cell.id} {'💀' if 'crash' in cell.metadata.get('tags', []) else ''}")
            for output in cell.outputs:
                text = output.get("text") or output.get("data", {}).get("text/plain", "")
                print("\n".join(f"   {line}" for line in text.rstrip().splitlines()))


def stubs(name) -> dict:
    """Exercise -> the cell as it stands in the notebook."""
    found = [(EXERCISE.match(cell.source), cell.source) for cell in build(name).cells]
    return {mark[1]: source[mark.end():] for mark, source in found if mark}


def answers(name):
    """(exercise, kind of answer, source, words that the check must say) for all of a notebook."""
    known = load_answers(name)
    for exercise, stub in stubs(name).items():
        yield exercise, "the stub", stub, "not written yet (NotImplementedError"
        yield exercise, "the solution", known.SOLUTION[exercise], "✅"
        for mistake, (source, words) in known.WRONG[exercise].items():
            yield exercise, mistake, source, words


def grade(name, exercise, source) -> str:
    """What `course.check` prints for an answer."""
    sys.path.insert(0, str(NOTEBOOKS))
    import course

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / f"{name[:3]}.py"
        file.write_text(f"# ── exercise {exercise} ──\n{source}", encoding="utf-8")
        return "\n".join(course.grade(name, exercise, file))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebooks", nargs="*", help="m00 m04 ...; default all")
    parser.add_argument("--solved", action="store_true", help="with the solutions; writes nothing")
    parser.add_argument("--grade", action="store_true", help="grade the stub and all the answers")
    options = parser.parse_args()
    chosen = names(options.notebooks)
    for name in chosen:
        if options.grade:
            for exercise, kind, source, words in answers(name):
                said = grade(name, exercise, source)
                print("ok " if words in said else f"WANT {words!r} IN", f"{exercise}, {kind}:\n{said}\n")
            continue
        notebook = play(name, options.solved)
        show(notebook)
        if not options.solved:
            (NOTEBOOKS / f"{name}.ipynb").write_text(encode(notebook), encoding="utf-8")
        print(f"{name}: {len(notebook.cells)} cells ran{', solved' * options.solved}")
    return 0 if chosen else f"no such notebook in {SOURCES}"


if __name__ == "__main__":
    sys.exit(main())

"""Claim: behind a crash, the restart cell and all below it can be run again, in a new kernel the next day too."""

import nbformat
import notebook_runner as runner
import pytest


def below_the_last_crash(cells) -> list:
    """The code cells from the last restart on."""
    last = max(index for index, cell in enumerate(cells) if "crash" in cell.metadata.get("tags", []))
    return [cell for cell in cells[last + 1:] if cell.cell_type == "code"]


@pytest.mark.long
@pytest.mark.parametrize("name", runner.names())
def test_all_below_the_restart_can_be_run_again(name, tmp_path):
    runner.copy_project(tmp_path)
    notebook = runner.run(runner.build(name), tmp_path / "notebooks")
    again = nbformat.v4.new_notebook(metadata=runner.METADATA, cells=below_the_last_crash(notebook.cells))
    if runner.load_answers(name):  # meanwhile the answers are written
        runner.solve(again, runner.load_answers(name).SOLUTION)
    runner.run(again, tmp_path / "notebooks")
    said = "".join(str(cell.get("outputs", "")) for cell in again.cells)
    assert "❌" not in said and "💥" not in said

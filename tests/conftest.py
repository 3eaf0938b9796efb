"""Whom the checks grade: the reference, or with `--impl FILE` a learner's own file.
And what the long sweeps survived: it is held against the table in the README."""

import importlib.util
import sys
from pathlib import Path

import pytest
from reliability import check_row, write_row

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def pytest_addoption(parser):
    parser.addoption("--impl", metavar="FILE", help="grade this file instead of tinyharness.py")
    parser.addoption("--long", action="store_true", help="run the long sweeps too")
    parser.addoption("--write-table", action="store_true",
                     help="write what the sweeps survive into the table of README.md")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: a long sweep; runs with --long, as in CI")
    chosen = config.getoption("--impl")
    if chosen and not Path(chosen).is_file():
        raise pytest.UsageError(f"--impl {chosen}: there is no such file, so there is nothing to grade")


def pytest_report_header(config):
    chosen = config.getoption("--impl")
    return f"grading: {chosen or 'tinyharness.py (the reference)'}"


def pytest_collection_modifyitems(config, items):
    """With --impl only what grades an implementation runs; without --long, no long sweep."""
    if config.getoption("--impl"):
        items[:] = [item for item in items if "impl" in getattr(item, "fixturenames", ())]
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="a long sweep: python -m pytest --long")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def impl(pytestconfig):
    """The module under test: the reference, or the learner's file."""
    chosen = pytestconfig.getoption("--impl")
    spec = importlib.util.spec_from_file_location("implementation", chosen or ROOT / "tinyharness.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def survived(request, pytestconfig, capsys):
    """Say how many trials a sweep made, and how many sessions it lost; README's row must say it too."""
    readme, name = ROOT / "README.md", request.node.originalname

    def report(tried, lost=0):
        with capsys.disabled():
            print(f"\n{name}: {tried} tried, {lost} lost")
        text = readme.read_text(encoding="utf-8")
        if pytestconfig.getoption("--write-table"):
            readme.write_text(write_row(text, name, tried, lost), encoding="utf-8")
        elif not pytestconfig.getoption("--impl"):
            check_row(text, name, tried, lost)

    return report

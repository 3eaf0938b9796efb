"""Claim: in a real JupyterLab, Run All stops at a crash, no cell behind it runs, and Run Below goes on.

The witness is a trace file that the cells write, because what the page shows can be wrong.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import notebook_runner as runner
import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
from selenium.common.exceptions import WebDriverException  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
         "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--window-size=1300,4000"]
PATIENCE = 60  # seconds: more than enough for a step, also on a machine with other things to do


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what):
    """The first true value of a condition; an error while it is asked counts as not yet."""
    until, error = time.monotonic() + PATIENCE, None
    while time.monotonic() < until:
        try:
            if value := condition():
                return value
        except (OSError, LookupError, WebDriverException) as seen:
            error = seen
        time.sleep(0.1)
    pytest.fail(f"waited {PATIENCE} s in vain for {what} ({error})")


class Browser:
    """Headless Chromium, as a person would use it."""

    def __init__(self, folder):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(flag)
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.run, self.open, self.close = (
            self.driver.execute_script, self.driver.get, self.driver.quit)

    def click(self, selector):
        """Click what a person would click, as soon as it can be clicked."""
        def try_it():
            self.driver.find_element("css selector", selector).click()
            return True
        wait_for(try_it, f"a click on {selector}")

    def choose(self, command):
        """Choose a command of the Run menu."""
        self.click('.lm-MenuBar-item[data-type="menu"] , #jp-MainMenu li:nth-child(4)')
        self.click(f'.lm-Menu-item[data-command="{command}"]')


def prepare(name, place) -> list:
    """Put the notebook into a copy of the project, and return its cells; each code cell, but for the
    exercises, first writes its id into trace.txt."""
    runner.copy_project(place)
    notebook = runner.build(name)
    for cell in traced(notebook.cells):
        cell.source = f'_ = open("trace.txt", "a").write("{cell.id}\\n")\n{cell.source}'
    (place / "notebooks" / f"{name}.ipynb").write_text(runner.encode(notebook), encoding="utf-8")
    return notebook.cells


def traced(cells) -> list:
    """The cells that tell that they ran."""
    return [cell for cell in cells if cell.cell_type == "code" and "%%exercise" not in cell.source]


@pytest.fixture
def lab(tmp_path):
    """A JupyterLab of its own; the value is its address."""
    runner_folder, token, port = tmp_path / "project", "a" * 24, free_port()
    runner_folder.mkdir()
    environment = {**runner.kernel_environment(runner_folder / "notebooks"), "HOME": str(tmp_path)}
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        environment[f"JUPYTER_{kind}_DIR"] = str(tmp_path / kind.lower())
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
         f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
         f"--ServerApp.root_dir={runner_folder}", "--LabApp.news_url=None",
         "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"],
        env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=open(tmp_path / "lab.log", "wb"))
    address = f"http://127.0.0.1:{port}"
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        wait_for(lambda: direct.open(f"{address}/api?token={token}", timeout=5), "JupyterLab")
        yield f"{address}/lab/tree/notebooks/{{}}.ipynb?token={token}"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.long
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver: "
                    "apt-get install chromium chromium-driver")
@pytest.mark.parametrize("name", runner.names())
def test_a_person_runs_a_notebook_through_its_crashes(lab, tmp_path, name):
    project, done = tmp_path / "project", 0
    cells = prepare(name, project)
    ids = [cell.id for cell in traced(cells)]
    crashes = [cell.id for cell in cells if "crash" in cell.metadata.get("tags", [])]
    browser = Browser(tmp_path)
    try:
        open_notebook(browser, lab.format(name), sum(cell.cell_type == "code" for cell in cells))
        browser.choose("runmenu:run-all")
        for crash in crashes:
            done = ids.index(crash) + 1
            wait_for_trace(project, ids[:done])
            said = wait_for(lambda: browser.run("return document.querySelector('.jp-Dialog')?.textContent"),
                            "the message that the kernel died")
            assert "restart" in said.lower(), said
            browser.click(".jp-Dialog .jp-mod-accept")
            time.sleep(3)  # a cell that waited for the dead kernel would run now
            wait_for_trace(project, ids[:done])
            index = next(index for index, cell in enumerate(cells) if cell.id == ids[done])
            browser.click(f'.jp-Cell[data-windowed-list-index="{index}"] .jp-InputPrompt')
            browser.choose("notebook:run-all-below")
        wait_for_trace(project, ids)
        last = f"""document.querySelector('.jp-Cell[data-windowed-list-index="{len(cells) - 1}"]').textContent"""
        wait_for(lambda: browser.run(f"return /\\[\\d+\\]/.test({last})"), "the number of the last cell")
        errors = "return [...document.querySelectorAll('[data-mime-type*=error]')].map(each => each.textContent)"
        assert browser.run(errors) == []
        widths = "return [...document.querySelectorAll('.jp-RenderedSVG img')].map(each => each.naturalWidth)"
        drawn = sum("course.picture" in cell.source or "course.columns" in cell.source for cell in cells)
        assert not drawn or any(browser.run(widths)), "no picture is on the page"
    finally:
        if os.environ.get("SCREENSHOTS"):
            browser.driver.save_screenshot(Path(os.environ["SCREENSHOTS"]) / f"{name}.png")
        browser.close()


def open_notebook(browser, address, count):
    """Open a notebook, and wait until its cells are there and its kernel is."""
    browser.open(address)
    wait_for(lambda: browser.run("return document.querySelectorAll('.jp-CodeCell').length") == count, "the cells")
    status = "return document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status"
    wait_for(lambda: browser.run(status) == "idle", "the kernel")


def wait_for_trace(project, wanted):
    """Wait until exactly these cells have run; what ran besides them, or twice, is an error at once."""
    trace = project / "notebooks" / "trace.txt"

    def agrees():
        ran = trace.read_text().split()
        assert ran == wanted[:len(ran)], f"ran {ran[-3:]} after {wanted[:len(ran)][-3:]}"
        return ran == wanted
    wait_for(agrees, f"the cell {wanted[-1]}")

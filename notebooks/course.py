"""What is course and not harness: the crash, the restart guard, the exercise, the check, the pictures.

A notebook begins with `import course, tinyharness` and `folder = course.fresh("m04_repair")`, kills its
kernel with `course.kill_kernel()` or in a tool of `course.deadly(...)`, and goes on in the next cell with
imports again and `folder = course.reopen("m04_repair")`. Nothing here is needed to run the harness.
"""

import datetime
import functools
import importlib.util
import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MY = ROOT / "notebooks" / "my"  # the learner's answers, and a folder for each notebook; not in git
ANSWERS = ROOT / "tests" / "answers"
PATIENCE = 60  # seconds: many times what the checks of an exercise take
PAUSE = 0.5  # seconds: with less, output is lost, and queued cells run in the next kernel
sys.path[:0] = [place for place in (str(ROOT), str(ROOT / "tests")) if place not in sys.path]

import tinyharness  # noqa: E402  (found through the line above)
from drawing import columns, picture  # noqa: E402, F401

notebook = os.environ.get("COURSE_NOTEBOOK", "")  # "m04_repair": which notebook this kernel runs


# ── A notebook's folder, before and after its crash ───────────────────────────────────────────────

def folder_of(name) -> Path:
    """The folder of a notebook, relative to where we are, so that it prints short."""
    return Path(os.path.relpath(MY / name))


def fresh(name) -> Path:
    """Empty the folder `notebooks/my/<name>/`, put the rehearsal's task into `workspace/`, return it."""
    global notebook
    notebook = name
    shutil.rmtree(MY / name, ignore_errors=True)
    tinyharness.make_demo(MY / name / "workspace")
    return folder_of(name)


def reopen(name) -> Path:
    """The same folder after the crash, nothing emptied. Refuses where no crash came before."""
    global notebook
    notebook = name
    if is_ghost():
        raise RuntimeError("This cell was sent before the crash and waited. Please run it again.")
    try:
        crash = json.loads((MY / name / "crash.json").read_text())
    except FileNotFoundError:
        raise RuntimeError("No crash is on record here. Please run the cells above first.") from None
    if crash["pid"] == os.getpid() and crash["time"] > process_start():
        raise RuntimeError("This kernel was to die in the cell above, and it lives. Please run that.")
    return folder_of(name)


def kernel_shell():
    """The IPython shell if this process is a notebook's kernel, else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def process_start() -> float:
    """When this process began, in Unix seconds."""
    try:  # from Linux itself: psutil is up to a second too early there, which lets a ghost pass
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, AttributeError):
        import psutil  # comes with every kernel

        return psutil.Process().create_time()


def is_ghost() -> bool:
    """Whether the running cell was sent to the kernel before this one, which died: it only waited."""
    shell = kernel_shell()
    sent = shell.kernel.get_parent("shell").get("header", {}).get("date") if shell else None
    if isinstance(sent, str):
        sent = datetime.datetime.fromisoformat(sent.replace("Z", "+00:00"))
    return bool(sent) and sent.timestamp() < process_start()


# ── The crash ─────────────────────────────────────────────────────────────────────────────────────

def kill_kernel():
    """Kill this process with SIGKILL, which nothing can catch; what was written to a file stays."""
    if kernel_shell():
        crash = {"pid": os.getpid(), "time": time.time()}
        (MY / notebook / "crash.json").write_text(json.dumps(crash))
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(PAUSE if kernel_shell() else 0)
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(table, name, moment="during") -> dict:
    """A copy of a tool table in which the tool `name` kills this process: "before", "during" or
    "after" its effect, and in each case after its `started` record is on disk.

    During: `bash` and plain functions have run for half a second (a shell command lives on);
    of `write_file` and `edit_file` the new bytes are in a temporary file, not yet in place.
    """
    chosen = table[name]

    def die_in(effect):
        @functools.wraps(effect)
        def dying(*arguments, **named):
            if moment == "during":
                threading.Thread(target=effect, args=arguments, kwargs=named, daemon=True).start()
                time.sleep(PAUSE)
            elif moment == "after":
                effect(*arguments, **named)
            kill_kernel()
        return dying

    @functools.wraps(chosen)
    def plan_and_die(*arguments, **named):
        plan = chosen(*arguments, **named)
        halfway = functools.partial(leave_temporary, plan)
        tinyharness.replace_file = die_in(halfway if moment == "during" else tinyharness.replace_file)
        return plan

    return {**table, name: plan_and_die if getattr(chosen, "plans", False) else die_in(chosen)}


def leave_temporary(plan, *_):
    """What `replace_file` has done when it is killed just before it puts the new file in place."""
    path, data = plan
    path.with_name(".tinyharness-halfway.tmp").write_bytes(data)


def in_child(source, *arguments) -> str:
    """Run Python source in a child process, in this notebook's folder; it may import tinyharness and
    course, and finds the arguments in sys.argv[1:]. Return how it ended, and what it printed."""
    roads = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": roads, "COURSE_NOTEBOOK": notebook}
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], cwd=MY / notebook, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    ended = f"exit code {done.returncode}"
    if done.returncode < 0:
        ended = f"killed by {signal.Signals(-done.returncode).name}"
    return f"{ended}\n{done.stdout.decode('utf-8', 'replace')}".strip()


def ask_strict(messages) -> str:
    """Send messages to a strict provider on this machine: "200 ok", or "400" and its words."""
    from strict_server import StrictServer

    body = json.dumps({"model": "strict", "messages": messages}).encode()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with StrictServer([{"content": "ok"}]) as server:
        request = urllib.request.Request(
            f"{server.url}/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with direct.open(request, timeout=10) as reply:
                return f"{reply.status} ok"
        except urllib.error.HTTPError as error:
            return f"{error.code} {json.load(error)['error']['message']}"


def real_turn(prompt, tools=tinyharness.TOOLS):
    """One turn with a real model if a key is set, in a folder of its own; else say how to set one.
    What could change something is refused, for nobody is asked here."""
    if not (os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")):
        return print("No key is set, so no real model is asked. Start Jupyter with OPENAI_API_KEY, or with\n"
                     "OPENAI_BASE_URL (Ollama, llama.cpp and vLLM have one), and OPENAI_MODEL, and run this again.")
    name = os.environ.get("OPENAI_MODEL") or tinyharness.DEFAULT_MODEL
    path, workspace = MY / notebook / "real.jsonl", MY / notebook / "workspace"
    with tinyharness.Session(path, workspace, name) as session:
        tinyharness.run_turn(session, prompt, tinyharness.openai_model(name), tools,
                             approve=lambda name, arguments: "this notebook only looks")


# ── The exercise and its check ────────────────────────────────────────────────────────────────────

def answer_file(name="") -> Path:
    """The file that holds the learner's answers of a notebook: `notebooks/my/m04.py`."""
    return MY / f"{(name or notebook)[:3]}.py"


def exercise(line, cell):
    """Cell magic `%%exercise NAME`: save the cell as a block of notebooks/my/mNN.py, and run it."""
    name, file, source = line.strip(), answer_file(), cell.strip() + "\n\n"
    known = list(load_file(ANSWERS / file.name).CHECKS)
    if name not in known:
        return print(f"❌ {name or 'no name'}: the exercises here are {', '.join(known)}; nothing is saved")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    blocks = dict(re.findall(r"(?ms)^# ── exercise (\w+) ──\n(.*?)(?=^# ── exercise |\Z)", text))
    old, stub = blocks.get(name, source), "raise NotImplementedError"
    if old != source and stub not in old:
        file.with_suffix(f".{name}.before.py").write_text(old, encoding="utf-8")
        if stub in source:
            print(f"Your answer was saved before; it is now in my/{file.stem}.{name}.before.py")
    blocks[name] = source
    try:
        compile(cell, name, "exec")
    except SyntaxError as error:
        del blocks[name]  # it would make the other exercises of the file red too
        print(f"❌ {name}: line {error.lineno + 1} of this cell is no Python ({error.msg}); it is not saved")
    text = "".join(f"# ── exercise {each} ──\n{block}" for each, block in blocks.items())
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    linecache.checkcache(str(file))
    # As many empty lines first as stand above it in the file, so that errors name the right line.
    above = text.partition(f"# ── exercise {name} ──\n")[0].count("\n") + 1
    if name in blocks:
        exec(compile("\n" * above + source, str(file), "exec"), kernel_shell().user_ns)


def load_file(file):
    """A Python file as a module, made anew each time."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mine():
    """The learner's saved answers of this notebook as a module; works in a child process too."""
    return load_file(answer_file())


def check(name, strict=False):
    """Grade the saved exercise in a child process: a green line, or a red one for each failed check.
    With strict=True anything but green raises AssertionError."""
    lines = grade(notebook, name, answer_file())
    print("\n".join(lines))
    if strict and not lines[0].startswith("✅"):
        raise AssertionError(f"{name} is not green yet")


def grade(notebook, name, file) -> list:
    """The lines that `check` prints for one exercise of a file."""
    if not file.exists() or f"# ── exercise {name} ──" not in file.read_text(encoding="utf-8"):
        return [f"❌ {name}: nothing is saved yet, run the exercise cell first; it must be Python"]
    tests, *only = load_file(ANSWERS / f"{notebook[:3]}.py").CHECKS[name]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for nuisance in ("FORCE_COLOR", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        environment.pop(nuisance, None)
    with tempfile.TemporaryDirectory() as place:
        report, rooms = Path(place, "report.xml"), Path(place, "rooms")
        command = [sys.executable, "-m", "pytest", "--color=no", "-p", "no:cacheprovider", "--tb=short",
                   f"--basetemp={rooms}", f"--junitxml={report}", f"--impl={file}", tests]
        command += ["-k", *only] if only else []
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return [f"❌ {name}: the checks did not end within {PATIENCE} seconds: is there an endless loop?"]
        except KeyboardInterrupt:
            return [f"❌ {name}: the checks were interrupted"]
        if done.returncode not in (0, 1) or not report.exists():
            output = (done.stdout + done.stderr).replace(str(ROOT), ".").strip().splitlines()
            wrong = [line for line in output if line.startswith(("E  ", "ERROR"))] or output[-1:]
            if done.returncode not in (2, 3, 4, 5):  # pytest's own ways to say that it could not begin
                return [f"❌ {name}: your code ended the whole process (exit code {done.returncode})"]
            return [f"💥 {name}: the checks are broken, this is not your fault: {' '.join(wrong)[:300]}"]
        cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))
        said = [explain(case, file.name) for case in cases]
        said = [line.replace(str(rooms), "…").replace(str(ROOT), ".") for line in said if line]
    skipped = [each.get("message", "") for case in cases for each in case.iter("skipped")]
    missing = [why for why in skipped if "--long" not in why]
    count, wanted = len(cases) - len(skipped), len(cases) - len(skipped) + len(missing)
    if said:
        return [f"❌ {name}: {line}" for line in dict.fromkeys(said)]
    if missing:
        return [f"✅ {name}: {count} of {wanted} checks pass; not possible here: {missing[0]}"]
    return [f"✅ {name}: all {count} checks pass"]


def explain(case, file) -> str:
    """One line on a failed check: what is wrong, in the check's own words; "" if it passed."""
    problem = next((each for each in case if each.tag in ("failure", "error")), None)
    if problem is None:
        return ""
    trace, message = problem.text or "", problem.get("message", "").partition("\nassert ")[0]
    # Of a child's traceback only its last line.
    frames = r"Traceback \(most recent call last\):\n(?: .*\n)*?(?= *\w[\w.]*(?:Error|Exception|Interrupt)\b)"
    message = re.sub(frames, "", message)
    text = " ".join(re.sub(r"\[\+\d+ more lines?[^]]*\]", "", message).split())
    text = text.removeprefix("AssertionError: ").removeprefix("Failed: ")[:400]
    if text.startswith("NotImplementedError") or text.endswith("NotImplementedError"):
        return "not written yet (NotImplementedError)"
    if problem.tag == "error" and file not in trace:
        return f"this check is broken, it is not your fault: {text}"
    places = re.findall(rf"(?<!\w){re.escape(file)}:(\d+)", trace)
    if problem.tag == "error":
        errors = [line for line in trace.splitlines() if line.startswith("E  ")]
        text = f"what you saved cannot be loaded: {' '.join(errors[-1].split()[1:])}"
    return f"{text} ({file}, line {places[-1]})" if places and "Error: " in text else text


if kernel_shell():
    kernel_shell().register_magic_function(exercise, "cell", "exercise")

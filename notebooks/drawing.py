"""The pictures of the notebooks, drawn as SVG: a session's records, and the three places of a byte.

A drawing brings its own background, so that it can be read on a light page and on a dark one; as text
(`print`) it says the same, for a page that shows no pictures and for a reader who sees none.
"""

import html
import json
import re
import unicodedata
from pathlib import Path

import tinyharness

WIDTH, ROW, LETTER = 860, 24, 7.25  # of the drawing; a letter of 12 px monospace
SHOWN = 800  # pixels on the page: as wide as JupyterLab shows without a scroll bar
INK, FAINT, PAPER, LINE = "#24292f", "#6e7781", "#fbfaf7", "#d8d5cc"
RED, COLORS = "#c62828", {  # kind of record: the colour of its label
    "user": "#1f6feb", "assistant": "#7b3fb5", "tool": "#2e7d32", "verdict": "#c25e00",
    "started": "#8a6d00", "no result": "#c62828", "system": "#57606a", "event": "#57606a", "torn": "#c62828"}
ARCS = ("#2e7d32", "#1f6feb", "#7b3fb5", "#00796b")


class Drawing:
    """An SVG that a notebook shows, and the same in text."""

    def __init__(self, svg, text):
        self.svg, self.text = svg, text

    def _repr_svg_(self):
        return self.svg

    def __repr__(self):
        return self.text


# ── What is in a file: rows of (line number, kind, text, record) ──────────────────────────────────

def read_rows(path) -> list:
    """A row for each record and each damaged line of a log."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        records, problem = tinyharness.parse_line(line)
        rows += [(number, *describe_record(record), record) for record in records]
        if problem:
            rows.append((number, "torn", f"{show_bytes(line)}   ({problem})", {}))
    return rows


def read_lines(path) -> list:
    """The lines of a file as bytes, each with its newline; none without a file."""
    return Path(path).read_bytes().splitlines(keepends=True) if Path(path).exists() else []


def show_bytes(line, most=48) -> str:
    """The end of a line that is no record, where it was torn."""
    text = line.decode("utf-8", "replace").rstrip("\n")
    return text if len(text) <= most else f"{text[:12]} … {text[15 - most:]}"


def describe_record(record) -> tuple:
    """What kind of record it is, and what it says, in a few words."""
    if record.get("role") not in tinyharness.ROLES:
        return describe_event(record)
    text, calls, results = tinyharness.read_message(record)
    said = [f"call {name_of(function)} {brief(function)}" for _, function in calls]
    answers = [answer for _, answer in results]
    kind = record["role"] if not results else "verdict" if "verdict" in record else "tool"
    return kind, flat("; ".join([*filter(None, [text] if not results else answers), *said]))


def describe_event(record) -> tuple:
    """The same for an event; a session's first line is told by its name only, for it has a date."""
    event = str(record.get("event"))
    if event == "started":
        return "started", f"{record.get('tool')}: from here on its effect is possible"
    about = " ".join(str(record[key]) for key in ("state", "reason") if record.get(key))
    return "event", flat(f"{event} {about}")


def name_of(function) -> str:
    """The name of the tool that is called."""
    return str(function.get("name")) if isinstance(function, dict) else "?"


def brief(function) -> str:
    """The arguments of a call, without their names."""
    given = function.get("arguments") if isinstance(function, dict) else None
    said = json.loads(tinyharness.arguments_text(given))
    return ", ".join(json.dumps(value, ensure_ascii=False) for value in said.values())


def flat(text) -> str:
    """Text on one line, without the way to the project."""
    return " ".join(text.replace(f"{Path(__file__).resolve().parent.parent}/", "").split())


def cut(text, width) -> str:
    """Text cut to a number of columns; a Chinese letter or an emoji takes two."""
    for position, letter in enumerate(text):
        width -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if width < 1 and position < len(text) - 1:
            return text[:position] + "…"
    return text


# ── SVG ───────────────────────────────────────────────────────────────────────────────────────────

def write(x, y, text, color=INK, size=12, more="") -> str:
    """A line of text; what XML cannot hold is shown by a sign."""
    text = re.sub("[\ud800-\udfff\ufffe\uffff]", "\ufffd", tinyharness.CONTROLS.sub("␀", text))
    return (f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size}" {more}>'
            f"{html.escape(text)}</text>")


def box(x, y, width, height, fill, edge="none", more="") -> str:
    """A rectangle with round corners."""
    return (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" '
            f'stroke="{edge}" {more}/>')


def line(path, color, width=1.5, more="") -> str:
    """A line along an SVG path."""
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}" {more}/>'


def sheet(height, title, parts) -> str:
    """A whole SVG on its own background."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{SHOWN}" height="{height * SHOWN / WIDTH:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" '
            f'font-family="ui-monospace, Menlo, Consolas, monospace">'
            f"<title>{html.escape(title)}</title>"
            + box(0.5, 0.5, WIDTH - 1, height - 1, PAPER, LINE) + "".join(parts) + "</svg>")


def label(x, y, kind, width=76) -> str:
    """The coloured label of a record."""
    return (box(x, y - 13, width, 18, COLORS[kind])
            + write(x + width / 2, y, kind, "#ffffff", 11, 'text-anchor="middle"'))


def zigzag(x, y, width) -> str:
    """The line along which something was torn or killed."""
    steps = "".join(f"l6 {6 if step % 2 else -6}" for step in range(int(width // 6)))
    return line(f"M{x} {y}{steps}", RED, 2)


# ── picture: a session as a lane of records ───────────────────────────────────────────────────────

def picture(path) -> Drawing:
    """A session: its records in the order of the file, each call joined with its result, torn lines,
    where it was killed, and what may be said of each call that has no result."""
    rows, name = read_rows(path), Path(path).name
    if not rows:
        return Drawing(sheet(50, name, [write(20, 30, f"{name}: nothing is on disk", FAINT)]),
                       f"{name}: nothing is on disk")
    crashes, verdicts = find_crashes(rows), judge_open_calls(rows)
    parts, texts, places = [], [], []
    for index, (number, kind, text, _) in enumerate([*rows, *verdicts]):
        if index in crashes:
            words = "killed here" if index < len(rows) else "the log ends here, and the turn does not"
            parts.append(draw_crash(34 + ROW * len(texts), words))
            texts.append(f"     ⚡ {words}")
        places.append(34 + ROW * len(texts))
        parts.append(draw_row(places[-1], number, kind, text))
        texts.append(cut(f"{number:>4} {kind:10} {text}", 100))
    if len(rows) in crashes and not verdicts:
        parts.append(draw_crash(34 + ROW * len(texts), "the log ends here, and the turn does not"))
        texts.append("     ⚡ the log ends here, and the turn does not")
    ends = iter(places[len(rows):])  # an open call ends at its verdict
    joins = [(places[begin], places[end] if end else next(ends, places[-1]), bool(end))
             for begin, end in find_pairs(rows)]
    parts += draw_joins(joins)
    return Drawing(sheet(30 + ROW * len(texts), f"{name}: {len(rows)} records", parts), "\n".join(texts))


def draw_row(y, number, kind, text) -> str:
    """A record; or, where it has no number, the verdict on a call that has no result."""
    color = {"torn": RED, "event": FAINT, "started": FAINT}.get(kind, INK) if number else RED
    back = box(36, y - 16, 724, 23, "#fdecea", RED, 'stroke-dasharray="3 3"') if color == RED else ""
    return (back + write(26, y, str(number), FAINT, 11, 'text-anchor="end"') + label(40, y, kind)
            + write(126, y, cut(text, 86), color))


def draw_crash(y, text) -> str:
    """A crash between two records."""
    size = LETTER * len(text) + 34
    return zigzag(36, y - 4, 724 - size) + write(766 - size, y, f"⚡ {text}", RED, 12, 'font-weight="bold"')


def find_pairs(rows) -> list:
    """[row of the call, row of its result or None] for each call, paired by id as a provider does."""
    pairs, waiting = [], {}
    for index, (_, _, _, record) in enumerate(rows):
        if record.get("role") in tinyharness.ROLES:
            _, calls, results = tinyharness.read_message(record)
            for said, _ in results:
                waiting.get(tinyharness.text_of(said), [0, 0])[1] = index
            for said, _ in calls:
                pairs.append([index, None])
                waiting[tinyharness.text_of(said)] = pairs[-1]
    return pairs


def draw_joins(joins) -> list:
    """A line at the right edge from each call to its result; dashed to its verdict if it has none."""
    parts, taken = [], [0] * 6  # down to where each track is in use
    for top, low, answered in joins:
        track = next((each for each, until in enumerate(taken) if until < top), 5)
        taken[track] = low
        x, color = 778 + 12 * track, ARCS[track % 4] if answered else RED
        way = f"M764 {top - 4}H{x - 5}q5 0 5 5V{low - 9}q0 5 -5 5H764m6 -4l-6 4l6 4"
        parts.append(line(way, color, 1.8, "" if answered else 'stroke-dasharray="4 3"'))
    return parts


def find_crashes(rows) -> set:
    """The rows before which a turn broke off: it has no `turn` event, and another writer came, or none."""
    crashes, is_open = set(), False
    for index, (_, kind, _, record) in enumerate(rows):
        event = record.get("event")
        if event == "resumed" and is_open:
            crashes.add(index)
        if event in ("resumed", "turn"):
            is_open = False
        is_open = is_open or kind == "torn" or record.get("role") in tinyharness.ROLES
    records = [row[3] for row in rows if row[3]]
    state = tinyharness.describe_state(records)
    broken = rows and rows[-1][1] == "torn"
    return crashes | ({len(rows)} if is_open and (broken or state != "done") else set())


def judge_open_calls(rows) -> list:
    """A row without a number for each call that has no result: the verdict, from the log alone."""
    calls = tinyharness.open_calls([record for _, _, _, record in rows if record])
    verdicts = [(call.name, tinyharness.judge_call(call)) for call in calls]
    return [("", "no result", f"{name}: {verdict}", {}) for name, verdict in verdicts]


# ── columns: process, OS cache, disk ──────────────────────────────────────────────────────────────

PLACES = (("process", "lost with the process"), ("OS cache", "lost with the power"), ("disk", "stays"))


def columns(path, memory=(), synced=None, lost="") -> Drawing:
    """Where the bytes are: in the `memory` of the process (texts or records that are not written),
    in the OS cache (the lines of the file), on disk (the first `synced` lines; None: all of them).
    `lost="process"`: the process was killed; `lost="power"`: the machine lost its power."""
    held = [describe_record(each) if isinstance(each, dict) else ("", str(each)) for each in memory]
    lines = [(kind, text) for _, kind, text, _ in read_rows(path)]
    stored = lines if synced is None else lines[:synced]
    gone = {"": 0, "process": 1, "power": 2}[lost]
    contents = [[] if place < gone else shorten(rows) for place, rows in enumerate((held, lines, stored))]
    height = 96 + ROW * max(1, *map(len, contents))
    parts, texts = [], []
    for place, ((name, fate), rows) in enumerate(zip(PLACES, contents)):
        parts += draw_column(16 + 284 * place, name, fate, rows, place < gone, height)
        inside = ", ".join(kind or text for kind, text in rows) or "nothing"
        texts.append(cut(f"{name:9} {'✗ lost' if place < gone else inside}", 110))
    for x, way in ((280, "write"), (564, "sync")):
        parts.append(line(f"M{x - 12} 62h28m-5 -5l5 5l-5 5", FAINT, 2))
        parts.append(write(x, 52, way, FAINT, 10, 'text-anchor="middle"'))
    return Drawing(sheet(height, "process, OS cache, disk", parts), "\n".join(texts))


def shorten(rows, most=7) -> list:
    """The last rows, and how many stand before them."""
    return rows if len(rows) <= most else [("", f"{len(rows) - most + 1} more"), *rows[1 - most:]]


def draw_column(x, name, fate, rows, gone, height) -> list:
    """One place: a box with its name, and what is in it."""
    fill, edge = ("#fdecea", RED) if gone else ("#ffffff", "#b8b4a8")
    middle, color = 'text-anchor="middle"', RED if gone else FAINT
    parts = [box(x, 40, 244, height - 54, fill, edge, 'stroke-dasharray="5 4"' if gone else ""),
             write(x + 2, 30, name, INK, 14, 'font-weight="bold"'),
             write(x + 122, height - 22, "✗ lost" if gone else fate, color, 11, middle)]
    if not rows and not gone:
        parts.append(write(x + 122, 66, "(nothing)", FAINT, 12, middle))
    for index, (kind, text) in enumerate(rows):
        y = 64 + ROW * index
        parts.append(label(x + 8, y, kind, 68) if kind else "")
        parts.append(write(x + (82 if kind else 12), y, cut(text, 22 if kind else 32), INK, 11))
    return parts

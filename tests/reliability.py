"""README's table of what a session survives: a row is written by a sweep, and held against it."""

import re


def find_row(text, name):
    """The row of a test as a match: what was done, how often at least, how many were lost."""
    row = re.search(rf"^\| (.*) \| ([\d,]+) \| (\d+) \| `{name}` \|$", text, re.MULTILINE)
    assert row, f"README.md has no row for {name}"
    return row


def round_down(number):
    """A round number below: a folder more or less, or another Python, makes other system calls."""
    unit = 5 * 10 ** (len(str(number)) - 2)
    return number // unit * unit


def write_row(text, name, tried, lost):
    """The text of README.md with what a sweep found in the row of its test."""
    row = find_row(text, name)
    return text.replace(row[0], f"| {row[1]} | {round_down(tried):,} | {lost} | `{name}` |")


def check_row(text, name, tried, lost):
    """AssertionError if the row claims more than the sweep found, or far less."""
    row = find_row(text, name)
    claimed = int(row[2].replace(",", ""))
    assert claimed <= tried < 2 * claimed and int(row[3]) == lost, (
        f"README.md says of {name}: {row[2]} tried, {row[3]} lost; it is {tried} and {lost} "
        "(python -m pytest --long --write-table writes what is true)")

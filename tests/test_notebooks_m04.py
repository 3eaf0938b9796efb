"""Claim: the repair of m04's hint passes the core of the table, and is red at the kinds that the page names."""

import functools

import pytest
import test_m04_repair as table
from answers import m04

HARDER = {"results in another order": "stay in the order of the log", "one id used again": "its last use",
          "empty or missing ids": "gets a fresh one", "empty tool content": "say .no output.",
          "second system message": "there is one system message",
          table.check_minted_ids: "one id for two calls", table.check_valid_is_unchanged: "letter for letter",
          table.check_any_records: "any list of records must do|junk in, but no valid"}


def name_of(check):
    return check if isinstance(check, str) else check.__name__


@pytest.mark.parametrize("check", [*table.ROWS, *(each for each in HARDER if callable(each))], ids=name_of)
def test_the_repair_of_the_hint(check, tmp_path):
    repair = table.write_module(tmp_path, m04.REPAIR)
    run = functools.partial(table.check_row, row=check) if isinstance(check, str) else check
    if check not in HARDER:
        return run(repair, tmp_path)
    with pytest.raises(AssertionError, match=HARDER[check]):
        run(repair, tmp_path)


def test_more_than_half_is_red(tmp_path):
    repair, red = table.write_module(tmp_path, m04.REPAIR), 0
    checks = [check for check in table.CHECKS if callable(check)]
    for check in checks:
        try:
            check(repair, tmp_path)
        except Exception:  # an error in the learner's own code is red as well
            red += 1
    assert len(checks) / 2 < red

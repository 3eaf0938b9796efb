"""Claim: what m03 says of the harder tests of its reader is so, with its hints and without them."""

import pytest
import test_m03_log as log
from answers import m03

HARDER = {log.check_nothing_inside_is_a_record: "the inside of a damaged record came back",
          log.check_random_damage: "the inside of a damaged record came back",
          log.check_reading_is_linear: "times as long"}
LAST_HINT = m03.change(
    m03.READER,
    ("    for line in open", "    from tinyharness import DAMAGES\n    for line in open"),
    ("        place = GAP.match(text).end()\n", "        place, trusted, damages = GAP.match(text).end(), 0, 0\n"),
    ("        while place < len(text):", "        trusted = len(records)\n        while place < len(text) and damages < DAMAGES:"),
    ("            except (ValueError, RecursionError):\n", '''            except (ValueError, RecursionError) as error:
                damages += 1
                if text[place] == "{":
                    trusted = len(records)
                elif text[place] in "]}":
                    del records[trusted:]
                place = max(place + 1, getattr(error, "pos", place) - 8)
'''),
    ("                found = RECORD.search(text, place + 1)\n                place = found.start() if found else len(text)\n",
     "                place = text.find('{\"', place)\n                place = place if place > 0 else len(text)\n"))


@pytest.mark.parametrize("check", log.READ, ids=lambda check: check.__name__)
def test_the_reader_of_the_hint_is_red_where_the_page_says(check, tmp_path):
    reader = log.write_module(tmp_path, m03.READER)
    if check not in HARDER:
        return check(reader, tmp_path)
    with pytest.raises(AssertionError, match=HARDER[check]):
        check(reader, tmp_path)


@pytest.mark.parametrize("check", log.READ, ids=lambda check: check.__name__)
def test_the_last_hint_is_enough(check, tmp_path):
    check(log.write_module(tmp_path, LAST_HINT), tmp_path)

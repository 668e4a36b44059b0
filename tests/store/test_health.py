"""Every doubt is declared once, graded, explained, and can come up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.store.health import HEALTH_CODES, HealthLog

SOURCES = Path(stepscope.__file__).parent


@pytest.mark.parametrize("code", HEALTH_CODES)
def test_every_code_has_a_grade_a_meaning_and_a_remedy(code: str) -> None:
    entry = HEALTH_CODES[code]
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", code)
    assert entry.severity in ("info", "doubt", "loss")
    assert entry.meaning
    assert not entry.meaning.endswith(".")
    assert entry.remedy.endswith(".")


@pytest.mark.parametrize("code", HEALTH_CODES)
def test_every_code_can_come_up(code: str) -> None:
    texts = (path.read_text() for path in SOURCES.rglob("*.py") if path.name != "health.py")
    assert any(f'"{code}"' in text for text in texts)


def test_no_code_is_counted_that_is_not_declared() -> None:
    added = re.compile(r'health\.add\(\s*"(\w+)"|_count\(\s*health,\s*"(\w+)"')
    used = {a or b for path in SOURCES.rglob("*.py") for a, b in added.findall(path.read_text())}
    assert used
    assert used <= set(HEALTH_CODES)
    with pytest.raises(KeyError):
        HealthLog().add("no_such_code")


def test_the_first_example_is_kept_and_counts_add_up() -> None:
    log = HealthLog()
    log.add("event_lost", "first")
    log.add("event_lost", "second", 3)
    log.add("no_events", count=0)
    (row,) = log.rows()
    assert (row.code, row.count, row.detail, row.severity) == ("event_lost", 4, "first", "loss")


def test_a_doubt_without_an_example_shows_its_meaning() -> None:
    log = HealthLog()
    log.add("no_events")
    assert log.rows()[0].detail == HEALTH_CODES["no_events"].meaning


@given(st.lists(st.tuples(st.sampled_from(sorted(HEALTH_CODES)), st.integers(0, 5))))
def test_the_order_of_counting_does_not_change_the_rows(counted: list[tuple[str, int]]) -> None:
    one, other = HealthLog(), HealthLog()
    for code, count in counted:
        one.add(code, count=count)
    for code, count in sorted(counted):
        other.add(code, count=count)
    assert one.rows() == other.rows()
    assert sum(row.count for row in one.rows()) == sum(count for _, count in counted)

"""The report in a browser: no complaint, no request, charts with marks, steps that open, figures of the document."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vl_convert", reason="needs the html extra")
pytest.importorskip("jinja2", reason="needs the html extra")

from stepscope.answers.account import explain
from stepscope.report.chart_rows import MAX_MARKS, anchor_of
from stepscope.report.charts import make_charts
from stepscope.report.details import unpack
from stepscope.report.document import to_document
from stepscope.report.html import render_html
from stepscope.store.schema import CATEGORIES
from stepscope.units import show_count, show_ms, show_ns
from tests.browser.browsing import Visit, needs_browser, visiting
from tests.report.documents import EXAMPLES, HOSTILE, stretched, withheld

pytestmark = [pytest.mark.browser, needs_browser]

_SHARED = Path(os.environ.get("STEPSCOPE_TRACES") or EXAMPLES.parent.parent / "shared" / "traces")
_B300 = _SHARED / "public" / "tracelens" / "sglang-qwen3-30b-a3b-decode-B300.json.gz"
CAPTURES = [
    pytest.param(EXAMPLES / "vllm-cpu-tp2", id="vllm-cpu-tp2"),
    pytest.param(EXAMPLES / "glm52-prefill", id="glm52-prefill"),
    pytest.param(_B300, id="b300", marks=pytest.mark.skipif(not _B300.exists(), reason="no shared captures")),
]


@cache
def _document(path: Path) -> dict[str, Any]:
    return to_document(explain(path))


def _write(document: dict[str, Any], folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(render_html(document), encoding="utf-8")
    return path


def _check_quiet(visit: Visit, path: Path) -> None:
    assert visit.complaints == []
    assert [url.split("#")[0] for url in visit.requests] == [path.as_uri()]
    assert visit.read("document.getElementById('trouble').hidden")


@pytest.mark.parametrize("capture", CAPTURES)
def test_report_opens_quietly_and_its_charts_have_marks(capture: Path, tmp_path: Path) -> None:
    document = _document(capture)
    path = _write(document, tmp_path)
    expected = {c.id: c.num_marks for c in make_charts(document) if c.spec and c.id != "budget-total"}
    with visiting(path) as visit:
        before = visit.read("document.querySelectorAll('.plot svg').length")
        assert before < len(expected)  # those further down wait
        assert visit.show_charts() == expected
        _check_quiet(visit, path)


@pytest.mark.parametrize("capture", CAPTURES)
def test_rows_are_the_documents_and_bars_add_up_to_the_window(capture: Path, tmp_path: Path) -> None:
    document = _document(capture)
    columns = ("window_ns", *(f"exclusive_{name}_ns" for name in CATEGORIES))
    with visiting(_write(document, tmp_path)) as visit:
        for step in document["steps"]["rows"]:
            if step["window_ns"] is None:
                continue
            cells = _cells(visit, anchor_of(step["rank"], step["step_id"]))
            for name in columns:
                assert cells[name] == [str(step[name]), show_ms(step[name])]
            assert sum(int(cells[name][0]) for name in columns[1:]) == int(cells["window_ns"][0])
            if step["num_scheduled_tokens"] is not None:
                assert cells["num_scheduled_tokens"][1] == show_count(step["num_scheduled_tokens"])


def _cells(visit: Visit, anchor: str) -> dict[str, list[str]]:
    row = f"[...document.querySelectorAll('#{anchor} data')]"
    cells: dict[str, list[str]] = visit.read(
        f"Object.fromEntries({row}.map((d) => [d.dataset.of, [d.value, d.innerText]]))"
    )
    return cells


@pytest.mark.parametrize("capture", CAPTURES)
def test_step_opens_its_families_and_kernels(capture: Path, tmp_path: Path) -> None:
    document = _document(capture)
    rank, step_id = document["steps"]["rows"][0]["rank"], 0
    kernels = [k for k in unpack(document["step_kernels"]) if (k["rank"], k["step_id"]) == (rank, step_id)]
    families = [f for f in unpack(document["step_families"]) if (f["rank"], f["step_id"]) == (rank, step_id)]
    with visiting(_write(document, tmp_path)) as visit:
        button = visit.page.locator(f"#{anchor_of(rank, step_id)} .open")
        assert button.get_attribute("aria-expanded") == "false"
        button.click()
        assert button.get_attribute("aria-expanded") == "true"
        detail = visit.page.locator("tr.detail")
        assert detail.locator("code").all_text_contents() == [kernel["name"] for kernel in kernels]
        shown = detail.locator("data[data-of=kernel]").all_text_contents()
        assert shown == [show_ns(kernel["sum_ns"]) for kernel in kernels]
        total = visit.read(
            "[...document.querySelectorAll('data[data-of^=family]')].reduce((s, d) => s + Number(d.value), 0)"
        )
        assert total == sum(family["exclusive_ns"] for family in families)
        button.click()
        assert detail.count() == 0


def test_point_of_a_chart_leads_to_its_step(tmp_path: Path) -> None:
    with visiting(_write(_document(EXAMPLES / "glm52-prefill"), tmp_path)) as visit:
        visit.show_charts()
        visit.page.locator("#chart-time-tokens .mark-symbol.role-mark path").last.click()  # on top of the others
        visit.page.wait_for_selector("tr.detail")
        assert visit.read("location.hash") == "#step-1-5"
        assert visit.read("document.activeElement.closest('tr').id") == visit.read("location.hash.slice(1)")


def test_bars_are_shown_as_shares_when_asked(tmp_path: Path) -> None:
    with visiting(_write(_document(EXAMPLES / "glm52-prefill"), tmp_path)) as visit:
        visit.show_charts()
        visit.page.click("[data-share=budget-steps]")
        visit.page.wait_for_selector("#chart-budget-steps text:text('100%')")
        marks = visit.page.locator("#chart-budget-steps .mark-rect.role-mark path").count()
        assert marks == visit.show_charts()["budget-steps"]


def test_charts_follow_the_width_of_the_window(tmp_path: Path) -> None:
    with visiting(_write(_document(EXAMPLES / "glm52-prefill"), tmp_path)) as visit:
        visit.show_charts()
        visit.page.set_viewport_size({"width": 700, "height": 900})
        visit.wait_for("document.querySelector('#chart-timeline svg').clientWidth < 700")
        assert visit.complaints == []


def test_keyboard_reaches_and_opens_the_steps(tmp_path: Path) -> None:
    with visiting(_write(_document(EXAMPLES / "glm52-prefill"), tmp_path)) as visit:
        visit.page.keyboard.press("Tab")
        assert visit.read("document.activeElement.className") == "skip"
        visit.page.keyboard.press("Enter")
        for _ in range(60):
            visit.page.keyboard.press("Tab")
            if visit.read("document.activeElement.className") == "open":
                break
        visit.page.keyboard.press("ArrowDown")
        assert visit.read("document.activeElement.closest('tr').id") == "step-0-1"
        visit.page.keyboard.press("Enter")
        assert visit.page.locator("#step-0-1 + tr.detail").count() == 1


def test_withheld_stands_in_the_rows_with_its_reason(tmp_path: Path) -> None:
    with visiting(_write(withheld(), tmp_path)) as visit:
        cells = visit.page.locator("#step-0-1 .withheld")
        assert cells.all_text_contents() == ["withheld"] * 3
        assert cells.first.get_attribute("title") == "replays differ"
        assert "exclusive_idle_ns" not in _cells(visit, "step-0-1")


def test_sort_and_filter(tmp_path: Path) -> None:
    document = _document(EXAMPLES / "vllm-cpu-tp2")
    with visiting(_write(document, tmp_path)) as visit:
        visit.page.select_option("select[name=rank]", "1")
        visit.page.select_option("select[name=phase]", "decode")
        expected = [r for r in document["steps"]["rows"] if r["rank"] == 1 and r["phase"] == "decode"]
        assert visit.page.locator("tr.step").count() == len(expected)
        window = visit.page.locator("thead button", has_text="window")
        window.click()
        window.click()
        shown = visit.read("[...document.querySelectorAll('data[data-of=window_ns]')].map((d) => Number(d.value))")
        assert shown == sorted((row["window_ns"] for row in expected), reverse=True)
        assert visit.page.locator("th[aria-sort=descending]").count() == 1


def test_numbers_are_written_as_python_writes_them(tmp_path: Path) -> None:
    document = _document(EXAMPLES / "vllm-cpu-tp2")
    values = [
        0,
        1,
        999,
        1_000,
        125_000,
        375_000,
        115_000,
        145_000,
        155_000,
        999_999,
        9_995_000,
        84_550_000,
        1_005_000_000,
    ]
    row = document["steps"]["rows"][0]
    made = [{**row, "step_id": i, "window_ns": ns} for i, ns in enumerate(values)]
    stretched_steps = {**document["steps"], "rows": made}
    with visiting(_write({**document, "steps": stretched_steps}, tmp_path)) as visit:
        shown = visit.read("[...document.querySelectorAll('data[data-of=window_ns]')].map((d) => d.innerText)")
    assert shown == [show_ms(ns) for ns in values]


def test_hostile_names_run_nothing(tmp_path: Path) -> None:
    document = to_document(explain(EXAMPLES / "glm52-prefill"))
    document["source"] = HOSTILE
    document["step_kernels"]["names"] = [HOSTILE + name for name in document["step_kernels"]["names"]]
    path = _write(document, tmp_path)
    with visiting(path, "#step-0-0") as visit:
        assert visit.page.locator("tr.detail code").first.text_content().startswith(HOSTILE)
        assert visit.page.locator("img").count() == 0
        _check_quiet(visit, path)


def test_5000_steps_stay_few_elements_and_each_step_can_be_reached(tmp_path: Path) -> None:
    path = _write(stretched("vllm-cpu-tp2", 5_000), tmp_path)
    with visiting(path) as visit:
        assert visit.page.locator("tr.step").count() <= 300
        assert visit.page.locator("#step-table").get_attribute("aria-rowcount") == "10001"
        visit.read("location.hash = '#step-1-4321'")
        visit.page.wait_for_selector("#step-1-4321 + tr.detail")
        assert visit.page.locator("#step-1-4321").is_visible()
        assert visit.page.locator("tr.step").count() <= 1_000
        assert max(visit.show_charts().values()) <= MAX_MARKS
        _check_quiet(visit, path)


def test_print_draws_every_chart_and_every_row(tmp_path: Path) -> None:
    document = _document(EXAMPLES / "vllm-cpu-tp2")
    with visiting(_write(document, tmp_path)) as visit:
        visit.read("window.print = () => { window.printed = true; }")
        visit.page.click("#print")
        visit.wait_for("window.printed")
        assert visit.read("document.querySelectorAll('figure.chart:has(.plot)').length") == visit.read(
            "document.querySelectorAll('.plot svg').length"
        )
        assert visit.page.locator("tr.step").count() == len(document["steps"]["rows"])

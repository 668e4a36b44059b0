"""The page: one file that loads nothing, holds the document, escapes a trace's text, and shows its figures."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from stepscope.errors import BadInput, InvariantBroken
from stepscope.report.embed import pack, read_document, read_element, restore, to_element
from stepscope.report.html import render_html
from stepscope.report.html_text import SCRIPT_TEXTS
from stepscope.report.translate import Translator
from stepscope.store.schema import CATEGORIES
from stepscope.units import show_ns
from tests.report.documents import HOSTILE, example, stretched, withheld

pytest.importorskip("vl_convert", reason="needs the html extra")
pytest.importorskip("jinja2", reason="needs the html extra")

NAMES = ("vllm-cpu-tp2", "glm52-prefill")


class _Page(HTMLParser):
    """What a browser would make of the file: elements, text, `<data>` by what it stands for."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: dict[str, tuple[str, str]] = {}
        self._raw, self._of = False, ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._raw = tag in ("script", "style")
        if tag == "data" and found.get("data-of"):
            self._of = found["data-of"] or ""
            self.data[self._of] = (found["value"] or "", "")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False
        if tag == "data":
            self._of = ""

    def handle_data(self, data: str) -> None:
        if self._raw:
            return
        self.text.append(data)
        if self._of:
            self.data[self._of] = (self.data[self._of][0], data)

    def attributes(self, *names: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags for name in names if name in attrs]


@pytest.mark.parametrize("name", NAMES)
def test_page_loads_nothing_from_anywhere(name: str) -> None:
    html = render_html(example(name))
    page = _Page(html)
    assert not page.attributes("src", "srcset", "action", "data-src", "poster")
    assert all(link.startswith("#") for link in page.attributes("href"))
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "embed", "img", "base")]
    style = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style


def test_policy_allows_only_the_scripts_of_the_file() -> None:
    policies = [a["content"] for tag, a in _Page(render_html(example("glm52-prefill"))).tags if "http-equiv" in a]
    assert len(policies) == 1
    policy = policies[0] or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", NAMES)
def test_document_in_the_page_is_the_document(name: str) -> None:
    document = example(name)
    assert read_document(render_html(document)) == json.loads(json.dumps(document))


def test_same_document_gives_the_same_bytes() -> None:
    assert render_html(example("glm52-prefill")) == render_html(example("glm52-prefill"))


def test_packing_keeps_every_value() -> None:
    rows = [{"a": 1, "b": {"c": [1, None], "d": "x"}}, {"a": None, "b": {"c": [], "d": "y"}}]
    values: list[Any] = [rows, [rows, rows], [{}, {}], [{"a": 1}, {"b": 2}], [{"a": 1}, 2], {"k": rows}, [], None, 1.5]
    for value in values:
        assert restore(json.loads(json.dumps(pack(value)))) == value


def test_packing_refuses_what_it_could_not_restore() -> None:
    with pytest.raises(InvariantBroken):
        pack({"$fields": []})


def test_element_that_is_not_there_is_told() -> None:
    assert read_element(to_element("some", "<text>"), "some") == "<text>"
    with pytest.raises(InvariantBroken):
        read_element("<p>", "some")


def _hostile() -> dict[str, Any]:
    """Every text of the trace, and every sentence, is hostile."""
    document = example("vllm-cpu-tp2")
    document["source"] = HOSTILE
    document["inputs"][0] |= {"path": HOSTILE, "engine_version": HOSTILE, "rank_source": HOSTILE}
    document["inputs"][0]["health"] = [{"code": "x", "severity": "loss", "count": 1, "detail": HOSTILE}]
    document["step_kernels"]["names"] = [HOSTILE + name for name in document["step_kernels"]["names"]]
    document["coverage"]["reasons"] = [
        {"rank": 0, "code": HOSTILE, "withholds": True, "text": HOSTILE, "record_with": HOSTILE}
    ]
    for finding in document["findings"]:
        finding["text"] = HOSTILE
    for row in document["signals"]:
        row["signal"] = HOSTILE
    return document


def test_hostile_names_stay_text() -> None:
    plain, page = _Page(render_html(example("vllm-cpu-tp2"))), _Page(render_html(_hostile()))
    scripts = [tag for tag, _ in page.tags].count("script")
    assert scripts == [tag for tag, _ in plain.tags].count("script") == 3
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert HOSTILE in "".join(page.text)
    assert "7*7" in "".join(page.text)


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_the_budget_are_the_documents(name: str) -> None:
    document = example(name)
    page = _Page(render_html(document))
    totals = [row for row in document["budget"] if row["step_id"] is None]
    for row in totals:
        shown = {category: page.data[f"budget.{row['rank']}.{category}"] for category in CATEGORIES}
        assert shown == {c: (str(ns), show_ns(ns)) for c, ns in row["exclusive_ns"].items()}
        window = page.data[f"budget.{row['rank']}.window"]
        assert sum(int(value) for value, _ in shown.values()) == int(window[0]) == row["window_ns"]


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_families_inputs_and_signals_are_the_documents(name: str) -> None:
    document = example(name)
    data = _Page(render_html(document)).data
    for row in document["families"]:
        of = f"families.{row['rank']}.{row['category']}.{row['family']}"
        assert data[of] == (str(row["exclusive_ns"]), show_ns(row["exclusive_ns"]))
    for i, item in enumerate(document["inputs"]):
        assert data[f"inputs.{i}.events_read"][0] == str(item["events_read"])
    for i, row in enumerate(document["signals"]):
        assert data[f"signals.{i}.total_ns"][0] == str(row["total_ns"])


def test_withheld_is_said_with_its_reason_and_is_never_zero() -> None:
    html = render_html(withheld())
    page = _Page(html)
    assert "budget.0.idle" not in page.data
    assert page.data["budget.1.idle"][0] != "0"
    assert '<span class="withheld" title="replays differ">withheld</span>' in html
    assert "record less" in html
    assert "budget-steps" not in page.attributes("data-share")  # no shares where shares are withheld


def test_every_answer_and_refusal_is_there() -> None:
    document = example("glm52-prefill")
    text = "".join(_Page(render_html(document)).text)
    for question in document["questions"]:
        for sentence in (question["title"], *question["sentences"], *question["missing"], *question["record_with"]):
            assert sentence in text
    for finding in document["findings"]:
        assert finding["text"] in text
        assert finding["not_shown"] in text


def test_sections_stand_in_reading_order() -> None:
    page = _Page(render_html(example("glm52-prefill")))
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == ["trust", "budget", "findings", "questions", "steps", "kernels", "method"]
    assert [tag for tag, _ in page.tags].count("h1") == 1


def test_document_without_steps_or_workers_is_a_page() -> None:
    document = example("vllm-cpu-tp2")
    document["steps"] |= {"rows": [], "count": 0, "count_by_rank": {}, "source": None, "grade": None}
    document |= {"inputs": [], "budget": [], "families": [], "signals": [], "parts": [], "findings": []}
    document["step_families"]["rows"] = document["step_kernels"]["rows"] = []
    document["coverage"]["ranks"] = []
    text = "".join(_Page(render_html(document)).text)
    assert "nothing: no step is marked" in text
    assert "Nothing stands out" in text


def test_every_constant_text_goes_through_the_translator() -> None:
    document = example("glm52-prefill")
    catalog = {
        text: f"译 {text}" for text in ("Can this capture be trusted?", "Time budget per step", "withheld", "ms")
    }
    html = render_html(document, Translator(lang="zh", catalog=catalog))
    page = _Page(html)
    assert ("html", {"lang": "zh"}) in page.tags
    assert "译 Can this capture be trusted?" in page.text
    payload = restore(json.loads(read_element(html, "payload")))
    assert payload["texts"]["withheld"] == "译 withheld"
    assert any("译 ms" in chart["spec"] for chart in payload["charts"])
    assert set(payload["texts"]) == set(SCRIPT_TEXTS)


def test_1000_steps_stay_below_3_mb() -> None:
    html = render_html(stretched("vllm-cpu-tp2", 1_000))
    assert len(html.encode()) < 3_000_000


def test_missing_template_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(BadInput, match=r"stepscope\[html\]"):
        render_html(example("glm52-prefill"))


def test_script_asks_only_for_texts_that_are_translated() -> None:
    folder = files("stepscope.report") / "assets"
    script = "".join(path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name.endswith(".js"))
    asked = set(re.findall(r'(?:\bt|view\.text)\("([^"]+)"\)', script))
    assert asked <= set(SCRIPT_TEXTS)
    assert [text for text in SCRIPT_TEXTS if f'"{text}"' not in script] == []


def test_assets_are_short_enough_to_read() -> None:
    for folder in ("assets", "templates"):
        for path in (files("stepscope.report") / folder).iterdir():
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 350

"""The Chinese catalog: it has every string that a report can show, nothing else, and changes no number."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, get_args

import pytest

import stepscope
from stepscope.answers.account import explain
from stepscope.answers.compare import PART_MEANING, compare
from stepscope.answers.findings import _SENTENCES
from stepscope.answers.kernels import CHANGE_MEANING
from stepscope.answers.kv_saving import FULL_HEADS, UNCOMPRESSED, WHOLE_LATENT
from stepscope.answers.load_findings import _LIMITS
from stepscope.answers.paths import DIFFERENCE_MEANING
from stepscope.answers.questions import QUESTIONS
from stepscope.answers.verdict import Outcome, VerdictStatus
from stepscope.batch import StepPhase
from stepscope.budget.coverage import REASON_MEANING
from stepscope.budget.signals import SIGNAL_KINDS
from stepscope.cli.join_view import evidence_sections
from stepscope.errors import BadInput
from stepscope.evidence import GRADES
from stepscope.join.disaggregated import STAGES
from stepscope.join.evidence import join_sources
from stepscope.join.figures import DEFINITIONS
from stepscope.join.requests import RequestStages
from stepscope.join.traps import TRAPS
from stepscope.readers.prometheus.aliases import FIGURES
from stepscope.report import comparison_text, html, text
from stepscope.report.charts import make_charts
from stepscope.report.comparison import to_comparison_document
from stepscope.report.html_text import SCRIPT_TEXTS, TERMS
from stepscope.report.text import to_markdown, to_text
from stepscope.report.translate import known_languages, make_translator
from stepscope.store.health import HEALTH_CODES, Severity
from stepscope.store.schema import CATEGORIES, CATEGORY_MEANING, KIND_MEANING, TABLES
from tests.join.evidence import iteration, sources
from tests.join.test_metrics import QUEUED, SERVED
from tests.readers.test_server_log import STAGES as STAGE_LINE
from tests.report.documents import EXAMPLES, example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(stepscope.__file__).parent
CATALOG = make_translator("zh", {}).catalog
MAKES_MESSAGES = "from stepscope.messages import"
# a call of one of these shows its first argument, if not here then by way of a message
SHOWN_FIRST = ("say", "Message", "_refuse", "t", "tr")
# functions whose results are the values of a sentence
WORDED = (("answers/paths.py", "_on"), ("steps/ranks.py", "find_skew"), ("steps/ranks.py", "_why_unmatched"))


def _strings(node: ast.expr) -> Iterator[str]:
    """The constants that an expression may be: not the keys and not the arguments in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*_strings(node.body), *_strings(node.orelse))
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _strings(value)


def _calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
            yield node


@cache
def _modules() -> dict[str, ast.Module]:
    """Modules whose sentences a report shows, and those of the report."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    return {
        name: ast.parse(source)
        for name, source in texts.items()
        if name.startswith("report/") or name in dict(WORDED) or MAKES_MESSAGES in source
    }


def _of_calls() -> Iterator[tuple[str, str]]:
    for name, tree in _modules().items():
        for call in _calls(tree, *SHOWN_FIRST):
            yield from ((english, name) for english in _strings(call.args[0]))
            yield from ((english, name) for value in call.keywords for english in _strings(value.value))
        for call in _calls(tree, "tips"):  # pairs of a field and its title
            pairs = [pair for pair in call.args[1:] if isinstance(pair, ast.Tuple)]
            yield from ((english, name) for pair in pairs for english in _strings(pair.elts[1]))
        for call in _calls(tree, "_bar"):  # a lane of the timeline
            yield from ((english, name) for english in _strings(call.args[1]))


def _is_names(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["names"]


def _of_columns() -> Iterator[tuple[str, str]]:
    """`names = ("rank", ">count")`: titles of columns, `>` before those of numbers."""
    for name in ("report/text.py", "report/comparison_text.py", "report/against_model.py", "cli/join_view.py"):
        for node in filter(_is_names, ast.walk(_modules()[name])):
            assert isinstance(node, ast.Assign)
            titles = node.value.elts if isinstance(node.value, ast.Tuple) else []
            yield from ((title.removeprefix(">"), name) for each in titles for title in _strings(each))


def _of_results() -> Iterator[tuple[str, str]]:
    for name, function in WORDED:
        for node in ast.walk(_modules()[name]):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                returns = (n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None)
                yield from ((english, name) for value in returns for english in _strings(value))


def _of_reconciliations() -> Iterator[tuple[str, str]]:
    """`Reconciliation(total_name="prompt tokens", parts={"server counter": 8})`: what is held against what."""
    name = "join/reconcile.py"
    for node in ast.walk(_modules()[name]):
        if isinstance(node, ast.keyword) and node.arg == "total_name":
            yield from ((english, name) for english in _strings(node.value))
        elif isinstance(node, ast.keyword) and node.arg == "parts" and isinstance(node.value, ast.Dict):
            yield from ((english, name) for key in node.value.keys if key for english in _strings(key))


def _of_templates() -> Iterator[tuple[str, str]]:
    for path in (SOURCE / "report" / "templates").glob("*.html"):
        source = path.read_text(encoding="utf-8")
        found = [a or b for a, b in re.findall(r"""\bt\((?:"([^"]*)"|'([^']*)')\)""", source)]
        found += re.findall(r'\breason="([^"]+)"', source)  # the default of a macro's argument
        for expression in re.findall(r"{{.*?}}|{%.*?%}", source):
            if "part." in expression:
                found += re.findall(r'"([a-z]+(?: [a-z]+)+)"', expression)
        yield from ((english, path.name) for english in found)


def _of_tables() -> Iterator[tuple[str, str]]:
    tables: dict[str, list[str]] = {
        "CATEGORIES": [*CATEGORIES, *CATEGORY_MEANING.values()],
        "KIND_MEANING": [*KIND_MEANING.values()],
        "TABLES": [words for column in TABLES["steps"] for words in (column.doc, column.null)],
        "GRADES": [*GRADES, *GRADES.values()],
        "HEALTH_CODES": [words for code in HEALTH_CODES.values() for words in (code.meaning, code.remedy)],
        "Severity": [*get_args(Severity)],
        "StepPhase": [*get_args(StepPhase)],
        "REASON_MEANING": [*REASON_MEANING.values()],
        "SIGNAL_KINDS": [words for kind in SIGNAL_KINDS for words in (kind.name, kind.layer)],
        "QUESTIONS": [question.title for question in QUESTIONS],
        "_LIMITS": [*_LIMITS.values()],
        "_SENTENCES": [words for _, *sentences in _SENTENCES for words in sentences],
        "DIFFERENCE_MEANING": [*DIFFERENCE_MEANING.values()],
        "PART_MEANING": ["wall", *PART_MEANING, *PART_MEANING.values()],
        "CHANGE_MEANING": [*CHANGE_MEANING, *CHANGE_MEANING.values()],
        "VerdictStatus": [status.upper() for status in get_args(VerdictStatus)],
        "Outcome": [*get_args(Outcome)],
        "STATUS": [*text.STATUS.values(), *html._STATUS.values()],
        "LANE": [*text.LANE.values(), *html._LANES.values()],
        "EFFECTS": [*comparison_text.EFFECTS.values(), *comparison_text.BEYOND.values()],
        "OTHER_WAYS": [FULL_HEADS, WHOLE_LATENT, UNCOMPRESSED],
        "DEFINITIONS": [words for definition in DEFINITIONS.values() for words in definition],
        "FigureRow": ["mean", "max", "total", "none"],  # what it is of; where it is from, if from nothing
        "STAGES": [*STAGES, *RequestStages().spans()],
        "TRAPS": [*TRAPS.values()],
        "FIGURES": [alias.caution for figure in FIGURES.values() for alias in figure.aliases],
        "SCRIPT_TEXTS": [*SCRIPT_TEXTS],
        "TERMS": [words for term in TERMS for words in term],
    }
    yield from ((english, name) for name, found in tables.items() for english in found)


@cache
def _shown() -> dict[str, str]:
    """Every English string that is shown, and where it stands; a hole alone needs no translation."""
    found = [*_of_calls(), *_of_columns(), *_of_results(), *_of_reconciliations(), *_of_templates(), *_of_tables()]
    return {english: where for english, where in found if not re.fullmatch(r"({\w+})?", english)}


def _holes(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


# a number with its group commas and its unit; a digit inside a word or an option (cuda-graph, sq2, p90) is none
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.,-])[+-]?\d[\d,]*(?:\.\d+)?(?:\s(?:ns|us|ms|s|%)(?![A-Za-z0-9_]))?")


def _numbers(shown: str) -> list[str]:
    return [found.rstrip(",") for found in _NUMBER.findall(" ".join(shown.split()))]


def test_every_string_that_is_shown_is_translated() -> None:
    missing = {english: where for english, where in _shown().items() if english not in CATALOG}
    assert missing == {}, "add these to report/locale/zh.toml"


def test_the_catalog_holds_nothing_that_is_not_shown() -> None:
    assert [english for english in CATALOG if english not in _shown()] == []


def test_strings_are_found_where_they_stand() -> None:
    found = set(_shown().values())
    assert {"answers/questions.py", "budget/omissions.py", "report/text.py", "report/charts.py", "trust.html"} <= found
    assert len(_shown()) > 500


def test_no_sentence_is_put_together_before_it_is_translated() -> None:
    built = (ast.JoinedStr, ast.BinOp)
    calls = [(name, call) for name, tree in _modules().items() for call in _calls(tree, *SHOWN_FIRST)]
    assert [f"{name}:{call.lineno}" for name, call in calls if isinstance(call.args[0], built)] == []


def test_a_translation_has_the_same_holes_and_numbers() -> None:
    for english, chinese in CATALOG.items():
        assert _holes(chinese) == _holes(english), english
        assert Counter(_numbers(chinese)) == Counter(_numbers(english)), english
        assert chinese.count("{{") == english.count("{{"), english


def test_a_translation_is_written_in_chinese_with_its_punctuation() -> None:
    mixed = re.compile(r"[\u4e00-\u9fff][,;:?!.(]|[,;:?!)][\u4e00-\u9fff]")
    assert [chinese for chinese in CATALOG.values() if mixed.search(chinese)] == []
    same = [english for english, chinese in CATALOG.items() if chinese == english]  # code words and signs may be
    assert [english for english in same if len(re.findall("[A-Za-z]+", english)) > 3] == []


def test_only_known_languages_are_taken() -> None:
    assert known_languages() == ("en", "zh")
    with pytest.raises(BadInput, match=r"--lang 'xx' is not known\. Known: en, zh\."):
        make_translator("xx", {})
    assert make_translator("en", {})("Seven questions") == "Seven questions"


def test_a_sentence_is_translated_with_its_values_and_what_is_not_in_the_catalog_stays() -> None:
    messages = {
        "Rank 3: exposed communication is 5 ms (share withheld).": {
            "template": "{rank}: exposed communication is {exposed} ({share}).",
            "values": {"rank": "Rank 3", "exposed": "5 ms", "share": "share withheld"},
        },
        "Rank 3": {"template": "Rank {rank}", "values": {"rank": "3"}},
    }
    translate = make_translator("zh", {"messages": messages})
    assert (
        translate("Rank 3: exposed communication is 5 ms (share withheld).")
        == "rank 3：暴露的通信 5 ms（占比扣下不报）。"
    )
    assert translate("a name from a trace") == "a name from a trace"


NAMES = ("vllm-cpu-tp2", "glm52-prefill")


def _fragments() -> Iterator[str]:
    """The English between the holes, where it is long enough to be a sentence and no translation keeps it."""
    kept = "\n".join(CATALOG.values())
    for english in CATALOG:
        for part in re.split(r"{\w+}", english.replace("{{", "").replace("}}", "")):
            if len(re.findall("[A-Za-z]+", part)) >= 3 and part.strip() not in kept:
                yield part.strip()


def _said_in_english(shown: str) -> list[str]:
    whole = " ".join(shown.split())
    return [part for part in _fragments() if part in whole]


def _sections(shown: str) -> list[list[str]]:
    """The numbers of each section of a text report: an empty line stands between two."""
    return [_numbers(section) for section in shown.split("\n\n")]


def _same_numbers(english: list[list[str]], chinese: list[list[str]], *, ordered: set[int]) -> None:
    assert len(english) == len(chinese)
    for place, (ours, theirs) in enumerate(zip(english, chinese, strict=True)):
        assert theirs == ours if place in ordered else Counter(theirs) == Counter(ours)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("view", [to_text, to_markdown])
def test_the_chinese_text_has_the_same_numbers_and_no_english_sentence(name: str, view: Callable[..., str]) -> None:
    document = example(name)
    english, chinese = view(document), view(document, make_translator("zh", document))
    assert _said_in_english(english)
    assert _said_in_english(chinese) == []
    if view is to_text:  # budget, families, signals and steps are tables
        _same_numbers(_sections(english), _sections(chinese), ordered={0, 1, 2, 4, 5, 7})
    assert Counter(_numbers(chinese)) == Counter(_numbers(english))


class _Page(HTMLParser):
    """What is read in a page: the numbers of each section, every text and title, and each `<data>` with its value."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.sections: list[list[str]] = [[]]
        self.data: list[tuple[str | None, str | None]] = []
        self._is_raw = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._is_raw = tag in ("script", "style")
        self.words += [words for key in ("title", "aria-label", "data-old") if (words := found.get(key))]
        if tag == "section":
            self.sections.append([])
        if tag == "data":
            self.data.append((found.get("data-of"), found["value"]))

    def handle_endtag(self, tag: str) -> None:
        self._is_raw = False

    def handle_data(self, data: str) -> None:
        if not self._is_raw:
            self.words.append(data)
            self.sections[-1] += _numbers(data)


@pytest.mark.parametrize("name", NAMES)
def test_the_chinese_page_has_the_same_numbers_and_no_english_sentence(name: str) -> None:
    pytest.importorskip("vl_convert", reason="needs the html extra")
    document = example(name)
    pages = [html.render_html(document), html.render_html(document, make_translator("zh", document))]
    english, chinese = (_Page(page) for page in pages)
    assert '<html lang="zh">' in pages[1]
    assert _said_in_english("\n".join(english.words))
    assert _said_in_english("\n".join(chinese.words)) == []
    assert chinese.data == english.data
    assert len(english.sections) > 6
    _same_numbers(english.sections, chinese.sections, ordered=set())


@pytest.mark.parametrize("other", NAMES)
def test_a_comparison_in_chinese_has_the_same_numbers_and_no_english_sentence(other: str) -> None:
    document = to_comparison_document(compare(*(explain(EXAMPLES / name) for name in (NAMES[0], other))))
    english = comparison_text.to_comparison_text(document)
    chinese = comparison_text.to_comparison_text(document, make_translator("zh", document))
    assert _said_in_english(english)
    assert _said_in_english(chinese) == []
    tables = [
        comparison_text.to_comparison_markdown(document, make_translator(lang, document)) for lang in ("en", "zh")
    ]
    assert Counter(_numbers(tables[1])) == Counter(_numbers(tables[0]))


def test_joined_evidence_in_chinese_has_the_same_numbers_and_no_english_sentence(tmp_path: Path) -> None:
    log = [iteration(0, (1, 512), (0, 0)), STAGE_LINE]
    client = [{"e2e": 2.1, "ttft": 0.9, "prompt_len": 500, "output_len": 10, "cached_tokens": 200}]
    joined = join_sources(sources(tmp_path, steps=QUEUED, scrapes=SERVED, log=log, client=client))
    translate = make_translator("zh", {})
    english = [section.to_markdown() for section in evidence_sections(joined)]
    chinese = [section.to_markdown() for section in evidence_sections(joined, lambda said: translate(str(said)))]
    assert len(english) == len(chinese) > 4
    assert _said_in_english("\n".join(english))
    assert _said_in_english("\n".join(chinese)) == []
    _same_numbers([_numbers(one) for one in english], [_numbers(one) for one in chinese], ordered=set())


def _titles(value: Any) -> Iterator[str]:
    """Titles in a chart's spec."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "title" and isinstance(item, str):
                yield item
            yield from _titles(item)
    elif isinstance(value, list):
        for item in value:
            yield from _titles(item)


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_in_chinese_draws_the_same_data(name: str) -> None:
    document = example(name)
    pairs = list(zip(make_charts(document), make_charts(document, make_translator("zh", document)), strict=True))
    for english, chinese in pairs:
        words = (chinese.title, chinese.about, chinese.note, chinese.refusal)
        assert _said_in_english("\n".join([*words, *_titles(chinese.spec)])) == []
        assert chinese.num_marks == english.num_marks
        assert Counter(_numbers(f"{chinese.about} {chinese.note}")) == Counter(
            _numbers(f"{english.about} {english.note}")
        )
        if english.spec and chinese.spec and english.id != "timeline":  # its lanes have names
            assert chinese.spec["data"] == english.spec["data"]

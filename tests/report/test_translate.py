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
from stepscope.answers.compare import PART_MEANING
from stepscope.answers.findings import _SENTENCES
from stepscope.answers.kernels import CHANGE_MEANING
from stepscope.answers.paths import DIFFERENCE_MEANING
from stepscope.answers.questions import QUESTIONS
from stepscope.answers.verdict import Outcome, VerdictStatus
from stepscope.batch import StepPhase
from stepscope.budget.coverage import REASON_MEANING
from stepscope.budget.signals import SIGNAL_KINDS
from stepscope.errors import BadInput
from stepscope.evidence import GRADES
from stepscope.report import comparison_text, html, text
from stepscope.report.html_text import SCRIPT_TEXTS, TERMS
from stepscope.report.text import to_markdown, to_text
from stepscope.report.translate import known_languages, make_translator
from stepscope.store.health import HEALTH_CODES, Severity
from stepscope.store.schema import CATEGORIES, CATEGORY_MEANING, KIND_MEANING, TABLES
from tests.report.documents import example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(stepscope.__file__).parent
CATALOG = make_translator("zh", {}).catalog
MAKES_MESSAGES = "from stepscope.messages import"
NOT_SHOWN = ("join/",)  # makes messages that no report holds yet
# a call of one of these shows its first argument, if not here then by way of a message
SHOWN_FIRST = ("say", "Message", "_refuse", "t", "tr")
# functions whose results are the values of a sentence
WORDED = (("answers/paths.py", "_on"), ("steps/ranks.py", "find_skew"))


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
        if name.startswith("report/")
        or name in dict(WORDED)
        or (MAKES_MESSAGES in source and not name.startswith(NOT_SHOWN))
    }


def _of_calls() -> Iterator[tuple[str, str]]:
    for name, tree in _modules().items():
        for call in _calls(tree, *SHOWN_FIRST):
            yield from ((english, name) for english in _strings(call.args[0]))
        for call in _calls(tree, "tips"):  # pairs of a field and its title
            pairs = [pair for pair in call.args[1:] if isinstance(pair, ast.Tuple)]
            yield from ((english, name) for pair in pairs for english in _strings(pair.elts[1]))
        for call in _calls(tree, "_bar"):  # a lane of the timeline
            yield from ((english, name) for english in _strings(call.args[1]))


def _of_columns() -> Iterator[tuple[str, str]]:
    """`names = ("rank", ">count")`: titles of columns, `>` before those of numbers."""
    for name in ("report/text.py", "report/comparison_text.py"):
        for node in ast.walk(_modules()[name]):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                if [target.id for target in node.targets if isinstance(target, ast.Name)] == ["names"]:
                    yield from ((title.removeprefix(">"), name) for each in node.value.elts for title in _strings(each))


def _of_results() -> Iterator[tuple[str, str]]:
    for name, function in WORDED:
        for node in ast.walk(_modules()[name]):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                returns = (n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None)
                yield from ((english, name) for value in returns for english in _strings(value))


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
        "_SENTENCES": [words for _, *sentences in _SENTENCES for words in sentences],
        "DIFFERENCE_MEANING": [*DIFFERENCE_MEANING.values()],
        "PART_MEANING": ["wall", *PART_MEANING, *PART_MEANING.values()],
        "CHANGE_MEANING": [*CHANGE_MEANING, *CHANGE_MEANING.values()],
        "VerdictStatus": [status.upper() for status in get_args(VerdictStatus)],
        "Outcome": [*get_args(Outcome)],
        "STATUS": [*text.STATUS.values(), *html._STATUS.values()],
        "LANE": [*text.LANE.values(), *html._LANES.values()],
        "EFFECTS": [*comparison_text.EFFECTS.values(), *comparison_text.BEYOND.values()],
        "SCRIPT_TEXTS": [*SCRIPT_TEXTS],
        "TERMS": [words for term in TERMS for words in term],
    }
    yield from ((english, name) for name, found in tables.items() for english in found)


@cache
def _shown() -> dict[str, str]:
    """Every English string that is shown, and where it stands; what is only holes and signs needs no translation."""
    found = [*_of_calls(), *_of_columns(), *_of_results(), *_of_templates(), *_of_tables()]
    return {english: where for english, where in found if re.search("[A-Za-z]", re.sub(r"{\w+}", "", english))}

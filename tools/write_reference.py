"""Write docs/reference.md from the tables that the code declares, and docs/decisions/README.md from the decisions.

    python tools/write_reference.py           # writes both pages
    python tools/write_reference.py --check   # exit code 1 if one is out of date

Run it after you change a table, a command or a decision. A test asserts that the committed pages are what this writes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

import stepscope
from stepscope import errors
from stepscope.answers.questions import QUESTIONS
from stepscope.budget import catalog
from stepscope.budget.coverage import REASON_MEANING
from stepscope.budget.partition import OWN_FAMILIES
from stepscope.budget.placement import STEP_INPUTS
from stepscope.budget.signals import SIGNAL_KINDS
from stepscope.cli.main import app
from stepscope.evidence import GRADES
from stepscope.join.figures import DEFINITIONS
from stepscope.join.tables import JOIN_TABLE_MEANING, JOIN_TABLES
from stepscope.join.traps import TRAPS
from stepscope.readers.losses import SIDE_CODES
from stepscope.report import comparison, document
from stepscope.store import run
from stepscope.store.counters import MISSING
from stepscope.store.health import HEALTH_CODES, HealthCode
from stepscope.store.schema import CATEGORY_MEANING, KIND_MEANING, TABLE_MEANING, TABLES, Column

# every command of the program, in the order in which the page shows them
GROUPS: dict[str, tuple[str, ...]] = {
    "Explain a recording": ("explain", "check", "steps", "query", "metrics", "chunks"),
    "Compare and share": ("compare", "serve", "export", "cut", "import"),
    "Predict": ("predict", "crossover", "gemm", "history", "models", "hardware", "probe"),
    "Ask what-if": ("hypotheses", "retime", "calibrate", "simulate", "whatif", "search", "sweep"),
    "Record": ("capture",),
}
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
DECISIONS = ROOT / "docs" / "decisions" / "README.md"

_HEAD = """\
# Reference

This page is written by `tools/write_reference.py` from the tables that the code declares (`make reference`). Do not
edit it by hand. What the words mean: [glossary.md](glossary.md). How the parts fit: [how-it-works.md](how-it-works.md).
"""
_UNBUDGETED = {
    "envelope": "a range around many kinds of work: it is listed, and gets no share of time",
    "engine": "activity of another process (engine core, front end): it explains a worker's wait, and is in no budget",
}


def render() -> str:
    """The whole page."""
    parts: list[str] = [_HEAD]
    for title, section in _SECTIONS:
        parts += [f"## {title}\n", *section()]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code(text: str) -> str:
    return f"`{text}`"


# --- Commands and Python


def _commands() -> Iterator[str]:
    yield "Exit codes: 0 done, 1 a check said no, 2 bad input. `stepscope --version` prints the version.\n"
    functions = {str(command.name): [("", command.callback)] for command in app.registered_commands}
    for group in app.registered_groups:  # a command of commands, such as sweep
        assert group.typer_instance is not None
        own = group.typer_instance.registered_commands
        functions[str(group.name)] = [(str(command.name), command.callback) for command in own]
    grouped = {title: [name for name in names if name in functions] for title, names in GROUPS.items()}
    there = {title: names for title, names in grouped.items() if names}
    if missing := set(functions) - {name for names in there.values() for name in names}:
        raise SystemExit(f"tools/write_reference.py: give {', '.join(sorted(missing))} a place in GROUPS")
    listed = [(title, ", ".join(f"[{name}](#stepscope-{name})" for name in names)) for title, names in there.items()]
    yield _table(("what for", "commands"), listed)
    for name in (name for names in there.values() for name in names):
        yield f"### `stepscope {name}`\n"
        for part, function in functions[name]:
            assert function is not None
            yield f"{_code(f'stepscope {name} {part}') + ': ' if part else ''}{_first_paragraph(function)}\n"
            yield _table(("argument or option", "meaning", "default"), list(_parameters(function)))


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])[:2]
        assert get_origin(hints[name]) is Annotated
        needed = parameter.default is inspect.Parameter.empty
        if isinstance(info, ArgumentInfo):
            yield _code(info.metavar or name.upper()), info.help or "", "required" if needed else ""
            continue
        assert isinstance(info, OptionInfo)
        first = (info.default,) if isinstance(info.default, str) else ()  # typer reads a first flag as the default
        flags = (*first, *(info.param_decls or ())) or (f"--{name.replace('_', '-')}",)  # as typer names it
        choices = [str(member.value) for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
        value = f" {info.metavar}" if info.metavar else " " + ",".join(choices) if choices else ""
        yield _code(", ".join(flags) + value), info.help or "", "required" if needed else _default(parameter.default)


def _default(value: object) -> str:
    if isinstance(value, Enum):
        return _code(str(value.value))
    return "" if value is None or value is False else _code(str(value))


def _python() -> Iterator[str]:
    yield "Public names of `stepscope`; everything else may change without notice.\n"
    rows = []
    for name in stepscope.__all__:
        value = getattr(stepscope, name)
        if callable(value):
            rows.append((_code(f"{name}({', '.join(inspect.signature(value).parameters)})"), _first_paragraph(value)))
        else:
            rows.append((_code(name), f"the version, `{value}`"))
    yield _table(("name", "what it does"), rows)
    yield (
        f"The JSON of `stepscope explain --format json` has the schema `{document.SCHEMA}`, that of `stepscope "
        f"compare` `{comparison.SCHEMA}`; a run folder written by `stepscope import` has `{run.SCHEMA}`, and a folder "
        "of another schema is refused.\n"
    )


def _first_paragraph(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


# --- What the tables hold


def _tables() -> Iterator[str]:
    yield (
        "`stepscope query TRACE SQL` asks these tables. A run folder holds them as Parquet files, `events` in a folder "
        "per process with its names apart. Times are int64 ns on the capture's own clock. An empty last cell: the "
        "column is never null.\n"
    )
    yield from _columns(TABLES, TABLE_MEANING)


def _joined_tables() -> Iterator[str]:
    yield (
        "What the files beside a trace hold, and how they join with its steps ([metrics.md](metrics.md)). They stand "
        "in the JSON of `stepscope explain` and `stepscope metrics`; `stepscope metrics` and `stepscope chunks` write "
        "the tables of their name as CSV and Parquet too. `stepscope query` does not hold them.\n"
    )
    yield from _columns(JOIN_TABLES, JOIN_TABLE_MEANING)


def _columns(tables: Mapping[str, Sequence[Column]], meaning: Mapping[str, str]) -> Iterator[str]:
    for name, columns in tables.items():
        yield f"### `{name}`\n"
        yield f"{meaning[name][:1].upper()}{meaning[name][1:]}.\n"
        rows = [(_code(c.name), c.dtype, c.unit, c.doc, c.null) for c in columns]
        yield _table(("column", "type", "unit", "meaning", "null means"), rows)


def _kinds() -> Iterator[str]:
    yield _table(("kind", "meaning"), [(_code(kind), meaning) for kind, meaning in KIND_MEANING.items()])


def _categories() -> Iterator[str]:
    yield "Each ns of a window is in exactly one of these, in this order.\n"
    yield _table(("category", "meaning"), [(_code(name), meaning) for name, meaning in CATEGORY_MEANING.items()])
    yield "Two more categories occur in the catalog, and never in a budget:\n"
    yield _table(("category", "meaning"), [(_code(name), meaning) for name, meaning in _UNBUDGETED.items()])


def _families() -> Iterator[str]:
    shipped = catalog.load_catalog()
    counts = {family.name: sum(rule.family == family.name for rule in shipped.rules) for family in shipped.families}
    yield f"The catalog's families, each a finer account inside one category ({len(shipped.rules)} rules in all).\n"
    rows = [(_code(f.name), _code(f.category), f.meaning, str(counts[f.name])) for f in shipped.families]
    yield _table(("family", "category", "meaning", "rules"), rows)
    yield (
        "Families that no rule names; what the host or the partition knows gives time to them "
        f"(and to `{STEP_INPUTS[1]}`, which takes the kernels that a preparing function launches).\n"
    )
    own = [(_code(family), _code(category), meaning) for (category, family), meaning in OWN_FAMILIES.items()]
    yield _table(("family", "category", "meaning"), own)


def _signals() -> Iterator[str]:
    rows = [(s.name, _code(s.layer), ", ".join(_code(f) for f in s.families)) for s in SIGNAL_KINDS]
    yield _table(("signal", "layer", "families that it is made of"), rows)


def _questions() -> Iterator[str]:
    rows = [(str(i), _code(q.id), q.title, q.needs) for i, q in enumerate(QUESTIONS, start=1)]
    yield _table(("", "id", "question", "needs"), rows)
    yield "A question is `answered`, `partial` (something is refused) or `refused`.\n"


def _grades() -> Iterator[str]:
    yield _table(("grade", "meaning"), [(_code(grade), meaning) for grade, meaning in GRADES.items()])


def _reasons() -> Iterator[str]:
    yield (
        "What the gate before idle can find. Which of them withhold, and at which threshold: "
        "[decision 0007](decisions/0007-withholding.md).\n"
    )
    yield _table(("code", "meaning"), [(_code(code), meaning) for code, meaning in REASON_MEANING.items()])


def _health() -> Iterator[str]:
    yield "Losses and doubts of an import, counted per file. `loss`: something of the file is not in the store.\n"
    yield _health_codes(HEALTH_CODES)
    yield "The same of a log, a metrics file, a step log, a client result or a file of expert counts:\n"
    yield _health_codes(SIDE_CODES)


def _health_codes(codes: Mapping[str, HealthCode]) -> str:
    rows = [(_code(code), h.severity, h.meaning, h.remedy) for code, h in codes.items()]
    return _table(("code", "severity", "meaning", "remedy"), rows)


def _figures() -> Iterator[str]:
    yield "The figures of `stepscope metrics`. Under which names engines export them: [metrics.md](metrics.md).\n"
    rows = [(_code(code), name, unit, meaning) for code, (name, unit, meaning) in DEFINITIONS.items()]
    yield _table(("code", "figure", "unit", "definition"), rows)


def _traps() -> Iterator[str]:
    yield "Where a figure of an engine or a client is easily misread; `stepscope metrics` says which of them apply.\n"
    yield _table(("code", "what goes wrong"), [(_code(code), meaning) for code, meaning in TRAPS.items()])


def _counters() -> Iterator[str]:
    yield "A hardware counter of a kernel has a value, or one of these reasons why there is none.\n"
    yield _table(("code", "meaning"), [(_code(code), meaning) for code, meaning in MISSING.items()])


def _errors() -> Iterator[str]:
    tree = (inspect.getdoc(errors) or "").split("\n\n")[1]
    yield f"```text\n{inspect.cleandoc(tree)}\n```\n"
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and c.__module__ == errors.__name__]
    yield _table(("class", "meaning"), [(_code(c.__name__), _first_paragraph(c)) for c in classes])


_CATALOG = """\
A catalog file is TOML with two kinds of tables. `--catalog FILE` may be repeated; the rules of your files are asked
before the shipped ones, in the order given, and the first rule that matches places a name.

```toml
[[family]]                     # only for a new account
name = "my_attention"
category = "compute"
meaning = "our own attention kernels"

[[rule]]
family = "my_attention"
on = ["kernel"]
match = '^mylib::attn_'
source = "mylib 1.2, csrc/attention.cu"
example = 'void mylib::attn_fwd<128>(float*)'
```

| field of a rule | meaning |
|---|---|
| `family` | a declared family; the family names the category |
| `on` | kinds of names: KINDS |
| `match` | a regular expression, searched in the short form of a name (see below) |
| `source` | where the name comes from: the library's file and version |
| `example` | a real name that the rule places; checked when the file is read |
| `full` | optional, true: search the whole recorded name, template arguments included |
| `weak` | optional, true: a generic host name that yields to an enclosing specific one |

The short form of a kernel's name has no return type, template arguments, parameters or clone suffix; that of a frame
has no line number and no object addresses; any other name is searched as it is.

Categories of a family: CATEGORIES. Kernels, copies and fills may only be placed in compute, kv or comm. A file that
breaks the format is a `CatalogError` that names file, rule, field and what is known.
"""


def _catalog() -> Iterator[str]:
    kinds, categories = (", ".join(map(_code, names)) for names in (catalog.KINDS, catalog.CATEGORIES))
    yield _CATALOG.replace("KINDS", kinds).replace("CATEGORIES", categories)


_SECTIONS: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
    ("Commands", _commands),
    ("Python", _python),
    ("Tables", _tables),
    ("Tables of the join", _joined_tables),
    ("Event kinds", _kinds),
    ("Categories", _categories),
    ("Families", _families),
    ("Signals", _signals),
    ("Questions", _questions),
    ("Grades", _grades),
    ("Coverage reasons", _reasons),
    ("Health codes", _health),
    ("Figures", _figures),
    ("Traps", _traps),
    ("Missing counters", _counters),
    ("Errors", _errors),
    ("Catalog files", _catalog),
)


_DECISIONS = """\
# Decisions

Why things are as they are, one page a choice that surprises a reader. Numbers have gaps: each part of the program
counts from its own start. This list is written by `tools/write_reference.py` from the headings of the pages.
"""


def render_decisions() -> str:
    """The list of decisions."""
    headings = {page.name: page.read_text(encoding="utf-8").split("\n", 1)[0] for page in _decision_pages()}
    lines = [f"- [{heading.removeprefix('# ')}]({name})" for name, heading in headings.items()]
    return "\n".join([_DECISIONS, *lines]) + "\n"


def _decision_pages() -> list[Path]:
    return sorted(DECISIONS.parent.glob("[0-9]*.md"))


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or compare them."""
    pages = {PAGE: render(), DECISIONS: render_decisions()}
    if list(arguments) == ["--check"]:
        old = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        print("out of date, run make reference: " + ", ".join(map(str, old)) if old else "up to date")
        return 1 if old else 0
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

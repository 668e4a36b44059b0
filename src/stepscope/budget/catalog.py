"""Names in a trace -> what their time was spent on: ordered rules, kept as data in `catalog/*.toml`.

A rule is a regular expression with a family, a source and a real example; the first rule that matches places a name.
Files are read in the order of their names and rules in the order of the file, a user's files before ours.
A family is a finer account inside one category. Kernels, copies and fills may only be placed in compute, kv or comm.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, cast, get_args

from stepscope.errors import CatalogError

Kind = Literal["kernel", "memcpy", "memset", "op", "scope", "frame", "runtime"]
Category = Literal["supply", "compute", "kv", "comm", "host", "envelope", "engine"]
Where = Literal["base", "full"]

KINDS: tuple[str, ...] = get_args(Kind)
CATEGORIES: tuple[str, ...] = get_args(Category)
DEVICE_KINDS = frozenset({"kernel", "memcpy", "memset"})
DEVICE_CATEGORIES = frozenset({"compute", "kv", "comm"})

_FAMILY_FIELDS = {"name": str, "category": str, "meaning": str}
_RULE_FIELDS = {"family": str, "on": list, "match": str, "source": str, "example": str, "full": bool, "weak": bool}
_OPTIONAL = frozenset({"full", "weak"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A finer account inside one category, with its meaning in one line."""

    name: str
    category: Category
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of a catalog file.

    Attributes:
        pattern: searched in a kernel's base name, in a frame's `frame_name`, in any other name as it is.
        where: "full" searches the whole recorded name instead, template arguments included.
        weak: a generic name (`aten::bmm`) that yields to an enclosing strong one; only said of the host's side.
        source: where the name comes from: the engine's or library's file, with the version where it matters.
        example: a real name that this rule places.
    """

    family: str
    category: Category
    kinds: tuple[Kind, ...]
    pattern: str
    where: Where
    weak: bool
    source: str
    example: str
    file: str
    ordinal: int

    @property
    def name(self) -> str:
        """`<file>:<ordinal>`, the ordinal counted from 1 in its file."""
        return f"{self.file}:{self.ordinal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a rule places a name; `rule` is the rule's `name`."""

    category: Category
    family: str
    rule: str
    weak: bool


_Matcher = tuple[re.Pattern[str], bool, Placement]  # the bool: search the whole name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalog:
    """All families and rules, and the places of the names asked so far."""

    families: tuple[Family, ...]
    rules: tuple[Rule, ...]
    _matchers: Mapping[str, tuple[_Matcher, ...]] = field(repr=False)
    _places: dict[tuple[str, str], Placement | None] = field(default_factory=dict, repr=False)

    def place(self, name: str, kind: Kind) -> Placement | None:
        """The place of a name, or None where no rule matches it.

        Kernels literally called `kernel` or `device_kernel` are None: the op or frame that launched them knows.
        """
        key = (kind, name)
        if key not in self._places:
            self._places[key] = self._first_match(name, kind)
        return self._places[key]

    def _first_match(self, name: str, kind: Kind) -> Placement | None:
        short = subject(name, kind)
        for pattern, whole, placement in self._matchers.get(kind, ()):
            if pattern.search(name if whole else short):
                return placement
        return None


# --- Names

_FRAME_LINE = re.compile(r"\(\d+\): ")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MANGLED = re.compile(r"_Z(?:NK?)?(?=\d)")
_LENGTH = re.compile(r"\d+")


def subject(name: str, kind: Kind) -> str:
    """What a rule on the base name looks at: see `Rule.pattern`."""
    if kind == "kernel":
        return base_name(name)
    return frame_name(name) if kind == "frame" else name


def frame_name(name: str) -> str:
    """A python frame without its line number and object address: both change from call to call.

    >>> frame_name("vllm/v1/worker/gpu_worker.py(1300): execute_model")
    'vllm/v1/worker/gpu_worker.py: execute_model'
    """
    return _ADDRESS.sub("", _FRAME_LINE.sub(": ", name, count=1))


def base_name(name: str) -> str:
    """A kernel's qualified name: no return type, template arguments, parameters, clone suffix, anonymous namespaces.

    Of mangled names only the leading nested names are decoded (`_ZN<length><name>...`); others stay as they are.

    >>> base_name("void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, float) [clone .kd]")
    'vllm::rms_norm_kernel'
    >>> base_name("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEEvPT0_")
    'aiter::add_rmsnorm_quant_kernel'
    """
    text = name.partition(" [clone")[0].removesuffix(".kd")
    if text.startswith("_Z"):
        return _decode_mangled(text)
    return _without_arguments(text.replace("(anonymous namespace)::", "")).strip().rpartition(" ")[2] or name


def _decode_mangled(name: str) -> str:
    start = _MANGLED.match(name)
    if start is None:
        return name
    parts, position = [], start.end()
    while (length := _LENGTH.match(name, position)) is not None:
        position = length.end() + int(length.group())
        parts.append(name[length.end() : position])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N")) or name


def _without_arguments(name: str) -> str:
    """Drop what stands in balanced `<>`, and everything from the parameter list on.

    Inside parentheses a lone `>` compares, as in `enable_if<((8)>(0))>`; an arrow's `>` closes nothing.
    """
    kept: list[str] = []
    open_brackets: list[str] = []
    previous = ""
    for letter in name:
        if letter == "(" and not open_brackets:
            break
        if letter in "<(":
            open_brackets.append(letter)
        elif letter == ")":
            _close_parenthesis(open_brackets)
        elif letter == ">" and previous != "-" and open_brackets[-1:] == ["<"]:
            open_brackets.pop()
        elif not open_brackets:
            kept.append(letter)
        previous = letter
    return "".join(kept)


def _close_parenthesis(open_brackets: list[str]) -> None:
    while open_brackets and open_brackets.pop() != "(":
        pass


# --- Calls of the device's runtime


def is_launch(name: str) -> bool:
    """Whether a runtime or driver call starts a kernel or a graph (`cudaLaunchKernel`, `hipGraphLaunch`)."""
    return _runtime_family(name) in {"launch", "graph_launch"}


def is_graph_launch(name: str) -> bool:
    """Whether a runtime or driver call starts a graph, so that many kernels share its correlation id."""
    return _runtime_family(name) == "graph_launch"


def _runtime_family(name: str) -> str | None:
    placement = _shipped().place(name, "runtime")
    return placement.family if placement else None


@cache
def _shipped() -> Catalog:
    return load_catalog()


# --- Reading the files


def load_catalog(extra: Sequence[Path] = ()) -> Catalog:
    """Read the shipped files and `extra` ones; the rules of `extra` come first, in the order given, and so win.

    Raises:
        CatalogError: a file is no TOML, or breaks the format; the message names file, rule, field and what is known.
    """
    folder = files("stepscope.budget") / "catalog"
    shipped = {entry.name: entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    documents = [_read_document(str(path), path) for path in extra]
    documents += [_read_document(name, shipped[name]) for name in sorted(shipped)]
    families = _read_families(reversed(documents))  # ours first: a repeated name is the user's
    rules = tuple(rule for document in documents for rule in _read_rules(document, families))
    return Catalog(families=tuple(families.values()), rules=rules, _matchers=_compile(rules))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    file: str
    family: list[Any]
    rule: list[Any]


def _read_document(file: str, source: Path | Traversable) -> _Document:
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise CatalogError(file, "cannot be read (it is no file). Give the path of a TOML file")
    try:
        document = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CatalogError(file, f"cannot be read ({problem}). Give the path of a TOML file") from problem
    except (ValueError, RecursionError) as problem:  # no UTF-8, or no TOML
        raise CatalogError(file, f"is not TOML ({problem}). Correct it there") from problem
    if unknown := sorted(set(document) - {"family", "rule"}):
        raise CatalogError(file, f"has the unknown key '{unknown[0]}'. Known: [[family]] and [[rule]]. Remove it")
    for key, table in document.items():
        if not isinstance(table, list):
            raise CatalogError(file, f"'{key}' is no list of tables. Write [[{key}]], with two brackets")
    return _Document(file=file, family=document.get("family", []), rule=document.get("rule", []))


def _read_families(documents: Iterable[_Document]) -> dict[str, Family]:
    families: dict[str, Family] = {}
    for document in documents:
        for ordinal, row in enumerate(document.family, start=1):
            place = f"family {ordinal}"
            _check_fields(document.file, place, row, _FAMILY_FIELDS)
            _check_known(document.file, f"{place}, field 'category'", row["category"], CATEGORIES)
            if row["name"] in families:
                raise CatalogError(document.file, f"{place}: '{row['name']}' is a family already. Choose another name")
            families[row["name"]] = Family(**row)
    return families


def _read_rules(document: _Document, families: Mapping[str, Family]) -> list[Rule]:
    return [_read_rule(document.file, ordinal, row, families) for ordinal, row in enumerate(document.rule, start=1)]


def _read_rule(file: str, ordinal: int, row: dict[str, Any], families: Mapping[str, Family]) -> Rule:
    place = f"rule {ordinal}"
    _check_fields(file, place, row, _RULE_FIELDS)
    _check_known(file, f"{place}, field 'family'", row["family"], tuple(families))
    for kind in row["on"] or [""]:
        _check_known(file, f"{place}, field 'on'", kind, KINDS)
    rule = Rule(
        family=row["family"],
        category=families[row["family"]].category,
        kinds=tuple(cast("list[Kind]", row["on"])),
        pattern=row["match"],
        where="full" if row.get("full", False) else "base",
        weak=row.get("weak", False),
        source=row["source"],
        example=row["example"],
        file=Path(file).stem,
        ordinal=ordinal,
    )
    _check_rule(file, place, rule)
    return rule


def _check_rule(file: str, place: str, rule: Rule) -> None:
    try:
        pattern = re.compile(rule.pattern)
    except re.error as problem:
        raise CatalogError(file, f"{place}, field 'match': no regular expression ({problem})") from problem
    if DEVICE_KINDS.intersection(rule.kinds) and rule.category not in DEVICE_CATEGORIES:
        raise CatalogError(
            file,
            f"{place}, field 'family': device work cannot be '{rule.category}' (family '{rule.family}'). "
            f"Choose a family of {', '.join(sorted(DEVICE_CATEGORIES))}",
        )
    for kind in rule.kinds:
        name = rule.example if rule.where == "full" else subject(rule.example, kind)
        if not pattern.search(name):
            raise CatalogError(
                file,
                f"{place}, field 'example': '{rule.example}' read as a {kind} is '{name}', which 'match' does not "
                "find. Correct one of the two",
            )


def _check_fields(file: str, place: str, row: object, known: Mapping[str, type]) -> None:
    if not isinstance(row, dict):
        raise CatalogError(file, f"{place} is no table. Write it as one")
    names = ", ".join(known)
    if unknown := sorted(set(row) - set(known)):
        raise CatalogError(file, f"{place}: unknown field '{unknown[0]}'. Known: {names}. Remove or rename it")
    for name, kind in known.items():
        if name not in row and name not in _OPTIONAL:
            raise CatalogError(file, f"{place}: field '{name}' is missing. Needed: {names}. Add it")
        if name in row and not isinstance(row[name], kind):
            raise CatalogError(file, f"{place}, field '{name}': {row[name]!r} is no {kind.__name__}. Change it")


def _check_known(file: str, place: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise CatalogError(file, f"{place}: {value!r} is not known. Known: {', '.join(known)}. Use one of them")


def _compile(rules: Iterable[Rule]) -> dict[str, tuple[_Matcher, ...]]:
    matchers: dict[str, list[_Matcher]] = {kind: [] for kind in KINDS}
    for rule in rules:
        placement = Placement(category=rule.category, family=rule.family, rule=rule.name, weak=rule.weak)
        for kind in rule.kinds:
            matchers[kind].append((re.compile(rule.pattern), rule.where == "full", placement))
    return {kind: tuple(of_kind) for kind, of_kind in matchers.items()}

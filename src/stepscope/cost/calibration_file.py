"""The calibration's file: Calibration <-> TOML, strict on the way in, whole or not at all on the way out.

A TOML file, so that comments can say where each number is from; written beside its place and renamed.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from stepscope.cost.calibration import (
    PHASES,
    RANGED,
    CalibratedCost,
    Calibration,
    Factor,
    HeldOut,
    Source,
)
from stepscope.cost.shipped import parse_toml
from stepscope.errors import BadInput
from stepscope.models.parallel import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "stepscope-calibration"
VERSION = 1
_MOST = 1e300  # of any number: what a float64 holds, with room
_MOST_SHOWN = 60  # characters of a wrong value
_PLAN = ("tp", "dp", "ep", "pp", "cp")
_TEXTS = ("name", "model", "engine", "engine_version", "cost")
_TABLES = ("plan", "dtypes", "source", "families", "fixed", "ranges", "held_out", "left_out", "draws")
_COUNTED = ("families", "fixed", "draws")
_KNOWN = {
    "format",
    "version",
    *_TEXTS,
    *_TABLES,
    "hardware",
    "host_s",
    "drift",
    "tied",
    "unexplained_fraction",
    "num_entries",
}


def read_calibration(path: str | Path) -> Calibration:
    """From a file.

    Raises:
        BadInput: it cannot be read or breaks the format; the message says where.
    """
    place = Path(path).expanduser()
    if place.exists() and not place.is_file():
        raise BadInput(f"{place}: cannot be read (it is no file). Name a calibration file.")
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{place}: cannot be read ({_reason(error)}). Name a calibration file.") from error
    return parse_calibration(text, str(place))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)


def parse_calibration(text: str, where: str) -> Calibration:
    """From a file's text.

    Raises:
        BadInput: it breaks the format; the message begins with `where`.
    """
    data = parse_toml(text, where)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise BadInput(
            f'{where}: expected format = "{FORMAT}" and version = {VERSION}, found {data.get("format")!r} and '
            f"{data.get('version')!r}. `stepscope calibrate` writes such a file."
        )
    _check_keys(data, _KNOWN, {*_TEXTS, "source", "fixed", "host_s"}, where)
    texts = {key: _text(data[key], f"{where}: {key}") for key in _TEXTS}
    if texts["cost"] not in get_args(CalibratedCost):
        raise BadInput(f"{where}: cost is '{texts['cost']}'. Known: {', '.join(get_args(CalibratedCost))}.")
    tables = {key: _table(data.get(key, {}), f"{where}: {key}") for key in _TABLES}
    there = sum(len(tables[key]) for key in _COUNTED)
    if data.get("num_entries", there) != there:
        raise BadInput(
            f"{where}: num_entries is {data['num_entries']!r} and {there} are there: the file was cut. Copy it again."
        )
    share = data.get("unexplained_fraction")
    return Calibration(
        name=texts["name"],
        model=texts["model"],
        hardware=None if "hardware" not in data else _text(data["hardware"], f"{where}: hardware"),
        engine=texts["engine"],
        engine_version=texts["engine_version"],
        plan=_plan(tables["plan"], f"{where}: plan"),
        source=_source(tables["source"], f"{where}: source"),
        cost=next(known for known in get_args(CalibratedCost) if known == texts["cost"]),
        host_s=_factor(data["host_s"], f"{where}: host_s"),
        fixed={key: _factor(value, f"{where}: fixed.{key}") for key, value in tables["fixed"].items()},
        families={key: _factor(value, f"{where}: families.{key}") for key, value in tables["families"].items()},
        tied=_tied(data.get("tied", []), f"{where}: tied"),
        dtypes={key: _text(value, f"{where}: dtypes.{key}") for key, value in tables["dtypes"].items()},
        drift=_factor(data["drift"], f"{where}: drift") if "drift" in data else Factor(value=1.0, low=1.0, high=1.0),
        ranges=_ranges(tables["ranges"], f"{where}: ranges"),
        held_out={key: _held_out(value, f"{where}: held_out.{key}") for key, value in tables["held_out"].items()},
        unexplained_fraction=None if share is None else _number(share, f"{where}: unexplained_fraction"),
        left_out={key: _count(value, f"{where}: left_out.{key}") for key, value in tables["left_out"].items()},
        draws={key: _numbers(value, f"{where}: draws.{key}") for key, value in tables["draws"].items()},
    )


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """To a file, which is there as a whole or not at all.

    Raises:
        BadInput: it cannot be written.
    """
    place = Path(path).expanduser()
    if place.exists() and not place.is_file():
        raise BadInput(f"{place}: cannot be written (it is there and is no file). Choose another path.")
    aside: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=place.parent, prefix=f".{place.name}.", delete=False
        ) as made:
            aside = Path(made.name)
            made.write(to_toml(calibration))
        aside.chmod(0o644)
        aside.replace(place)
    except OSError as error:
        if aside is not None:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        raise BadInput(f"{place}: cannot be written ({error.strerror or error}). Choose another path.") from error


def to_toml(calibration: Calibration) -> str:
    """The text that `parse_calibration` reads back, to the last bit."""
    c, source = calibration, calibration.source
    seen = ", ".join(f"{key} {value.num_steps}" for key, value in c.held_out.items())
    of = _printable(f"{c.model} on {c.engine} {c.engine_version}: fitted on {', '.join(source.files)} ({source.date})")
    lines = [
        f"# A step's time of {of}.",
        f"# Steps fitted: {_printable(seen or 'not said')}. Each number carries its 90 % interval, in seconds.",
        f"format = {_quote(FORMAT)}",
        f"version = {VERSION}",
        f"num_entries = {sum(len(getattr(c, key)) for key in _COUNTED)}  # of {', '.join(_COUNTED)}",
        *(f"{key} = {_quote(getattr(c, key))}" for key in _TEXTS),
        *([] if c.hardware is None else [f"hardware = {_quote(c.hardware)}"]),
        *(
            []
            if c.unexplained_fraction is None
            else [f"unexplained_fraction = {c.unexplained_fraction!r}  # Σ|measured - fitted| / Σ measured"]
        ),
        f"tied = [{', '.join('[' + ', '.join(map(_quote, group)) + ']' for group in c.tied)}]",
        f"host_s = {_inline(c.host_s)}  # the host's work between two steps",
        f"drift = {_inline(c.drift)}  # whole stretches of time against the fit",
    ]
    lines += _section("plan", {key: str(getattr(c.plan, key)) for key in _PLAN})
    lines += _section("dtypes", {key: _quote(value) for key, value in c.dtypes.items()})
    lines += _section(
        "source",
        {
            "files": f"[{', '.join(map(_quote, source.files))}]",
            "content_hash": _quote(source.content_hash),
            "date": _quote(source.date),
        },
    )
    lines += _section("families", {key: _inline(value) for key, value in c.families.items()})
    lines += _section("fixed", {key: _inline(value) for key, value in c.fixed.items()})
    for phase, found in c.ranges.items():
        lines += _section(f"ranges.{phase}", {key: f"[{low!r}, {high!r}]" for key, (low, high) in found.items()})
    lines += _section(
        "held_out",
        {
            key: f"{{ median = {value.median!r}, p90 = {value.p90!r}, num_steps = {value.num_steps} }}"
            for key, value in c.held_out.items()
        },
    )
    lines += _section("left_out", {_quote(key): str(value) for key, value in c.left_out.items()})
    lines += _section("draws", {_quote(key): f"[{', '.join(map(repr, values))}]" for key, values in c.draws.items()})
    return "\n".join(lines) + "\n"


def _section(name: str, entries: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {value}" for key, value in entries.items())] if entries else []


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )  # a JSON string is a TOML basic string but for DEL


def _printable(text: str) -> str:
    """As a comment may hold it: no line breaks, no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _inline(factor: Factor) -> str:
    return f"{{ value = {factor.value!r}, low = {factor.low!r}, high = {factor.high!r} }}"


def _check_keys(data: Mapping[str, Any], known: set[str], needed: set[str], where: str) -> None:
    missing, unknown = sorted(needed - set(data)), sorted(set(data) - known)
    if missing:
        raise BadInput(f"{where}: has no '{missing[0]}'.")
    if unknown:
        raise BadInput(f"{where}: unknown key '{unknown[0]}'. Known: {', '.join(sorted(known))}.")


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{where}: expected a table, found {value!r}.")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{where}: expected a text, found {value!r}.")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise BadInput(f"{where}: expected a number of 0 or more, at most {_MOST:g}, found {_shown(value)}.")
    return float(value)


def _shown(value: Any) -> str:
    told = repr(value) if not isinstance(value, int) or abs(value) <= _MOST else "a larger one"
    return told if len(told) <= _MOST_SHOWN else told[:_MOST_SHOWN] + "..."


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise BadInput(f"{where}: expected a whole number of 0 or more, at most {_MOST:g}, found {_shown(value)}.")
    return value


def _numbers(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise BadInput(f"{where}: expected a list of numbers, found {value!r}.")
    return tuple(_number(item, where) for item in value)


def _factor(value: Any, where: str) -> Factor:
    table = _table(value, where)
    keys = {"value", "low", "high"}
    _check_keys(table, keys, keys, where)
    return Factor(**{key: _number(table[key], f"{where}.{key}") for key in keys})


def _held_out(value: Any, where: str) -> HeldOut:
    table = _table(value, where)
    keys = {"median", "p90", "num_steps"}
    _check_keys(table, keys, keys, where)
    return HeldOut(
        median=_number(table["median"], f"{where}.median"),
        p90=_number(table["p90"], f"{where}.p90"),
        num_steps=_count(table["num_steps"], f"{where}.num_steps"),
    )


def _plan(table: Mapping[str, Any], where: str) -> ParallelPlan:
    _check_keys(table, set(_PLAN), set(), where)
    sizes = {key: _count(value, f"{where}.{key}") for key, value in table.items()}
    if 0 in sizes.values():
        raise BadInput(f"{where}: a parallel group has at least one rank.")
    return ParallelPlan(**sizes)


def _source(table: Mapping[str, Any], where: str) -> Source:
    keys = {"files", "content_hash", "date"}
    _check_keys(table, keys, keys, where)
    files = table["files"]
    if not isinstance(files, list):
        raise BadInput(f"{where}.files: expected a list of names, found {files!r}.")
    return Source(
        files=tuple(_text(name, f"{where}.files") for name in files),
        content_hash=_text(table["content_hash"], f"{where}.content_hash"),
        date=_text(table["date"], f"{where}.date"),
    )


def _tied(value: Any, where: str) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        raise BadInput(f"{where}: expected a list of lists of families, found {value!r}.")
    return tuple(tuple(_text(name, where) for name in group) for group in value)


def _ranges(table: Mapping[str, Any], where: str) -> dict[str, dict[str, tuple[float, float]]]:
    _check_keys(table, set(PHASES), set(), where)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for phase, entries in table.items():
        _check_keys(_table(entries, f"{where}.{phase}"), set(RANGED), set(RANGED), f"{where}.{phase}")
        found[phase] = {key: _range(value, f"{where}.{phase}.{key}") for key, value in entries.items()}
    return found


def _range(value: Any, where: str) -> tuple[float, float]:
    ends = _numbers(value, where)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise BadInput(f"{where}: expected [least, most], found {value!r}.")
    return ends[0], ends[1]

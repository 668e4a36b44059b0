"""The text after a log line's head -> known values and unknown keys; the printed arguments of a server."""

from __future__ import annotations

import ast
import re
from math import isfinite
from typing import TypeAlias

from stepscope.readers.server_log.keys import DURATION_NS, find_key

Value: TypeAlias = "float | int | bool | str | tuple[float, ...] | None"

_PAIR = re.compile(r"^(?P<key>[^:=]{1,60}?)\s*(?::\s+|=|:$)(?P<value>.*)$")
_COUNTED = re.compile(r"^(?P<value>-?[\d.]+) (?P<key>[A-Za-z].{0,40})$")
_NAMED_COUNT = re.compile(r"^(?P<key>[A-Za-z][A-Za-z ]{0,40}) (?P<value>\d+)$")
_NUMBER = re.compile(
    r"^(?P<number>[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?)"
    r"\s*(?P<unit>%|[A-Za-z][\w/ ]*)?(?:\s*\((?P<flag>\w+)\))?$"
)
_RATE = re.compile(r"([\d.]+) ([TG])(F|B)/s/device")
_MAX_DIGITS = 40
_WORDS = {"True": True, "False": False, "None": None, "N/A": None, "nan": None}


def read_fields(text: str, *, words: bool = False) -> tuple[dict[str, Value], dict[str, str]]:
    """Known keys with their values in our units, and unknown keys as printed. `words`: split at spaces."""
    values: dict[str, Value] = {}
    unknown: dict[str, str] = {}
    last: str | None = None
    for item in text.split() if words else _split(text):
        if last is not None and _is_number(item):  # a list of numbers goes on
            values[last] = (*_as_tuple(values[last]), float(item))
            continue
        printed, raw = _key_and_value(item)
        known = find_key(printed)
        last = None
        if printed.lower() == "mfu":
            values |= _rates(raw)
        elif known is None or known[0] in values:
            unknown[printed] = raw
        else:
            name, factor = known
            values[name], flag = _value(raw, factor)
            if flag is not None:
                values[f"is_{flag}"] = True
            last = name if _is_number(raw) else None
    return values, unknown


def _split(text: str) -> list[str]:
    """At commas followed by a space or the end, outside brackets."""
    items, start, depth = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth = max(depth - 1, 0)
        elif letter == "," and depth == 0 and text[i + 1 : i + 2] in (" ", ""):
            items.append(text[start:i])
            start = i + 1
    items.append(text[start:])
    return [item.strip().rstrip(".") if item.strip().endswith("%.") else item.strip() for item in items if item.strip()]


def _key_and_value(item: str) -> tuple[str, str]:
    pair = _PAIR.match(item)
    if pair:
        return pair["key"].strip(), pair["value"].strip()
    counted = _COUNTED.match(item) or _NAMED_COUNT.match(item)
    if counted:
        return counted["key"].strip(), counted["value"]
    return item, ""


def _is_number(text: str) -> bool:
    return bool(_NUMBER.match(text)) and text.replace(".", "", 1).lstrip("-").isdigit() and len(text) < _MAX_DIGITS


def _as_tuple(value: Value) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return value
    return (float(value),) if isinstance(value, int | float) else ()


def _value(raw: str, factor: float) -> tuple[Value, str | None]:
    if raw in _WORDS:
        return _WORDS[raw], None
    match = _NUMBER.match(raw)
    if match is None or len(match["number"]) > _MAX_DIGITS:
        return raw, None
    unit = match["unit"]
    if unit in DURATION_NS and factor == 1:
        factor = DURATION_NS[unit]
    number = _scaled(float(match["number"].replace(",", "")), factor)
    if not isfinite(number):
        return None, match["flag"]
    if factor >= 1 and abs(number) < 2**53 and ("." not in match["number"] or factor > 1):
        return round(number), match["flag"]
    return number, match["flag"]


def _scaled(number: float, factor: float) -> float:
    """Percent is rounded, so that 42.7 % is 0.427 and not its neighbour."""
    return round(number * factor, 12) if factor < 1 else number * factor


def _rates(raw: str) -> dict[str, Value]:
    scale = {"T": 1e12, "G": 1e9}
    names = {"F": "flop_per_s", "B": "bytes_per_s"}
    return {
        names[what]: float(number) * scale[prefix]
        for number, prefix, what in _RATE.findall(raw)
        if number.count(".") <= 1 and number != "."
    }


_ITEM = re.compile(r"'(?P<key>[a-z_]\w*)': (?P<value>'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|[^\s,()\[\]{}']+)(?=[,}])")
_ARGUMENT = re.compile(r"(?P<key>[a-z_]\w*)=(?P<value>'[^']*'|\"[^\"]*\"|[^\s,()\[\]{}']+)")


def read_arguments(text: str) -> dict[str, str]:
    """The arguments that a server prints when it starts: a Python dict (vLLM), `ServerArgs(a=1, ...)`, or `a=1`."""
    if text.startswith("{"):
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # it holds an object's repr
            return {match["key"]: match["value"].strip("'\"") for match in _ITEM.finditer(text)}
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    return {match["key"]: match["value"].strip("'\"").rstrip(".") for match in _ARGUMENT.finditer(text)}

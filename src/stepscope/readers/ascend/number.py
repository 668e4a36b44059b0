"""Numbers in Ascend text files: times in us to exact ns, cells to readings.

A time stands as 1736408883704643.212 and a TAB: as a float its step is 0.25 us, so it is read by its digits.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from stepscope.store.counters import Reading

_PLAIN = re.compile(r"(-?)(\d{1,18})(?:\.(\d*))?\Z")
_MISSING = {"N/A": "not_available", "NA": "not_available_na", "": "empty", "null": "empty", "None": "empty"}


def clean(cell: str) -> str:
    """A cell without the TAB, quotes and blanks around it (shapes are quoted three times)."""
    return cell.strip().strip('"').strip()


def ns_of_us(text: str) -> int | None:
    """Microseconds as written -> ns, rounded half to even; None where there is no number.

    >>> ns_of_us("1736408883704643.212")
    1736408883704643212
    """
    cell = clean(text)
    plain = _PLAIN.match(cell)
    if plain is not None and len(plain[3] or "") <= 3:
        ns = int(plain[2]) * 1000 + int((plain[3] or "").ljust(3, "0") or 0)
        return -ns if plain[1] else ns
    try:
        value = Decimal(cell) * 1000
    except InvalidOperation:
        return None
    return int(value.to_integral_value()) if value.is_finite() and abs(value) < 10**19 else None


def whole(text: str) -> int | None:
    """A whole number, or None."""
    cell = clean(text)
    return int(cell) if re.fullmatch(r"-?\d{1,20}", cell) else None


def reading(text: str | None, scale: float = 1.0) -> Reading:
    """A counter's cell; None: the file has no such column."""
    if text is None:
        return Reading(value=None, missing="no_column")
    cell = clean(text)
    if cell in _MISSING:
        return Reading(value=None, missing=_MISSING[cell])
    try:
        value = float(cell) * scale
    except ValueError:
        return Reading(value=None, missing="not_a_number")
    return of_number(value)


def of_number(value: float) -> Reading:
    """A counter's number."""
    if not math.isfinite(value):
        return Reading(value=None, missing="not_a_number")
    if value < 0:
        return Reading(value=None, missing="out_of_range")
    return Reading(value=value)

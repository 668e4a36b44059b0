"""Numbers with a unit -> short display text; the only place where ns become ms.

Data keeps int64 ns and fractions; text, tables and HTML call these.
"""

from __future__ import annotations

_STEPS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))
UNKNOWN = "-"


def show_ns(duration_ns: int | None) -> str:
    """Three significant digits of a duration, in the largest unit that leaves a digit before the point.

    >>> show_ns(1_703_000_000), show_ns(84_500_000), show_ns(250), show_ns(None)
    ('1.70 s', '84.5 ms', '250 ns', '-')
    """
    if duration_ns is None:
        return UNKNOWN
    for size, unit in _STEPS:
        if abs(duration_ns) >= size:
            value = duration_ns / size
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{duration_ns} ns"


def show_ms(duration_ns: int | None) -> str:
    """A duration in ms with two decimals, for columns that are read downwards.

    >>> show_ms(1_703_000_000), show_ms(None)
    ('1703.00', '-')
    """
    return UNKNOWN if duration_ns is None else f"{duration_ns / 1_000_000:.2f}"


def show_fraction(fraction: float | None) -> str:
    """A fraction as percent with one decimal.

    >>> show_fraction(0.282), show_fraction(None)
    ('28.2 %', '-')
    """
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f} %"


def show_count(count: int | None) -> str:
    """A whole number with thin groups.

    >>> show_count(1865737)
    '1,865,737'
    """
    return UNKNOWN if count is None else f"{count:,}"


def show_bytes(amount: float) -> str:
    """Bytes in the largest unit of 1000s that leaves a digit before the point.

    >>> show_bytes(1.5e9), show_bytes(250)
    ('1.50 GB', '250 B')
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(amount) >= size:
            return f"{amount / size:.2f} {unit}"
    return f"{amount:.0f} B"

"""What-if: the recorded load simulated as it was, held against what was measured, and then with something changed.

A change is only answered where the unchanged simulation gives the measured latencies back. The difference is taken
under the prediction and under every alternative alike (the same refit before and after), so what both have in common
drops out of its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.latency import Limits
from stepscope.simulate.summary import LATENCIES, Figure, interval, latencies, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.latency import RequestTimes
    from stepscope.simulate.scenario import Outcome
    from stepscope.simulate.simulation import Simulation

CHECKED = ("mean", "p50", "p90")
JUDGED = (("ttft", "p50"), ("tpot", "p50"), ("e2el", "p50"), ("e2el", "p90"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One latency, measured and simulated, in seconds. `error`: simulated / measured - 1; None where one is missing."""

    name: str
    statistic: str
    measured: float | None
    simulated: float | None
    low: float | None
    high: float | None

    @property
    def error(self) -> float | None:
        """As a fraction of the measured value."""
        if not self.measured or self.simulated is None:
            return None
        return self.simulated / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """One figure before and after. `difference` is after minus before, with its ends."""

    name: str
    statistic: str
    unit: str
    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None


def compare_latencies(
    outcome: Outcome, measured: Sequence[RequestTimes], statistics: Sequence[str] = CHECKED
) -> tuple[Reproduction, ...]:
    """Every latency that was measured beside the simulated one."""
    told = latencies(measured)
    simulated = measure(outcome.shown, Limits(), outcome.num_devices)
    others = [measure(each, Limits(), outcome.num_devices) for each in outcome.alternatives]
    found = []
    for name in LATENCIES:
        for statistic in statistics:
            values = told[name]
            value = simulated[name, statistic].value if outcome.middle is not None else None
            low, high = interval([each[name, statistic].value for each in others], value, outcome.costs.kind)
            found.append(
                Reproduction(
                    name=name,
                    statistic=statistic,
                    measured=None if values is None else getattr(values, statistic),
                    simulated=value,
                    low=low,
                    high=high,
                )
            )
    return tuple(found)


def beyond(rows: Sequence[Reproduction], within: float) -> tuple[Reproduction, ...]:
    """Of the latencies that decide, those that are off by more than a fraction, or have no error at all."""
    judged = [row for row in rows if (row.name, row.statistic) in JUDGED and row.measured is not None]
    return tuple(row for row in judged if row.error is None or abs(row.error) > within)


def find_figure_changes(before: Outcome, after: Outcome, limits: Limits) -> tuple[FigureChange, ...]:
    """Every figure, after minus before."""
    sides = [[measure(each, limits, side.num_devices) for each in _runs(side)] for side in (before, after)]
    found = []
    for key, figure in sides[0][0].items():
        pairs = list(zip(*([each[key].value for each in side] for side in sides), strict=False))
        deltas = [None if a is None or b is None else b - a for a, b in pairs]
        low, high = interval(deltas[1:], deltas[0], after.costs.kind)
        found.append(_difference(figure, pairs[0], deltas[0], (low, high)))
    return tuple(found)


def _runs(outcome: Outcome) -> tuple[Simulation, ...]:
    return (outcome.shown, *outcome.alternatives)


def _difference(
    figure: Figure,
    pair: tuple[float | None, float | None],
    delta: float | None,
    ends: tuple[float | None, float | None],
) -> FigureChange:
    return FigureChange(
        name=figure.name,
        statistic=figure.statistic,
        unit=figure.unit,
        before=pair[0],
        after=pair[1],
        difference=delta,
        low=ends[0],
        high=ends[1],
    )

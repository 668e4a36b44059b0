"""Prediction: a workload simulated on a calibration and on draws of it -> figures, each with the interval they span.

A draw is one refit on resampled steps, made faster or slower as whole stretches of the recording were. The interval
tells what the calibration leaves open; not what the workload's own chance, or a rule that is wrong, would add.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from stepscope.cost.calibration import Factor
from stepscope.latency import percentile, spread
from stepscope.simulate.engine import Options, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.cost.calibration import Calibration
    from stepscope.simulate.policy import Rules
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Simulation
    from stepscope.simulate.step_time import CostFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How many draws are simulated, and the seed of their speeds."""

    count: int = 20
    seed: int = 0


def latency_figures(found: Simulation) -> dict[str, float]:
    """p50 and p90 of TTFT, TPOT and E2EL where there are any, in seconds."""
    figures: dict[str, float] = {}
    for name in ("ttft_s", "tpot_s", "e2el_s"):
        across = spread(getattr(request.times, name) for request in found.requests)
        if across is not None:
            figures |= {f"{name}_p50": across.p50, f"{name}_p90": across.p90}
    return figures


def predict_with_draws(
    requests: Iterable[Request],
    rules: Rules,
    calibration: Calibration,
    step_time: Callable[[Calibration], CostFunction],
    *,
    drawing: Drawing | None = None,
    figures: Callable[[Simulation], Mapping[str, float]] = latency_figures,
) -> dict[str, Factor]:
    """Each figure of the calibration itself, with the 5th and 95th percentile of its draws (at least the value).

    `step_time` makes a cost function of a calibration, as `fixed_costs.plain_step_time` does.

    Raises:
        BadInput: the workload cannot run.
    """
    asked, drawing = tuple(requests), drawing or Drawing()
    rng = Random(drawing.seed)  # noqa: S311  # no secret

    def run(drawn: Calibration) -> Mapping[str, float]:
        options = Options(steps="none", host_s=drawn.host_s.value)
        return figures(simulate(asked, rules, step_time(drawn), options))

    value = run(calibration)
    count = drawing.count if calibration.num_draws else 0
    drawn = [run(calibration.drawn(i % calibration.num_draws, calibration.draw_speed(rng))) for i in range(count)]
    found = {}
    for name, middle in value.items():
        among = sorted(draw[name] for draw in drawn if name in draw) or [middle]
        found[name] = Factor(
            value=middle, low=min(percentile(among, 0.05), middle), high=max(percentile(among, 0.95), middle)
        )
    return found

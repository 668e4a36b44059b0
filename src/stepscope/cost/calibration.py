"""Calibration: what a deployment's measured steps say of the model's seconds, as a record; calibration_file writes it.

seconds(step) = Σ over families factor x modelled seconds of the family + Σ over FIXED coefficient x its count.
`host_s` is the host's work between steps, not in the above. Each number is a Factor: a value with the ends of its 90 %
interval. A calibration with cost "none" has no families: its fixed part alone is the step's time.
`draws` are refits on resampled steps, a row each over all numbers at once: numbers that trade off move together there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import TYPE_CHECKING, Literal

from stepscope.cost.families import FAMILIES
from stepscope.errors import BadInput
from stepscope.models.parallel import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from stepscope.batch import BatchShape, PhaseSums
    from stepscope.evidence import Grade

CalibratedCost = Literal["model", "bound", "none"]
Range = tuple[float, float]

# fixed coefficient -> what one unit of it is; seconds each
FIXED: dict[str, str] = {
    "step_s": "a step with rows",
    "request_s": "a row of any phase",
    "token_s": "a scheduled token",
    "prefill_step_s": "a step with prefill rows",
    "prefill_request_s": "a prefill row",
    "prefill_token_s": "a token of Σq of the prefill rows",
    "prefill_kv_s": "a token of Σk of the prefill rows",
    "prefill_query_kv_s": "a unit of Σqk of the prefill rows",
    "decode_request_s": "a decode row",
    "decode_kv_s": "a token of Σk of the decode rows",
}
_BEND = re.compile(r"token_s_from_([1-9]\d*)")  # the seconds of a token beyond that many; token_s ends there
PHASES = ("prefill", "decode", "mixed")
RANGED = ("tokens", "requests", "kv_len")
_Z90 = 1.645  # normal deviate of an interval of 90 %


def bend_name(tokens: int) -> str:
    """The fixed coefficient of a token beyond `tokens` of its step.

    >>> bend_name(64)
    'token_s_from_64'
    """
    return f"token_s_from_{tokens}"


def bend_of(name: str) -> int | None:
    """The scheduled tokens beyond which a fixed coefficient counts; None where it is no such coefficient."""
    found = _BEND.fullmatch(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A number with the ends of its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was measured: file names, one hash over their content (sha256), and the day of the recording or the fit."""

    files: tuple[str, ...]
    content_hash: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Absolute relative errors, as fractions, of steps that the fit had not seen."""

    median: float
    p90: float
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One deployment's.

    Attributes:
        hardware: its short name; None where the cost is "none" and nobody said.
        dtypes: number formats that were chosen, by option name (weights, experts, activations, kv).
        families: measured seconds / modelled seconds of each family; empty where the cost is "none".
        tied: families that the steps could not tell apart and that have one factor together.
        fixed: by the names of FIXED, or `bend_name`.
        host_s: the host's work between two steps.
        drift: by how much whole stretches of time were slower or faster than the fit says; value 1.
        ranges: phase -> tokens, requests and kv_len (the longest mean of a step's rows) -> least and most seen.
        held_out: phase, or "all", -> errors.
        unexplained_fraction: share of the steps' time that the fit does not follow: Σ|measured - fitted| / Σ measured.
        left_out: why steps were not fitted -> how many.
        draws: number name (families.X, fixed.X, host_s) -> its value in each refit; empty: none were made.
    """

    name: str
    model: str
    hardware: str | None
    engine: str
    engine_version: str
    plan: ParallelPlan
    source: Source
    cost: CalibratedCost
    host_s: Factor
    fixed: Mapping[str, Factor]
    families: Mapping[str, Factor] = field(default_factory=dict)
    tied: tuple[tuple[str, ...], ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    drift: Factor = Factor(value=1.0, low=1.0, high=1.0)
    ranges: Mapping[str, Mapping[str, Range]] = field(default_factory=dict)
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    unexplained_fraction: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    draws: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, factor in (*self.numbers.items(), ("drift", self.drift)):
            if not 0 <= factor.low <= factor.value <= factor.high:
                raise BadInput(
                    f"calibration {self.name}: {name} is {factor.value:g} in {factor.low:g} to {factor.high:g}; "
                    "expected 0 <= low <= value <= high. Fit it again."
                )
        for name in self.fixed:
            if name not in FIXED and bend_of(name) is None:
                raise BadInput(f"calibration {self.name}: unknown fixed cost '{name}'. Known: {', '.join(FIXED)}.")
        unknown = sorted({*self.families, *(name for group in self.tied for name in group)} - set(FAMILIES))
        if unknown:
            raise BadInput(f"calibration {self.name}: unknown family '{unknown[0]}'. Known: {', '.join(FAMILIES)}.")
        if (self.cost == "none") != (not self.families):
            raise BadInput(
                f"calibration {self.name}: cost '{self.cost}' with {len(self.families)} families; a cost of 'none' has "
                "none, every other has some."
            )
        if not self.drift.high > 0 or not any(
            factor.value for factor in (*self.families.values(), *self.fixed.values())
        ):
            raise BadInput(f"calibration {self.name}: with its numbers every step takes 0 seconds. Fit it again.")
        self._check_draws()

    def _check_draws(self) -> None:
        unknown = sorted(set(self.draws) - set(self.numbers))
        if unknown:
            raise BadInput(f"calibration {self.name}: draws of '{unknown[0]}'. Known: {', '.join(self.numbers)}.")
        lengths = {len(values) for values in self.draws.values()}
        if len(lengths) > 1:
            raise BadInput(
                f"calibration {self.name}: {min(lengths)} draws of one number and {max(lengths)} of another; a draw is "
                "a refit, a value for each. Fit it again."
            )

    @property
    def numbers(self) -> dict[str, Factor]:
        """Every fitted number by its name in `draws`."""
        return {
            **{f"families.{name}": factor for name, factor in self.families.items()},
            **{f"fixed.{name}": factor for name, factor in self.fixed.items()},
            "host_s": self.host_s,
        }

    @property
    def num_draws(self) -> int:
        """Refits that are kept."""
        return min((len(values) for values in self.draws.values()), default=0)

    def drawn(self, index: int, speed: float = 1.0) -> Calibration:
        """The calibration of one refit, every second multiplied by `speed`; numbers lose their intervals."""

        def at(name: str, factor: Factor) -> Factor:
            value = speed * (self.draws[name][index] if name in self.draws else factor.value)
            return Factor(value=value, low=value, high=value)

        return replace(
            self,
            families={name: at(f"families.{name}", factor) for name, factor in self.families.items()},
            fixed={name: at(f"fixed.{name}", factor) for name, factor in self.fixed.items()},
            host_s=at("host_s", self.host_s),
            draws={},
        )

    def draw_speed(self, rng: Random) -> float:
        """How slow a whole run may be: log-normal, with the drift's ends as its 5th and 95th percentile."""
        low, high = log(max(self.drift.low, 1e-6)), log(self.drift.high)
        return exp(rng.gauss((low + high) / 2, (high - low) / 2 / _Z90))

    def grade(self, shape: BatchShape) -> Grade:
        """What a prediction of it is: modelled inside the ranges that were fitted, extrapolated outside or unknown."""
        seen = self.ranges.get(shape.phase or "")
        if seen is None:
            return "extrapolated"
        for name, value in features_of(shape).items():
            low, high = seen.get(name, (1.0, 0.0))
            if value is None or not low <= value <= high:
                return "extrapolated"
        return "modelled"


def features_of(shape: BatchShape) -> dict[str, float | None]:
    """What ranges are kept of: scheduled tokens, rows, and the larger of both phases' mean kv_len."""
    means = [_mean_kv(sums) for sums in (shape.prefill, shape.decode) if sums.num_requests != 0]
    known = [mean for mean in means if mean is not None]
    return {
        "tokens": shape.num_scheduled_tokens,
        "requests": shape.num_requests,
        "kv_len": max(known) if known and len(known) == len(means) else None,
    }


def _mean_kv(sums: PhaseSums) -> float | None:
    return None if not sums.num_requests or sums.kv_sum is None else sums.kv_sum / sums.num_requests

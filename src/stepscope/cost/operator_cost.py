"""OperatorCost: one operator's bound and, where there is one, its prediction with interval, grade and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.cost.roofline import Seconds, Terms
from stepscope.evidence import Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """One execution. `source`: the model, table or bound that gave `time_s`; `grade` None where it is a bound."""

    terms: Terms
    time_s: Seconds | None
    low_s: Seconds | None
    high_s: Seconds | None
    grade: Grade | None
    source: str | None

    @property
    def bound(self) -> Any:
        """The binding term of the roofline."""
        return self.terms.bound

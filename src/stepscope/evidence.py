"""How far a number can be trusted: Grade and Refusal.

A share of time is only claimed for a mechanism whose inputs are recorded, derived, classified or joined; everything
else is refused, and the refusal says what is missing and what would record it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from stepscope.messages import Message

Grade = Literal[
    "recorded", "derived", "classified", "joined", "inferred", "modelled", "extrapolated", "simulated", "refused"
]

GRADES: dict[Grade, str] = {
    "recorded": "stands in the capture as it is",
    "derived": "exact arithmetic on recorded values",
    "classified": "a catalog rule matched a name",
    "joined": "from another file, aligned by step id or clock; the residual is given",
    "inferred": "a pattern was recognised; the confidence is given",
    "modelled": "computed by the cost model",
    "extrapolated": "computed outside the range that a calibration covers",
    "simulated": "produced by the simulator",
    "refused": "not given: the evidence does not carry it",
}

assert tuple(GRADES) == get_args(Grade)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a question lacks, and the exact setting that would record it."""

    missing: Message
    record_with: Message

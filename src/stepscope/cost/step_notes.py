"""What a reader has to know beside a step's price: what is only a bound, and which figures nobody checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.cost.hardware import MEMORY, SCALE_OUT, SCALE_UP, Hardware, compute_dtype, is_one_node
from stepscope.cost.step_cost import StepCost
from stepscope.operators.operator import Operator, Transfer

MEASURED_RANKS = 8  # the largest group whose collectives were measured


def price_notes(operators: Sequence[Operator], step: StepCost, device: Hardware) -> list[str]:
    """Sentences, none where all is predicted from checked figures; of one step, not of many."""
    return [*_unpriced(operators, step), *_unchecked(operators, device)]


def _unpriced(operators: Sequence[Operator], step: StepCost) -> Iterator[str]:
    lacking = [op for op, found in zip(operators, step.operators, strict=True) if found.time_s is None]
    if not lacking:
        return
    names = ", ".join(dict.fromkeys(op.name for op in lacking))
    yield f"no kernel model, so their time is a bound: {names}"
    wide = sorted({op.work.group_size for op in lacking if isinstance(op.work, Transfer)} - {0, 1})
    if wide and wide[-1] > MEASURED_RANKS and len(lacking) < len(operators):
        sizes = ", ".join(map(str, wide))
        yield f"collectives over {sizes} ranks: measured ones reach {MEASURED_RANKS}; beyond, only their bound is given"
    if len(lacking) < len(operators):
        rest = sum(
            count * float(found.time_s)
            for count, found in zip(step.counts, step.operators, strict=True)
            if found.time_s is not None
        )
        yield f"all other operators together are predicted at {1e3 * rest:.3f} ms"


def _unchecked(operators: Sequence[Operator], device: Hardware) -> Iterator[str]:
    used = {MEMORY, *(compute_dtype(op.dtypes.compute) for op in operators)}
    groups = [op.work.group_size for op in operators if isinstance(op.work, Transfer)]
    used |= {SCALE_UP if is_one_node(size) else SCALE_OUT for size in groups if size > 1}
    found = [name for name in device.unchecked if name in used]
    if found:
        yield f"{device.name}: figures from general knowledge, not verified: {', '.join(dict.fromkeys(found))}"

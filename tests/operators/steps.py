"""Steps for the tests, in one line each."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.batch import BatchShape, Row
from stepscope.operators.operator import Operator


def prefill_step(query_len: int, context_len: int = 0) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=query_len, context_len=context_len, phase="prefill"),))


def decode_step(count: int, context_len: int, query_len: int = 1) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=query_len, context_len=context_len, phase="decode"),) * count)


def mixed_step(*shapes: BatchShape) -> BatchShape:
    return BatchShape.from_rows(tuple(row for shape in shapes for row in shape.rows or ()))


def total_flop(operators: Sequence[Operator]) -> int:
    return sum(int(op.count * op.flop) for op in operators)


def total_bytes(operators: Sequence[Operator]) -> int:
    return sum(int(op.count * op.bytes_moved) for op in operators)


def flop_by_role(operators: Sequence[Operator]) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in operators:
        if op.flop:
            found[op.role] = found.get(op.role, 0) + int(op.count * op.flop)
    return found


def named(operators: Sequence[Operator], name: str, layer_type: str | None = None) -> Operator:
    return next(op for op in operators if op.name == name and layer_type in (None, op.layer_type))

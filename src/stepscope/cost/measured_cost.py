"""MeasuredCost: measured kernel tables as a source of an operator's time; where they do not reach, it answers NaN.

GEMMs by (m, n, k) of their dtype; routed experts by one model's table of the same sizes, each grouped GEMM its share
of the elements; GQA cores by batch and mean history; NCCL collectives by message. Everything else has no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.cost.measured import (
    DECODE_ATTENTION,
    GEMM,
    MOE,
    NCCL,
    PREFILL_ATTENTION,
    Layout,
    MeasuredTable,
    find_table,
    find_tables,
    read_measured,
)
from stepscope.errors import BadInput
from stepscope.operators.operator import AttentionWork, ExpertLoad, Operator, Transfer

Array = np.ndarray[Any, np.dtype[Any]]
Found = tuple[Array, str]
_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """Tables of one system and framework below `root`."""

    root: Path
    system: str
    framework: str = "vllm"

    @classmethod
    def from_package(cls, system: str, framework: str = "vllm", root: Path | None = None) -> MeasuredCost:
        """The optional package's tables, or those below `root`.

        Raises:
            BadInput: no tables, or none of this system.
        """
        found = cls(root=find_tables(root), system=system, framework=framework)
        find_table(found.root, system, GEMM, framework)  # refuses a system that was not measured
        return found

    def seconds(self, operator: Operator, grouped: Sequence[Operator], ep: int) -> Found | None:
        """Seconds, NaN outside the table, and the table's name; None for an operator that no table holds."""
        if isinstance(operator.work, Transfer):
            return self._transfer(operator.work)
        if operator.kind == "grouped_gemm":
            return self._experts(operator, grouped, ep)
        if operator.kind == "gemm" and operator.shape is not None:
            dtype = operator.dtypes.weight or operator.dtypes.compute
            # vLLM's block-scaled table times eager launches of 40 us and more: see docs/cost.md
            table = self._table(GEMM, "sglang" if dtype == "fp8_block" else None)
            return _ask(table, (dtype,), operator.shape.m, operator.n, operator.k)
        if operator.kind == "attention" and isinstance(operator.work, AttentionWork):
            return self._attention(operator, operator.work)
        return None

    def _table(self, layout: Layout, framework: str | None = None) -> MeasuredTable | None:
        try:
            return read_measured(find_table(self.root, self.system, layout, framework or self.framework), layout)
        except BadInput:
            return None  # this system has no such table: the caller shows the bound and says so

    def _experts(self, operator: Operator, grouped: Sequence[Operator], ep: int) -> Found | None:
        table, load = self._table(MOE), operator.work
        first, last = grouped[0].shape, grouped[-1].shape
        if table is None or not isinstance(load, ExpertLoad) or first is None or last is None:
            return None
        whole = sum((op.n or 0) * (op.k or 0) for op in grouped)
        share = (operator.n or 0) * (operator.k or 0) / whole
        dtype, experts = operator.dtypes.weight or "bf16", load.num_experts * ep
        for key in table.grids:
            kind, hidden, inter, top_k, num_experts, tp, ep_size, distribution = key
            sizes = (hidden, inter // tp, num_experts, ep_size, kind, distribution)
            if sizes == (first.k, last.k, experts, ep, dtype, "balanced"):
                tokens = np.asarray(load.copies, dtype=float) * ep / top_k
                return table.seconds(key, tokens) * share, table.source
        return None

    def _attention(self, operator: Operator, work: AttentionWork) -> Found | None:
        if work.qk_head_dim != work.v_head_dim or work.num_kv_heads > work.num_heads:
            return None
        cache = "bf16" if operator.dtypes.kv in (None, "bf16") else "fp8"
        rows = np.maximum(np.asarray(work.rows, dtype=float), 1)
        if work.phase == "decode":
            table, length = self._table(DECODE_ATTENTION), np.asarray(work.kv_rows) / rows - 1
        else:
            table, length = self._table(PREFILL_ATTENTION), np.asarray(work.queries) / rows
            if np.any(np.asarray(work.kv_rows) > np.asarray(work.queries)):
                return None  # the prefill table has no context
        return _ask(table, (cache, work.num_heads, work.num_kv_heads, work.qk_head_dim, 0), rows, length)

    def _transfer(self, work: Transfer) -> Found | None:
        table = self._table(NCCL, "nccl")
        if work.collective not in _COLLECTIVES:
            return None
        return _ask(table, (_COLLECTIVES[work.collective], work.group_size, "fp16"), work.payload_bytes)


def _ask(table: MeasuredTable | None, key: tuple[Any, ...], *points: Any) -> Found | None:
    return None if table is None else (table.seconds(key, *points), table.source)

"""Prediction: the operators of one step -> what `predict` shows: totals, one entry per operator, the experts' rows.

flop, bytes and time of an entry are of ONE execution, which the step runs `count` times; totals are of the whole step.
All of it is one rank's share under the parallel plan. Times are null until a hardware prices them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.models.architecture import Architecture, MoeFeedForward
from stepscope.models.parameters import count_parameters
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator, Transfer
from stepscope.operators.router import summarise
from stepscope.operators.rows import StepRows


def predict_document(
    architecture: Architecture,
    rows: StepRows,
    operators: Sequence[Operator],
    deployment: Deployment,
) -> dict[str, Any]:
    """The JSON-able answer, without times."""
    parameters = count_parameters(architecture)
    return {
        "model": architecture.name,
        "shape": {
            "num_scheduled_tokens": rows.num_tokens,
            "prefill_rows": rows.prefill.num_rows,
            "decode_rows": rows.decode.num_rows,
            "max_kv_len": rows.max_kv_len,
            "logits_rows": rows.num_logits,
        },
        "plan": {name: getattr(deployment.plan, name) for name in ("tp", "dp", "ep", "pp", "cp")},
        "totals": {
            "flop": sum(int(op.count * op.flop) for op in operators),
            "bytes": sum(int(op.count * op.bytes_moved) for op in operators),
            "comm_bytes": sum(int(op.count * op.comm_bytes) for op in operators),
            "lower_bound_s": None,
            "serial_bound_s": None,
            "params_total": parameters.total,
            "params_matrices": parameters.matrices,
            "params_active": parameters.active,
        },
        "experts": experts_document(architecture, rows, deployment),
        "operators": [operator_document(op) for op in operators],
        "notes": _notes(architecture, rows, deployment),
    }


def operator_document(operator: Operator) -> dict[str, Any]:
    """One entry of `operators`."""
    shape = operator.shape
    return {
        "layer_type": operator.layer_type,
        "count": operator.count,
        "name": operator.name,
        "role": operator.role,
        "kind": operator.kind,
        "m": operator.m,
        "n": operator.n,
        "k": operator.k,
        "groups": None if shape is None else shape.groups,
        "flop": operator.flop,
        "bytes": operator.bytes_moved,
        "comm_bytes": operator.comm_bytes,
        "intensity": None if isinstance(operator.work, Transfer) else operator.intensity,
        "bound": None,
        "time_s": None,
    }


def experts_document(architecture: Architecture, rows: StepRows, deployment: Deployment) -> dict[str, Any] | None:
    """Rows per expert over the whole EP domain, as one draw of the router (or as measured); None without experts."""
    ffn = next((x.feed_forward for x in architecture.layers if isinstance(x.feed_forward, MoeFeedForward)), None)
    tokens = rows.num_tokens
    if ffn is None or not isinstance(tokens, int):
        return None
    domain, router = tokens * deployment.plan.dp, deployment.router
    found = summarise(router.sample(ffn.num_experts, ffn.top_k, domain))
    return {
        "num_experts": ffn.num_experts,
        "top_k": ffn.top_k,
        "copies": domain * ffn.top_k,
        "mean": domain * ffn.top_k / ffn.num_experts,
        "median": found.median,
        "p90": found.p90,
        "max": found.max,
        "active_experts": found.active_experts,
        "empty_fraction": found.empty_fraction,
        "source": "measured" if router.rows_per_expert is not None else f"one draw, skew {router.skew:g}",
    }


def _notes(architecture: Architecture, rows: StepRows, deployment: Deployment) -> list[str]:
    notes = [f"no rule places {name}: its work is left out" for name in architecture.unplaced]
    if rows.max_kv_len > architecture.native_context_len:
        notes.append(
            f"kv_len {rows.max_kv_len} is beyond max_position_embeddings {architecture.native_context_len}: "
            "the engine has to run with rope scaling."
        )
    if deployment.plan.world_size > 1:
        notes.append("flop, bytes and times are one rank's share.")
    return notes

"""Mixture of experts: router, routed experts from the rows each one receives, shared expert.

M: tokens of the EP domain (all its ranks), k: top_k, E: experts, M_e: copies that reach expert e; Σ_e M_e = M k.
A rank holds E / ep experts and computes their copies: flop = 2 K N Σ M_e, weights = K N b_w per ACTIVE expert only.
Under a router model the rank is the fullest by expectation (all alike where uniform); under a measured histogram it
is the one with most copies, and active experts are counted, not expected.
"""

from __future__ import annotations

from stepscope.models.architecture import MoeFeedForward
from stepscope.models.dtype import matrix_bytes
from stepscope.models.weight import Weight
from stepscope.operators.gemm import activation_bytes
from stepscope.operators.layer_context import LayerContext
from stepscope.operators.operator import Amount, Array, ExpertLoad, GemmShape, Operator, Traffic
from stepscope.operators.router import unique_experts


def domain_tokens(context: LayerContext) -> Amount:
    """Tokens of every rank that shares the experts: the dp ranks are taken to be loaded like this one."""
    return context.rows.num_tokens * context.deployment.plan.dp


def expert_load(context: LayerContext, ffn: MoeFeedForward) -> ExpertLoad:
    """What the fullest rank of the EP domain receives."""
    plan, router = context.deployment.plan, context.deployment.router
    tokens, local = domain_tokens(context), ffn.num_experts // plan.ep
    if router.rows_per_expert is not None and isinstance(tokens, int):
        measured = router.rows_per_expert
        router.inclusion(ffn.num_experts, ffn.top_k)  # refuses a histogram of another model
        if sum(measured) == tokens * ffn.top_k:
            ranks = [measured[i : i + local] for i in range(0, ffn.num_experts, local)]
            fullest = max(ranks, key=sum)
            active = sum(1 for rows in fullest if rows)
            return ExpertLoad(num_experts=local, copies=sum(fullest), active_experts=active, rows_per_expert=fullest)
    shares = router.inclusion(ffn.num_experts, ffn.top_k).reshape(plan.ep, local)
    rank = shares[int(shares.sum(axis=1).argmax())]
    return ExpertLoad(
        num_experts=local,
        copies=_copies(tokens, ffn, plan.ep, rank),
        active_experts=unique_experts(rank, tokens),
    )


def _copies(tokens: Amount, ffn: MoeFeedForward, ep: int, rank: Array) -> Amount:
    """Copies of the rank; exact where all ranks are alike, else the expectation, rounded up."""
    share = float(rank.sum())
    if abs(share * ep - ffn.top_k) < 1e-9:
        even: Amount = -(-tokens * ffn.top_k // ep)
        return even
    skewed: Amount = -(-tokens * round(share * 2**20) // 2**20)
    return skewed


def routed_gemm(context: LayerContext, weight: Weight, load: ExpertLoad) -> Operator:
    """One grouped GEMM over the experts that have rows."""
    dtypes = context.deployment.dtypes(weight, context.architecture)
    per_expert = matrix_bytes(dtypes.weight or "bf16", weight.k * weight.n)
    return context.operator(
        name=weight.name,
        role=weight.role,
        kind="grouped_gemm",
        flop=2 * load.copies * weight.k * weight.n,
        traffic=Traffic(
            weight=_whole(load.active_experts * per_expert),
            read=activation_bytes(dtypes.activation, load.copies * weight.k),
            written=activation_bytes(dtypes.output, load.copies * weight.n),
        ),
        dtypes=dtypes,
        shape=GemmShape(m=load.copies, n=weight.n, k=weight.k),
        work=load,
    )


def _whole(amount: float | Array) -> Amount:
    return round(amount) if isinstance(amount, (int, float)) else amount.round().astype("int64")

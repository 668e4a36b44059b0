"""Collectives: what the parallel plan sends between ranks, per layer and per step.

T: tokens of this rank, H: hidden size, b: bytes per element. tp: all-reduce of T H after attention and after the FFN.
Experts with dp or cp: dispatch of T copies H to at most min(top_k, ep) ranks, combine back (all-to-all); without ep
an all-gather of the domain's tokens and a reduce-scatter of their results. Experts under tp alone need nothing beside
the FFN's all-reduce. Vocabulary: all-reduce of the embedding, all-gather of the logits. pp: one hand-over per stage.
Sources: vLLM 0.32 all2all.py and parallel_state.py; DeepEP README (fp8 dispatch, bf16 combine). 2026-11.
"""

from __future__ import annotations

from stepscope.models.architecture import GatedDeltaNet, MoeFeedForward
from stepscope.models.parallel import ParallelPlan
from stepscope.models.weight import feed_forward_weights
from stepscope.operators.gemm import activation_bytes
from stepscope.operators.layer_context import LayerContext, per_rank
from stepscope.operators.operator import Amount, AttentionWork, Collective, Operator, Traffic, Transfer


def _transfer(context: LayerContext, name: str, collective: Collective, group: str, payload: Amount) -> Operator:
    plan = context.deployment.plan
    sizes = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "experts": plan.expert_group_size, "pp": 2}
    return context.operator(
        name=name,
        role="comm",
        kind="collective",
        traffic=Traffic(read=payload, written=payload),
        work=Transfer(collective=collective, group=group, group_size=sizes[group], payload_bytes=payload),
    )


def attention_collectives(context: LayerContext, cores: list[Operator]) -> list[Operator]:
    """After (tp) and around (cp) the attention of a layer."""
    plan, found = context.deployment.plan, []
    if plan.cp > 1 and context.layer is not None and not isinstance(context.layer.attention, GatedDeltaNet):
        written = sum((op.traffic.kv_written for op in cores if op.role == "kv"), start=0)
        found.append(_transfer(context, "kv_all_gather", "all_gather", "cp", written * plan.cp))
        for op in cores:
            if isinstance(op.work, AttentionWork) and op.role == "core" and op.work.phase == "decode":
                partial = 4 * op.work.queries * (op.work.num_heads * (op.work.v_head_dim + 1))
                found.append(_transfer(context, "attn_merge", "all_reduce", "cp", partial))
    if plan.tp > 1:
        payload = activation_bytes("bf16", context.num_tokens * context.architecture.hidden_size)
        found.append(_transfer(context, "attn_all_reduce", "all_reduce", "tp", payload))
    return found


def feed_forward_collectives(context: LayerContext) -> list[Operator]:
    """After a dense FFN, or around the experts."""
    plan, h = context.deployment.plan, context.architecture.hidden_size
    ffn = context.layer.feed_forward if context.layer is not None else None
    tokens = context.num_tokens
    reduced = activation_bytes("bf16", tokens * h)
    if not isinstance(ffn, MoeFeedForward) or plan.dp * plan.cp == 1:
        return [_transfer(context, "ffn_all_reduce", "all_reduce", "tp", reduced)] if plan.tp > 1 else []
    found: list[Operator] = []
    own = per_rank(tokens, plan.tp)  # each tp rank sends its share of the tokens
    if plan.ep > 1:
        expert = next(w for w in feed_forward_weights(ffn, h) if w.name == "experts_w13")
        sent = own * min(ffn.top_k, plan.ep) * h
        wire = context.deployment.dtypes(expert, context.architecture).activation
        found.append(_transfer(context, "moe_dispatch", "all_to_all", "ep", activation_bytes(wire, sent)))
        found.append(_transfer(context, "moe_combine", "all_to_all", "ep", activation_bytes("bf16", sent)))
    else:
        domain = activation_bytes("bf16", own * plan.expert_group_size * h)
        found.append(_transfer(context, "moe_all_gather", "all_gather", "experts", domain))
        found.append(_transfer(context, "moe_reduce_scatter", "reduce_scatter", "experts", domain))
    if plan.tp > 1:
        found.append(_transfer(context, "ffn_all_gather", "all_gather", "tp", reduced))
        if ffn.shared_intermediate_size:
            found.append(_transfer(context, "shared_all_reduce", "all_reduce", "tp", reduced))
    return found


def step_collectives(context: LayerContext, plan: ParallelPlan) -> list[Operator]:
    """Once a step: the sharded vocabulary's."""
    if plan.tp == 1:
        return []
    architecture = context.architecture
    hidden = activation_bytes("bf16", context.num_tokens * architecture.hidden_size)
    logits = activation_bytes("bf16", context.rows.num_logits * architecture.vocab_size)
    return [
        _transfer(context, "embed_all_reduce", "all_reduce", "tp", hidden),
        _transfer(context, "logits_all_gather", "all_gather", "tp", logits),
    ]


def stage_hand_over(context: LayerContext) -> Operator:
    """The hidden states (V4: all residual streams) from one pipeline stage to the next."""
    architecture = context.architecture
    width = architecture.hidden_size * architecture.hc_mult
    return _transfer(context, "pp_send", "send_recv", "pp", activation_bytes("bf16", context.num_tokens * width))

"""Gated delta net: a short convolution and a recurrent state per value head.

hv: value heads of this rank, dk / dv: head dims, C: chunk of 64 tokens, T': Σ q rounded up to whole chunks.
Prefill: hv (2 C (3 dk + 2 dv) + 6 dk dv) T'  (K K^T, the solve as dense products, Q K^T, A V; W S, Q S, K^T V).
Decode (and verification): 8 hv dk dv T.  Convolution: 2 channels kernel T.  States are read and written once a row.
Source: flash-linear-attention, chunk_gated_delta_rule; vLLM FLA_CHUNK_SIZE = 64. 2026-11.
"""

from __future__ import annotations

from stepscope.models.architecture import GatedDeltaNet
from stepscope.models.kv_layout import gdn_state_bytes
from stepscope.operators.gemm import activation_bytes
from stepscope.operators.layer_context import LayerContext
from stepscope.operators.operator import Amount, AttentionWork, Dtypes, Operator, Traffic


def gdn_cores(context: LayerContext, a: GatedDeltaNet) -> list[Operator]:
    """The convolution, and one recurrent core per phase."""
    tp = context.deployment.plan.tp
    value_heads, channels = a.num_v_heads // tp, a.conv_dim // tp
    conv_state, state = (size // tp for size in gdn_state_bytes(a))
    tokens, requests = context.num_tokens, context.rows.prefill.num_rows + context.rows.decode.num_rows
    found = [
        context.operator(
            name="conv",
            role="conv",
            kind="convolution",
            flop=2 * channels * a.conv_kernel * tokens,
            traffic=Traffic(
                weight=activation_bytes("bf16", channels * a.conv_kernel),
                read=activation_bytes("bf16", tokens * channels),
                written=activation_bytes("bf16", tokens * channels),
                kv_read=requests * conv_state,
                kv_written=requests * conv_state,
            ),
        )
    ]
    k, v, c = a.k_head_dim, a.v_head_dim, a.chunk_len
    for phase, part in context.phases:
        padded: Amount = part.padded_tokens(c) if phase == "prefill" else part.num_tokens
        per_token = 2 * c * (3 * k + 2 * v) + 6 * k * v if phase == "prefill" else 8 * k * v
        work = AttentionWork(
            phase=phase,
            num_heads=value_heads,
            num_kv_heads=a.num_k_heads // tp,
            qk_head_dim=k,
            v_head_dim=v,
            rows=part.num_rows,
            queries=part.num_tokens,
            pairs=padded,
            kv_rows=part.num_rows,
            history=part.num_kv,
        )
        found.append(
            context.operator(
                name=f"gdn_{phase}",
                role="core",
                kind="recurrent",
                flop=value_heads * per_token * padded,
                traffic=Traffic(
                    read=activation_bytes("bf16", part.num_tokens * channels),
                    written=activation_bytes("bf16", part.num_tokens * (value_heads * v)),
                    kv_read=part.num_rows * state,
                    kv_written=part.num_rows * state,
                ),
                dtypes=Dtypes(kv="fp32 state"),
                work=work,
            )
        )
    return found

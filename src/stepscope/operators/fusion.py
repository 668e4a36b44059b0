"""Fusion: which projections an engine runs as one GEMM.

Members have the same input and follow one another in columns: n adds up, k stays. "none" keeps the model's own names.
Sources: vLLM 0.32 models/deepseek_v4/attention.py, deepseek_v2.py, llama.py; SGLang 0.5.23 models/deepseek_v4.py
(SGLANG_OPT_FUSE_WQA_WKV), deepseek_v2.py, llama.py. 2026-11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from stepscope.errors import BadInput
from stepscope.models.weight import Weight

Fusion = Literal["none", "vllm", "sglang"]

_QKV = ("qkv_proj", ("q_proj", "k_proj", "v_proj"))
FUSED: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "none": (),
    "vllm": (
        _QKV,
        ("fused_wqa_wkv", ("wq_a", "wkv")),
        ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")),
        ("wk_weights_proj", ("indexer_wk", "indexer_weights_proj")),
        ("compressor_fused_wkv_wgate", ("compressor_wkv", "compressor_wgate")),
        ("indexer_compressor_fused_wkv_wgate", ("indexer_compressor_wkv", "indexer_compressor_wgate")),
    ),
    "sglang": (
        _QKV,
        ("wqkv_a", ("wq_a", "wkv")),
        ("fused_qkv_a_proj_with_mqa", ("q_a_proj", "kv_a_proj_with_mqa")),
    ),
}


def fuse(weights: Sequence[Weight], fusion: str) -> tuple[Weight, ...]:
    """The weights as an engine holds them; a fused one stands where its first member stood.

    Raises:
        BadInput: nobody knows the engine.
    """
    if fusion not in FUSED:
        raise BadInput(f"unknown fusion '{fusion}'. Known: {', '.join(FUSED)}.")
    result = list(weights)
    for name, members in FUSED[fusion]:
        found = [weight for weight in result if weight.name in members]
        if len(found) != len(members):
            continue
        storage = "kept" if any(weight.storage == "kept" for weight in found) else found[0].storage
        merged = replace(found[0], name=name, n=sum(weight.n for weight in found), storage=storage)
        result[result.index(found[0])] = merged
        result = [weight for weight in result if weight.name not in members]
    return tuple(result)

"""Conditions: what must be the same before and after a cell, and in all cells of a sweep, and what of it changed."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# None: not known on this engine; then it cannot have been seen to change either, and the report says so
CONDITIONS: dict[str, str] = {
    "checkpoint": "the model's name",
    "checkpoint_hash": "of its config.json",
    "quantisation": "weights, routed experts and KV cache",
    "parallel": "TP, DP and EP",
    "engine": "engine and version",
    "drivers": "torch, CUDA, ROCm, CANN where they are",
    "device": "what it ran on",
    "attention_backend": "which kernels attend",
    "moe_communication": "how expert ranks exchange rows",
    "prefix_caching": "off, or hits asserted to be 0",
    "limits": "token budget, seats, longest sequence",
    "graphs": "whether steps are captured",
}


def hash_config(config: Mapping[str, Any]) -> str:
    """Of a parsed config.json, whatever the order of its keys.

    >>> hash_config({"a": 1, "b": 2}) == hash_config({"b": 2, "a": 1})
    True
    """
    return "sha256:" + hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any], when: str) -> list[str]:
    """A sentence for each condition that differs; keys that one side lacks are None there.

    >>> find_changes({"engine": "vllm 0.31"}, {"engine": "vllm 0.32"}, "in the cell")
    ["engine changed in the cell: 'vllm 0.31', then 'vllm 0.32'"]
    """
    return [
        f"{name} changed {when}: {before.get(name)!r}, then {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]

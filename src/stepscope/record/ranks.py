"""Where a process stands in its engine: vLLM's configuration -> the fields of a log's header."""

from __future__ import annotations

import socket
from typing import Any

from .step_log import hash_id

_SOURCES = {
    "dp_rank": ("parallel_config", "data_parallel_rank"),
    "dp_size": ("parallel_config", "data_parallel_size"),
    "tp_size": ("parallel_config", "tensor_parallel_size"),
    "pp_size": ("parallel_config", "pipeline_parallel_size"),
    "token_budget": ("scheduler_config", "max_num_batched_tokens"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "block_size": ("cache_config", "block_size"),
    "num_blocks": ("cache_config", "num_gpu_blocks"),
}


def hash_host() -> str:
    """This machine's name, hashed."""
    return hash_id(socket.gethostname())


def header_of(role: str, engine_version: str, config: Any, *, rank: int | None = None) -> dict[str, Any]:
    """The header's fields that do not change. What the configuration does not say is null."""
    header: dict[str, Any] = {"role": role, "host": hash_host(), "engine": "vllm"}
    header["engine_version"] = engine_version
    for name, (section, attribute) in _SOURCES.items():
        value = getattr(getattr(config, section, None), attribute, None)
        header[name] = value if isinstance(value, int) else None
    model = getattr(getattr(config, "model_config", None), "model", None)
    header["model"] = hash_id(str(model)) if model else None
    header["rank"] = rank
    tp, pp = header["tp_size"], header["pp_size"]
    known = rank is not None and tp and pp
    header["tp_rank"] = rank % tp if known and rank is not None else None
    header["pp_rank"] = rank // tp % pp if known and rank is not None else None
    return header

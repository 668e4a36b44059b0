"""Expert token counts of a run: SGLang's recorder files (.pt) and our markers -> rows per expert, step by step.

A count is token copies per expert and layer. *Logical* experts are the model's; *physical* ones are their copies on the
ranks (EPLB), and add up to logical ones by the file's map. Law: a layer's counts add up to tokens x top_k.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stepscope.errors import BadInput
from stepscope.readers.experts.tensors import load_tensors
from stepscope.readers.losses import LossLog, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "experts"
Counts: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.int64]]"
_MARKER = re.compile(r"^vllm_experts v=1 s=(?P<step>\d+) l=(?P<layers>\d+:\d+(?:\.\d+)*(?:,\d+:\d+(?:\.\d+)*)*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCounts:
    """One step's counts, [layers, experts]. `step` is the engine's step or forward id; None where none was recorded."""

    source: str
    step: int | None
    rank: int | None
    counts: Counts
    layers: tuple[int, ...]
    is_physical: bool = False
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLog:
    """All counts of a file or a folder; `physical_to_logical` [layers, physical], where the file has it."""

    reading: Reading
    steps: tuple[ExpertCounts, ...]
    physical_to_logical: Counts | None = None

    def logical(self, step: ExpertCounts) -> Counts | None:
        """Counts per logical expert; None for physical ones without a map."""
        if not step.is_physical:
            return step.counts
        owner = self.physical_to_logical
        if owner is None or owner.shape != step.counts.shape or owner.size == 0:
            return None
        found = np.zeros((owner.shape[0], int(owner.max()) + 1), np.int64)
        for layer in range(owner.shape[0]):
            np.add.at(found[layer], owner[layer], step.counts[layer])
        return found


def read_experts(path: Path) -> ExpertLog:
    """Read one .pt file of SGLang's recorder, or every one of a folder.

    Raises:
        BadInput: there is none, or one of them is no such file.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.pt"))
    if not files:
        raise BadInput(f"{path}: no .pt file is there. Record with SGLang's expert distribution recorder.")
    losses = LossLog()
    steps: list[ExpertCounts] = []
    owner: Counts | None = None
    for file in files:
        content = load_tensors(file)
        if not isinstance(content, dict):
            raise BadInput(f"{file}: it holds no counts. Pass a file of SGLang's expert distribution recorder.")
        found = _counts(content.get("last_physical_to_logical_map"))
        owner = owner if found is None or (found < 0).any() else found
        steps += _from_stat(content, losses) if "logical_count" in content else _from_records(content, losses)
    if not steps:
        raise BadInput(f"{path}: it holds no counts. Pass a file of SGLang's expert distribution recorder.")
    return ExpertLog(
        reading=Reading(path=str(path), health=losses.rows()), steps=tuple(steps), physical_to_logical=owner
    )


def _from_stat(content: dict[Any, Any], losses: LossLog) -> list[ExpertCounts]:
    """[steps, layers, experts], summed over ranks; a ring of the last steps, without ids."""
    values = content["logical_count"]
    if not isinstance(values, np.ndarray) or values.ndim not in (2, 3):
        losses.add("expert_record_unparsed", "logical_count has no usable shape")
        return []
    rows = values if values.ndim == 3 else values[None]
    return [
        ExpertCounts(source="sglang stat", step=None, rank=None, counts=counts, layers=tuple(range(len(counts))))
        for row in rows
        if (counts := _counts(row)) is not None
    ]


def _from_records(content: dict[Any, Any], losses: LossLog) -> list[ExpertCounts]:
    found = []
    records = content.get("records")
    for record in records if isinstance(records, list) else []:
        counts = _counts(record.get("global_physical_count")) if isinstance(record, dict) else None
        if counts is None:
            losses.add("expert_record_unparsed")
            continue
        found.append(
            ExpertCounts(
                source="sglang pass",
                step=_int(record.get("forward_pass_id")),
                rank=_int(record.get("rank")),
                counts=counts,
                layers=tuple(range(len(counts))),
                is_physical=True,
                num_tokens=_token_count(record.get("input_ids")),
            )
        )
    return found


def _counts(values: object) -> Counts | None:
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "iufb":
        return None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return None
    return values.astype(np.int64)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _token_count(values: object) -> int | None:
    if isinstance(values, np.ndarray):
        return int(values.size)
    return len(values) if isinstance(values, list) else None


def parse_marker(name: str) -> ExpertCounts | None:
    """Our expert marker in a trace -> its counts; None if it is none.

    >>> parse_marker("vllm_experts v=1 s=21 l=0:3.1,1:2.2").counts.tolist()
    [[3, 1], [2, 2]]
    """
    match = _MARKER.match(name)
    if match is None:
        return None
    layers = [part.partition(":") for part in match["layers"].split(",")]
    rows = [[int(n) for n in counts.split(".")] for _, _, counts in layers]
    if len({len(row) for row in rows}) != 1 or max(n for row in rows for n in row) >= 2**62:
        return None
    return ExpertCounts(
        source="marker",
        step=int(match["step"]),
        rank=None,
        counts=np.array(rows, np.int64),
        layers=tuple(int(layer) for layer, _, _ in layers),
    )


def read_markers(names: Iterable[str], path: str) -> ExpertLog:
    """The expert markers among a trace's names; the log is empty where there is none."""
    steps = tuple(counts for name in names if (counts := parse_marker(name)) is not None)
    return ExpertLog(reading=Reading(path=path), steps=tuple(sorted(steps, key=lambda s: s.step or 0)))

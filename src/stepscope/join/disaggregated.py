"""Prefill and decode on different servers: per request, the stages that the logs name, and those that they do not.

SGLang prints a line per request on each side (`--enable-request-time-stats-logging`); the two halves share a bootstrap
room, else the request id. vLLM prints transfers as means of an interval only. The router prints nothing that is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.readers.server_log.reader import LogRecord

# stage -> (the side that knows it, the log's durations, first known one counts)
STAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "router": ("router", ()),
    "bootstrap": ("prefill", ("bootstrap_ns", "bootstrap_queue_ns")),
    "queue": ("prefill", ("queue_ns",)),
    "prefill": ("prefill", ("prefill_run_ns", "forward_ns")),
    "preallocation": ("decode", ("alloc_wait_ns", "prealloc_queue_ns")),
    "transfer": ("decode", ("transfer_ns", "transfer_queue_ns")),
    "decode_queue": ("decode", ("queue_ns",)),
    "decode": ("decode", ("forward_ns",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRequest:
    """One request over both sides; a stage that was not recorded is None and stands in `missing`."""

    request_id: str
    prompt_len: int | None
    output_len: int | None
    stages_ns: Mapping[str, int | None]
    transfer_bytes: int | None
    transfer_bytes_per_s: float | None
    sides: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Stages without a figure, by name."""
        return tuple(name for name, value in self.stages_ns.items() if value is None)


def stage_requests(records: Sequence[LogRecord]) -> tuple[StagedRequest, ...]:
    """Every request that a prefill or decode server printed; unified servers' lines are no part of this."""
    halves: dict[str, dict[str, LogRecord]] = {}
    for record in records:
        side = _side(record)
        if record.kind == "sglang_request" and side is not None:
            halves.setdefault(_key(record), {})[side] = record
    return tuple(_stage(key, sides) for key, sides in halves.items())


def _side(record: LogRecord) -> str | None:
    role = str(record.values.get("role", "")).lower()
    return next((side for side in ("prefill", "decode") if side in role), None)


def _key(record: LogRecord) -> str:
    room = record.values.get("bootstrap_room")
    return f"room {room}" if room is not None else str(record.values.get("request_id"))


def _stage(key: str, sides: Mapping[str, LogRecord]) -> StagedRequest:
    any_half = sides.get("decode") or sides["prefill"]
    stages = {name: _first(sides.get(side), names) for name, (side, names) in STAGES.items()}
    rate = next((v for r in sides.values() if (v := r.number("transfer_bytes_per_s"))), None)
    size = next((v for r in sides.values() if (v := r.number("transfer_bytes"))), None)
    if rate is None and size is not None and stages["transfer"]:
        rate = size / (stages["transfer"] * 1e-9)
    return StagedRequest(
        request_id=str(any_half.values.get("request_id", key)),
        prompt_len=_whole(any_half, "prompt_len"),
        output_len=_whole(any_half, "output_len"),
        stages_ns=stages,
        transfer_bytes=None if size is None else round(size),
        transfer_bytes_per_s=rate,
        sides=tuple(side for side in ("prefill", "decode") if side in sides),
    )


def _first(record: LogRecord | None, names: tuple[str, ...]) -> int | None:
    if record is None:
        return None
    return next((round(value) for name in names if (value := record.number(name)) is not None), None)


def _whole(record: LogRecord, name: str) -> int | None:
    value = record.number(name)
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferInterval:
    """vLLM's transfers of one interval; per request nothing is printed."""

    time_ns: int | None
    num_transfers: int | None
    mean_ns: float | None
    mean_bytes: float | None
    bytes_per_s: float | None


def find_transfers(records: Sequence[LogRecord]) -> tuple[TransferInterval, ...]:
    """The KV transfer lines of a vLLM log."""
    return tuple(
        TransferInterval(
            time_ns=record.time_ns,
            num_transfers=_whole(record, "num_transfers"),
            mean_ns=record.number("mean_transfer_ns"),
            mean_bytes=record.number("mean_transfer_bytes"),
            bytes_per_s=record.number("transfer_bytes_per_s"),
        )
        for record in records
        if record.kind == "vllm_kv_transfer"
    )

"""RecordedLoad: what a recorded engine was asked and how it was set up, as a scenario, and the latencies that it had.

From a scheduler's step log: requests whose whole life is in it, each from its entry into the scheduler's queue (the
front end before that is no scheduler's) to its end. Prompts' texts are not logged, only how much of each was found in
the cache: a request with a hit is given the beginning of the latest one before it that is long enough.
From a simulated run: its own requests and rules, texts included.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.join.requests import account_requests
from stepscope.latency import RequestTimes
from stepscope.readers.clients.reader import read_clients
from stepscope.readers.step_log import holds_step_log, read_step_log
from stepscope.record.step_log import SUFFIX
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scenario import EngineOptions
from stepscope.simulate.workload import OUTPUTS
from stepscope.store.run import is_run, open_run, read_further_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from stepscope.join.requests import RequestAccount
    from stepscope.readers.step_log import Stream

_NS = 1e-9
_RULES = tuple(each.name for each in fields(EngineOptions))
# what a step log's header calls it -> our name
_HEADER = {
    "token_budget": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "block_size": "block_size",
    "num_blocks": "num_blocks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoad:
    """`rules`: engine options by name as far as they are known; `measured`: in the order of the requests."""

    source: str
    requests: tuple[Request, ...]
    rules: dict[str, Any]
    measured: tuple[RequestTimes, ...]
    num_left_out: int
    notes: tuple[str, ...]

    def engine(self, said: Collection[str] = ()) -> EngineOptions:
        """The options; those that are `said` elsewhere need not be known here.

        Raises:
            BadInput: the recording does not say one that is needed.
        """
        missing = [name for name in _HEADER.values() if self.rules.get(name) is None and name not in said]
        if missing:
            raise BadInput(
                f"{self.source} does not say {', '.join(missing)}. Give "
                f"{' '.join(f'--as-recorded {name}=VALUE' for name in missing)}, as the engine's log has it."
            )
        return EngineOptions(**{name: value for name, value in self.rules.items() if value is not None})


def read_recorded_load(run: Path, steps_log: Path | None = None) -> RecordedLoad:
    """From a step log's folder, a simulated run, or a recorded run with its step log beside it.

    Raises:
        BadInput: there are no requests in it.
    """
    path = run.expanduser()
    if steps_log is not None:
        return _from_log(steps_log)
    if not path.exists():
        raise BadInput(f"{run}: no such file or folder. Check the path.")
    if is_run(path):
        return _from_simulated(path)
    if holds_step_log(path):
        return _from_log(path)
    raise BadInput(
        f"{run}: a trace tells of steps, not of when requests arrived. Name the step log that was recorded beside it "
        "(--steps-log DIR; record one with STEPSCOPE_STEP_LOG=DIR)."
    )


def read_measured_times(path: Path) -> tuple[RequestTimes, ...]:
    """Latencies of a measured run: of a step log, a simulated run, or a client's result file.

    Raises:
        BadInput: no request in it has a latency.
    """
    if path.is_file() and path.suffix != SUFFIX:
        times = tuple(request.times() for result in read_clients(path) for request in result.succeeded)
    else:
        times = read_recorded_load(path).measured
    if not times:
        raise BadInput(f"{path}: no request in it has ended: there is nothing to compare with.")
    return times


def _from_log(path: Path) -> RecordedLoad:
    log = read_step_log(path)
    if len(log.schedulers) != 1:
        raise BadInput(
            f"{path}: {len(log.schedulers)} schedulers are logged, and one engine core is simulated. Name the .steplog "
            "file of one, and scale its load if the others shared it."
        )
    return from_stream(log.schedulers[0], str(path))


def from_stream(stream: Stream, source: str) -> RecordedLoad:
    """A scheduler's log.

    Raises:
        BadInput: no request's whole life is in it.
    """
    accounts = account_requests(stream)
    whole = sorted((a for a in accounts if _is_whole(a)), key=_queued_ns)
    if not whole:
        raise BadInput(
            f"{source}: of {len(accounts)} requests none was both queued and ended while the log was written. Record "
            "for longer than a request takes."
        )
    begin_ns = _queued_ns(whole[0])
    requests: list[Request] = []
    for place, account in enumerate(whole):
        requests.append(_request(account, place, begin_ns, requests))
    notes = ["prompts' texts are not logged: a hit is given the beginning of an earlier request that is long enough"]
    unknown = sum(account.prefix_hit_tokens is None for account in whole)
    if unknown:
        notes.append(f"of {unknown} requests the prefix hit is not logged: they are taken to share no text")
    left_out = len(accounts) - len(whole)
    if left_out:
        notes.append(
            f"{left_out} requests of {len(accounts)} left out: they began before the log, or did not end in it"
        )
    return RecordedLoad(
        source=source,
        requests=tuple(requests),
        rules={name: stream.number(key) for key, name in _HEADER.items()},
        measured=tuple(_times(account, begin_ns) for account in whole),
        num_left_out=left_out,
        notes=tuple(notes),
    )


def _is_whole(account: RequestAccount) -> bool:
    stages = account.stages
    return (
        not account.began_before
        and bool(account.prompt_len)
        and bool(account.num_output_tokens)
        and None not in (stages.queued_ns, stages.first_token_ns, stages.end_ns)
    )


def _queued_ns(account: RequestAccount) -> int:
    assert account.stages.queued_ns is not None
    return account.stages.queued_ns


def _request(account: RequestAccount, place: int, begin_ns: int, before: Sequence[Request]) -> Request:
    prompt, output, hit = account.prompt_len or 1, account.num_output_tokens or 1, account.prefix_hit_tokens or 0
    donor = next((each for each in reversed(before) if hit and each.prompt_len >= hit), None)
    shared = _first(donor.text, hit) if donor is not None else ()
    length = prompt + output - sum(part.length for part in shared)
    return Request(
        request_id=account.request_id,
        arrival_s=(_queued_ns(account) - begin_ns) * _NS,
        prompt_len=prompt,
        output_len=output,
        text=(*shared, Segment(source=OUTPUTS + place, length=length)),
    )


def _first(text: Sequence[Segment], length: int) -> tuple[Segment, ...]:
    kept: list[Segment] = []
    for part in text:
        if length <= 0:
            break
        kept.append(Segment(source=part.source, start=part.start, length=min(part.length, length)))
        length -= part.length
    return tuple(kept)


def _times(account: RequestAccount, begin_ns: int) -> RequestTimes:
    first, last = account.stages.first_token_ns, account.stages.end_ns
    return RequestTimes(
        arrival_s=(_queued_ns(account) - begin_ns) * _NS,
        first_token_s=None if first is None else (first - begin_ns) * _NS,
        last_token_s=None if last is None else (last - begin_ns) * _NS,
        output_len=account.num_output_tokens,
    )


def _from_simulated(path: Path) -> RecordedLoad:
    tables = read_further_tables(path, ())
    described = open_run(path)[0].origin.metadata.get("simulation")
    if "simulated_requests" not in tables or not isinstance(described, dict):
        raise BadInput(
            f"{path}: this run holds no requests: it was imported from a trace. Name the step log that was recorded "
            "beside it (--steps-log DIR)."
        )
    rows = tables["simulated_requests"].to_pylist()
    return RecordedLoad(
        source=str(path),
        requests=tuple(_read_request(row) for row in rows),
        rules={
            name: tuple(value) if isinstance(value, list) else value
            for name, value in described["rules"].items()
            if name in _RULES
        },
        measured=tuple(_read_times(row) for row in rows),
        num_left_out=0,
        notes=("this run is simulated: what is reproduced is the simulator itself",),
    )


def _read_request(row: dict[str, Any]) -> Request:
    parts = [[int(number) for number in part.split(":")] for part in (row["text"] or "").split()]
    return Request(
        request_id=row["request_id"],
        arrival_s=row["arrival_s"] if row["after"] is None else row["wait_s"],
        prompt_len=row["prompt_len"],
        output_len=row["output_len"],
        max_tokens=row["max_tokens"],
        text=tuple(Segment(source=source, start=start, length=length) for source, start, length in parts),
        after=row["after"],
    )


def _read_times(row: dict[str, Any]) -> RequestTimes:
    return RequestTimes(
        arrival_s=row["arrival_s"],
        first_token_s=row["arrival_s"] + row["ttft_s"],
        last_token_s=row["arrival_s"] + row["e2el_s"],
        output_len=row["output_len"],
    )

"""Disaggregated: prefill on some engines, decode on others, the KV of a prompt sent between the two.

1. A request goes to a prefill engine and ends there with one token; its blocks stay until its KV was sent.
2. It waits on a decode engine, in order, until blocks for all that is known of it are free there (less what that cache
   holds), as vLLM's NIXL connector and SGLang's DecodePreallocQueue do; nothing is sent before.
3. Whole blocks are sent: latency_s + bytes / bytes_per_s, side by side or one after another.
4. It decodes. The first token is the prefill engine's ("prefill": SGLang hands it over) or sampled anew by computing
   the prompt's last token again ("decode": vLLM, whose proxy drops the other).
A request that loses its blocks on the decode side computes them there. Sources: vLLM 0.32, nixl/pull_scheduler.py and
Scheduler._update_waiting_for_remote_kv; SGLang 0.5.23, srt/disaggregation/decode.py and prefill.py. Not held: sending
chunk by chunk or layer by layer while the prompt is computed; SGLang's reserve of 512 tokens per running request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal

from stepscope.errors import BadInput, InvariantBroken
from stepscope.simulate.arrivals import Arrivals, check_workload
from stepscope.simulate.clock import to_seconds, to_ticks
from stepscope.simulate.engine_pool import COMES, Events, choose, start_engines
from stepscope.simulate.journal import Journal
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.simulation import Handover, Options
from stepscope.simulate.vllm_scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.simulate.engine_pool import EnginePool, PooledEngine
    from stepscope.simulate.policy import LiveRequest
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Simulation

FirstFrom = Literal["prefill", "decode"]
Lanes = Literal["free", "per_sender", "one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How KV gets from engine to engine.

    Attributes:
        kv_bytes_per_token: of all layers and ranks of an engine.
        bytes_per_s: of one transfer at work.
        latency_s: of each transfer, before its bytes.
        lanes: transfers run side by side at full speed (free), one at a time from each prefill engine, or one in all.
    """

    kv_bytes_per_token: float
    bytes_per_s: float = inf
    latency_s: float = 0.0
    lanes: Lanes = "free"

    def __post_init__(self) -> None:
        if not (self.kv_bytes_per_token >= 0 and self.bytes_per_s > 0):
            raise BadInput(f"{self}: the bytes of a token are 0 or more, the bytes per second above 0.")
        to_ticks(self.latency_s, "latency_s")


def simulate_disaggregated(
    requests: Iterable[Request],
    prefill: EnginePool,
    decode: EnginePool,
    link: Link,
    first_from: FirstFrom = "prefill",
    options: Options | None = None,
) -> Simulation:
    """Run a workload. Ranks count the prefill engines first; each request's `handover` tells its way.

    The decode engine is chosen when the prompt is done.

    Raises:
        BadInput: a workload that cannot run on both sides, or rules other than vLLM's.
    """
    asked = tuple(requests)
    for pool in (prefill, decode):
        if not isinstance(pool.rules, SchedulerRules):
            raise BadInput(f"{type(pool.rules).__name__} cannot hand KV over: give SchedulerRules to both pools.")
    check_workload(asked, decode.rules)
    check_workload([_prompt_only(request) for request in asked], prefill.rules)
    run = _Disaggregated(Arrivals(asked), (prefill, decode), link, first_from, Journal(options or Options()))
    run.events.run(run.arrive)
    run.check()
    return run.journal.result(asked, run.journal.end_of_run)


@dataclass(slots=True, eq=False, kw_only=True)
class _Transfer:
    """A request between its two engines; times are ticks."""

    source: PooledEngine
    sent: LiveRequest
    target: PooledEngine
    prefilled: int
    began: int = 0
    end: int = 0
    num_bytes: float = 0.0

    def told(self) -> Handover:
        """For the result."""
        return Handover(
            prefill_rank=self.source.rank,
            decode_rank=self.target.rank,
            wait_s=to_seconds(self.began - self.prefilled),
            transfer_s=to_seconds(self.end - self.began),
            num_bytes=self.num_bytes,
        )


class _Disaggregated:
    """Both pools and the link."""

    def __init__(
        self,
        arrivals: Arrivals,
        pools: tuple[EnginePool, EnginePool],
        link: Link,
        first_from: FirstFrom,
        journal: Journal,
    ) -> None:
        self.link = link
        self.first_from = first_from
        self.journal = journal
        self.events = Events(arrivals)
        self.prefill = start_engines(pools[0], journal, self.events, self)
        self.decode = start_engines(pools[1], journal, self.events, self, first_rank=len(self.prefill))
        for engine in self.prefill:
            _scheduler(engine).remote.is_sender = True
        self.longest = min(pool.rules.max_model_len for pool in pools)
        self.to_prefill, self.to_decode = (pool.router.start(pool.num_engines) for pool in pools)
        self.asked: dict[str, Request] = {}
        self.transfers: dict[LiveRequest, _Transfer] = {}  # by the request on the decode side
        self.lanes: dict[int, int] = {}  # when each is free again

    def arrive(self, request: Request, now: int) -> None:
        """To a prefill engine, which is asked for one token."""
        engine = choose(self.to_prefill, self.prefill, request, now)
        self.asked[request.request_id] = request
        live = engine.policy.add(_prompt_only(request))
        self.journal.arrive(live, now, engine.rank)
        engine.wake(now)

    def ended(self, engine: PooledEngine, live: LiveRequest, now: int) -> None:
        """A prompt is done, or a request."""
        transfer = self.transfers.pop(live, None)
        if transfer is None and engine in self.prefill:
            self._hand_over(engine, live, now)
            return
        self._end(live, now, None if transfer is None else transfer.told())

    def fetches(self, engine: PooledEngine, live: LiveRequest, now: int) -> None:
        """There is room for a request's KV: send it, as soon as its lane is free."""
        transfer = self.transfers[live]
        sent = len(live.table) * _scheduler(engine).rules.block_size - live.prefix_hit_tokens
        transfer.num_bytes = sent * self.link.kv_bytes_per_token
        lane = {"free": None, "per_sender": transfer.source.rank, "one": 0}[self.link.lanes]
        transfer.began = now if lane is None else max(now, self.lanes.get(lane, 0))
        transfer.end = transfer.began + to_ticks(self.link.latency_s + transfer.num_bytes / self.link.bytes_per_s)
        if lane is not None:
            self.lanes[lane] = transfer.end
        self.events.push(transfer.end, COMES, lambda time: self._arrived(live, time))

    def check(self) -> None:
        """Nothing is left on the way, and all blocks are free.

        Raises:
            InvariantBroken: something is.
        """
        for engine in (*self.prefill, *self.decode):
            scheduler = _scheduler(engine)
            scheduler.check()
            waiting = scheduler.num_waiting + scheduler.num_running
            if waiting or scheduler.cache.num_free != scheduler.cache.num_blocks - 1:
                raise InvariantBroken(f"engine {engine.rank} has {waiting} requests and used blocks at the end")

    def _hand_over(self, engine: PooledEngine, live: LiveRequest, now: int) -> None:
        request = self.asked.pop(live.request.request_id)
        is_done = request.output_len == 1 or request.prompt_len + 1 >= self.longest
        if self.first_from == "prefill" and is_done:
            _scheduler(engine).send(live)
            self._end(live, now, None)
            return
        target = choose(self.to_decode, self.decode, request, now)
        arriving = _scheduler(target).add_remote(request, num_outputs=1 if self.first_from == "prefill" else 0)
        arriving.first_hit_tokens = live.first_hit_tokens
        arriving.num_preemptions = live.num_preemptions
        self.journal.move(live, arriving, target.rank, is_first_kept=self.first_from == "prefill")
        self.transfers[arriving] = _Transfer(source=engine, sent=live, target=target, prefilled=now)
        target.wake(now)

    def _arrived(self, live: LiveRequest, now: int) -> None:
        transfer = self.transfers[live]
        _scheduler(transfer.source).send(transfer.sent)
        transfer.source.wake(now)
        _scheduler(transfer.target).receive(live)
        transfer.target.wake(now)

    def _end(self, live: LiveRequest, now: int, handover: Handover | None) -> None:
        self.journal.end(live, now, handover)
        self.events.arrivals.release(live.request.request_id, now)


def _prompt_only(request: Request) -> Request:
    return replace(request, output_len=1, max_tokens=1)


def _scheduler(engine: PooledEngine) -> Scheduler:
    assert isinstance(engine.policy, Scheduler)
    return engine.policy

"""Seeded random runs for the event loop: requests without shared text, rules of both schedulers, any step times.

Lengths, waits and caches are such that about half of the runs meet no preemption. Times are small integers of ticks
often enough that a request comes just when a step ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.sarathi import SarathiRules
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.step_time import DecodeBins, DecodeGrid, PrefillBins, PrefillTicks, StepTime

LONGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation's arguments."""

    requests: tuple[Request, ...]
    rules: SchedulerRules | SarathiRules
    cost: StepTime
    host_s: float


def random_run(seed: int, *, order: str) -> Run:
    """The run of a seed; order: "vllm", "async" or "sarathi"."""
    rng = Random(seed)
    unit = rng.choice([1, 1000, TICKS_PER_S // 1000])  # ticks: ties are likely where it is 1
    requests = _requests(rng, unit)
    seats = rng.choice([1, 2, 4, 8, 30])
    budget = max(rng.choice([8, 16, 64, 1000]), seats if order != "sarathi" else 1)
    block_size = rng.choice([1, 4, 16])
    most = max(-(-(each.num_tokens + 1) // block_size) for each in requests)
    num_blocks = 2 + int(most * rng.choice([1.2, 3, 10, 40]))
    rules: SchedulerRules | SarathiRules
    if order == "sarathi":
        rules = SarathiRules(
            chunk_size=budget,
            batch_size_cap=seats,
            num_blocks=num_blocks,
            max_model_len=2 * LONGEST,
            block_size=block_size,
            watermark_blocks_fraction=rng.choice([0.0, 0.05]),
        )
    else:
        rules = SchedulerRules(
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            max_model_len=rng.choice([2 * LONGEST, max(each.prompt_len for each in requests) + rng.randint(1, 9)]),
            num_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=rng.random() < 0.5,
            watermark=rng.choice([0.0, 0.05]),
            scheduler_reserve_full_isl=rng.random() < 0.7,
            async_scheduling=order == "async",
        )
    host = rng.choice([0, 0, 1, 7, 30]) * unit
    return Run(requests=requests, rules=rules, cost=_cost(rng, unit, budget + seats), host_s=host / TICKS_PER_S)


def _requests(rng: Random, unit: int) -> tuple[Request, ...]:
    count, spread = rng.randint(1, 40), rng.choice([0, 3, 50, 600])
    longest, most = rng.choice([5, 60, LONGEST // 2]), rng.choice([1, 6, 80, LONGEST // 2])
    is_stopped, has_followers = rng.random() < 0.3, rng.random() < 0.4
    now, made = 0, list[Request]()
    for place in range(count):
        now += rng.randint(0, spread) * unit
        prompt, output = rng.randint(1, longest), rng.randint(1, most)
        leader = rng.choice(made).request_id if has_followers and made and rng.random() < 0.6 else None
        wait = rng.choice([0, rng.randint(0, spread) * unit]) if leader else now
        own = (Segment(source=place, length=prompt + output + 50),) if rng.random() < 0.2 else ()
        made.append(
            Request(
                request_id=f"r{place}",
                arrival_s=wait / TICKS_PER_S,
                prompt_len=prompt,
                output_len=output,
                max_tokens=output + rng.choice([0, 1, 30]) if is_stopped else None,
                text=own,
                after=leader,
            )
        )
    rng.shuffle(made)
    return tuple(made)


def _cost(rng: Random, unit: int, most_tokens: int) -> StepTime:
    by_tokens = tuple(unit * (rng.choice([0, 3, 20]) + tokens // 8) for tokens in range(most_tokens + 1))
    decode: DecodeGrid | DecodeBins | None = rng.choice([None, _grid(rng, unit), _bins(rng, unit)])
    prefill: PrefillTicks | PrefillBins = PrefillTicks(
        step=rng.randint(0, 5) * unit,
        row=rng.randint(0, 2) * unit,
        query=rng.randint(0, 3),
        kv=rng.randint(0, 3),
        query_kv=rng.randint(0, 2),
    )
    if rng.random() < 0.4:
        sides = range(most_tokens + 1)
        prefill = PrefillBins(
            bin_len=32, ticks=tuple(tuple((side * side // 9 + c) * unit for side in sides) for c in range(40))
        )
    return StepTime(by_tokens=by_tokens, decode=decode, prefill=prefill)


def _grid(rng: Random, unit: int) -> DecodeGrid:
    rows = (1, 4, 32)
    kv_lens = (rng.choice([0, 1]), 20, 50, 300)
    return DecodeGrid(
        rows=rows,
        kv_lens=kv_lens,
        ticks=tuple(tuple(unit * (5 + i + rng.randint(0, 30)) for _ in kv_lens) for i, _ in enumerate(rows)),
    )


def _bins(rng: Random, unit: int) -> DecodeBins:
    num_bins = 2 * LONGEST // 32 + 2
    return DecodeBins(
        bin_len=32, ticks=tuple(tuple(unit * rng.randint(1, 40) for _ in range(num_bins)) for _ in range(30))
    )

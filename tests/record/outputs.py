"""A small scheduler for tests: what vLLM's SchedulerOutput looks like, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class New:
    req_id: str
    prompt_token_ids: list[int]
    num_computed_tokens: int
    prefill_token_ids: list[int] | None = None


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)


@dataclass
class Output:
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_new_reqs: list[New] = field(default_factory=list)
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] | None = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass
class Job:
    """A request in the test's scheduler."""

    name: str
    prompt: int
    hit: int
    output: int
    computed: int = 0
    n_out: int = 0
    is_new: bool = True


def run(jobs: list[Job], budget: int) -> list[Output]:
    """Schedule all jobs from the start, running ones first, until none is left."""
    steps: list[Output] = []
    gone: set[str] = set()
    waiting = list(jobs)
    running: list[Job] = []
    while waiting or running:
        step, left = Output(finished_req_ids=gone), budget
        gone = set()
        while waiting and len(running) < len(jobs):
            running.append(waiting.pop(0))
        for job in running:
            start = job.hit if job.is_new else job.computed
            tokens = min(max(job.prompt + job.n_out - start, 1), left)
            if tokens <= 0:
                continue
            left -= tokens
            step.num_scheduled_tokens[job.name] = tokens
            if job.is_new:
                step.scheduled_new_reqs.append(New(job.name, [0] * job.prompt, job.hit))
            else:
                cached = step.scheduled_cached_reqs
                cached.req_ids.append(job.name)
                cached.num_computed_tokens.append(job.computed)
                cached.num_output_tokens.append(job.n_out)
            job.computed, job.is_new = start + tokens, False
            if job.computed >= job.prompt + job.n_out:
                job.n_out += 1
        gone = {job.name for job in running if job.n_out > job.output}
        running = [job for job in running if job.n_out <= job.output]
        steps.append(step)
    return steps

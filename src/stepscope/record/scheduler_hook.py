"""The scheduler's side: every schedule() call of an engine core -> a stamped output and a step record.

Patched on `vllm.v1.core.sched.scheduler.Scheduler` and on subclasses with a schedule() of their own. The stamp is an
attribute of the SchedulerOutput: it travels with it to the workers, so that a marker and a log row of one step have the
same number whatever the executor, however many steps are in flight.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from .channel import Channel
from .guard import Guard
from .ranks import header_of
from .rows import RowTracker, rows_of

if TYPE_CHECKING:
    from types import ModuleType

    from .settings import Settings

STAMP = "stepscope_step_id"
_RECORDER = "_stepscope_recorder"
_WRAPPED = "_stepscope_wrapped"


class SchedulerRecorder:
    """One scheduler's numbers over time."""

    def __init__(self, scheduler: Any, settings: Settings, engine_version: str) -> None:
        self._guard = Guard()
        self._channel: Channel | None = None
        self._tracker = RowTracker(is_hashing=settings.is_hashing)
        self._num_steps = 0
        self._begin_ns = self._tick_ns = time.monotonic_ns()
        self._counts = (0, 0)  # running, waiting
        self._running_ns = self._waiting_ns = 0
        if settings.folder is not None:
            header = header_of("scheduler", engine_version, scheduler.vllm_config)
            self._channel = Channel.from_settings(settings, header)

    def tick(self, scheduler: Any) -> None:
        """The counts hold from the last tick to this one."""
        now = time.monotonic_ns()
        running, waiting = self._counts
        self._running_ns += running * (now - self._tick_ns)
        self._waiting_ns += waiting * (now - self._tick_ns)
        self._tick_ns = now
        self._counts = scheduler.get_request_counts()

    def after_schedule(self, scheduler: Any, output: Any, schedule_ns: int, num_waiting_before: int) -> None:
        """Stamp the output and log the step."""
        if self._guard.is_off:
            return
        with self._guard("stamping a step"):
            step_id = self._num_steps
            self._num_steps += 1
            setattr(output, STAMP, step_id)
        if self._channel is None:
            return
        with self._guard("logging a step"):
            time_ns = time.time_ns()
            self.tick(scheduler)
            step = self._tracker.observe(output, _external_hits(scheduler, output))
            running, waiting = self._counts
            cache = scheduler.kv_cache_manager
            record: dict[str, Any] = {
                "kind": "step",
                "step_id": step_id,
                "time_ns": time_ns,
                "schedule_ns": schedule_ns,
                "num_scheduled_tokens": step.num_scheduled_tokens,
                "num_requests": step.num_requests,
                "num_running": running,
                "num_waiting": waiting,
                "num_waiting_before": num_waiting_before,
                "waiting_request_ns": self._waiting_ns,
                "running_request_ns": self._running_ns,
                "stream_ns": self._tick_ns - self._begin_ns,
                "kv_usage_fraction": round(cache.usage, 6),
                "num_free_blocks": _free_blocks(cache),
                "preempted": [self._tracker.public_id(r) for r in output.preempted_req_ids or ()],
                "finished": step.finished,
                **rows_of(step),
            }
            self._channel.offer(record)

    def after_change(self, scheduler: Any) -> None:
        """Requests came, ended or were aborted: the counts have changed."""
        if self._channel is not None and not self._guard.is_off:
            with self._guard("counting requests"):
                self.tick(scheduler)

    def log_request(self, event: str, request: Any) -> None:
        """Log that a request was added or has finished."""
        if self._channel is None or self._guard.is_off:
            return
        with self._guard("logging a request"):
            reason = request.get_finished_reason() if event == "finished" else None
            self._channel.offer(
                {
                    "kind": "request",
                    "event": event,
                    "request_id": self._tracker.public_id(request.request_id),
                    "time_ns": time.time_ns(),
                    "arrival_ns": round(request.arrival_time * 1e9),
                    "prompt_len": request.num_prompt_tokens,
                    "num_output_tokens": request.num_output_tokens,
                    "num_preemptions": request.num_preemptions,
                    "finish_reason": None if reason is None else str(reason),
                }
            )

    def count_waiting(self, scheduler: Any) -> int:
        """Waiting requests now, deferred ones included."""
        with self._guard("counting requests"):
            return int(scheduler.get_request_counts()[1])
        return 0


def _external_hits(scheduler: Any, output: Any) -> dict[str, int] | None:
    hits = {}
    for data in output.scheduled_new_reqs:
        request = scheduler.requests.get(data.req_id)
        hit = getattr(request, "num_external_computed_tokens", None)
        if isinstance(hit, int):
            hits[data.req_id] = hit
    return hits or None


def _free_blocks(cache: Any) -> int | None:
    pool = getattr(cache, "block_pool", None)
    return None if pool is None else int(pool.get_num_free_blocks())


def patch_scheduler(module: ModuleType, settings: Settings, engine_version: str) -> None:
    """Patch the module's Scheduler."""
    cls: Any = module.Scheduler
    if getattr(cls, _WRAPPED, False):
        return
    setattr(cls, _WRAPPED, True)
    _wrap_init(cls, settings, engine_version)
    _wrap_schedule(cls)
    _wrap_requests(cls)


def recorder_of(scheduler: Any) -> SchedulerRecorder | None:
    """The recorder of a scheduler, if it has one."""
    found: SchedulerRecorder | None = scheduler.__dict__.get(_RECORDER)
    return found


def _wrap_init(cls: Any, settings: Settings, engine_version: str) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with Guard()("starting the scheduler's log"):
            own = type(self)
            if not getattr(own.schedule, _WRAPPED, False):
                _wrap_schedule(own)
            setattr(self, _RECORDER, SchedulerRecorder(self, settings, engine_version))

    cls.__init__ = init


def _wrap_schedule(cls: Any) -> None:
    original = cls.schedule

    @functools.wraps(original)
    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = recorder_of(self)
        if recorder is None or self.__dict__.get(_WRAPPED):  # the inner one of a subclass's call to super()
            return original(self, *args, **kwargs)
        self.__dict__[_WRAPPED] = True
        before = recorder.count_waiting(self)
        start = time.perf_counter_ns()
        try:
            output = original(self, *args, **kwargs)
        finally:
            self.__dict__[_WRAPPED] = False
        recorder.after_schedule(self, output, time.perf_counter_ns() - start, before)
        return output

    setattr(schedule, _WRAPPED, True)
    cls.schedule = schedule


def _wrap_requests(cls: Any) -> None:
    for name in ("add_request", "finish_requests", "update_from_output"):
        if hasattr(cls, name):
            setattr(cls, name, _followed(getattr(cls, name), is_adding=name == "add_request"))
    if hasattr(cls, "_free_request"):
        free: Any = cls._free_request  # the one place where every request ends

        @functools.wraps(free)
        def free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = recorder_of(self)
            if recorder is not None:
                recorder.log_request("finished", request)
            return free(self, request, *args, **kwargs)

        cls._free_request = free_request


def _followed(original: Any, *, is_adding: bool) -> Any:
    @functools.wraps(original)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        recorder = recorder_of(self)
        if recorder is not None:
            recorder.after_change(self)
            if is_adding:
                recorder.log_request("added", args[0] if args else kwargs["request"])
        return result

    return followed

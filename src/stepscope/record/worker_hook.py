"""A worker's side: every execute_model call -> a marker in the profiler's trace, a forward record, expert counts.

Patched on `vllm.v1.worker.gpu_worker.Worker.annotate_profile` (CPU and XPU workers inherit it): it has one signature in
all tried versions, does not see dummy runs, and runs after the profiler's own step, where a delayed profile starts.
vllm-ascend's NPUWorker steps its profiler inside execute_model and has no such method; there its model runner's
execute_model is wrapped, which is called right after.
"""

from __future__ import annotations

import functools
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .channel import Channel
from .experts import ExpertCounter
from .guard import Guard
from .ranks import header_of
from .rows import RowTracker, Step, render_marker, rows_of
from .scheduler_hook import STAMP

if TYPE_CHECKING:
    from types import ModuleType

    from .settings import Settings

_RECORDER = "_stepscope_recorder"
_WRAPPED = "_stepscope_wrapped"


class WorkerRecorder:
    """One worker's markers and log."""

    def __init__(self, worker: Any, settings: Settings, engine_version: str) -> None:
        self.guard = Guard()
        self.channel: Channel | None = None
        self.experts: ExpertCounter | None = None
        self._tracker = RowTracker(is_hashing=settings.is_hashing)
        self._num_steps = 0
        if settings.folder is not None:
            header = header_of("worker", engine_version, worker.vllm_config, rank=worker.rank)
            self.channel = Channel.from_settings(settings, header)
            if settings.expert_interval > 0:
                self.experts = ExpertCounter(worker, settings.expert_interval, self.guard)

    def scope(self, worker: Any, output: Any, outer: Any) -> Any:
        """The engine's own context for a step, with ours inside it."""
        if self.guard.is_off:
            return outer
        with self.guard("marking a step"):
            own_id = self._num_steps
            self._num_steps += 1
            stamp = getattr(output, STAMP, None)
            step = self._tracker.observe(output)
            marker = self._marker(worker.profiler, stamp if stamp is not None else own_id, step)
            return _Scope(self, outer, marker, _Forward(own_id, stamp, step, marker is not None))
        return outer

    def _marker(self, profiler: Any, step_id: int, step: Step) -> Any:
        if profiler is None:
            return None
        is_recording = getattr(profiler, "should_annotate", None)
        if not (getattr(profiler, "_running", False) if is_recording is None else is_recording):
            return None
        name = render_marker(step_id, step)
        return None if name is None else _range(profiler, name)

    def begin(self, forward: _Forward) -> None:
        """The worker starts to execute a step."""
        if self.experts is not None:
            self.experts.begin(forward.step_id, forward.step.num_scheduled_tokens)

    def end(self, forward: _Forward, start_ns: int, host_ns: int) -> None:
        """The worker has launched a step's work."""
        if self.channel is None:
            return
        step = forward.step
        self.channel.offer(
            {
                "kind": "forward",
                "step_id": forward.step_id,
                "is_stamped": forward.stamp is not None,
                "time_ns": start_ns,
                "host_ns": host_ns,
                "num_scheduled_tokens": step.num_scheduled_tokens,
                "num_requests": step.num_requests,
                "is_profiled": forward.is_profiled,
            }
        )
        if forward.stamp is None:  # no scheduler of ours: this log is the only one that has the rows
            own = {"kind": "step", "step_id": forward.step_id, "time_ns": start_ns}
            self.channel.offer({**own, **_sizes(step), "finished": step.finished, **rows_of(step)})
        if self.experts is not None:
            for record in self.experts.end():
                self.channel.offer({**record, "is_stamped": forward.stamp is not None})


def _sizes(step: Step) -> dict[str, int]:
    return {"num_scheduled_tokens": step.num_scheduled_tokens, "num_requests": step.num_requests}


def _range(profiler: Any, name: str) -> Any:
    """A named range of the profiler in use: torch's, NVTX or proton."""
    context = getattr(profiler, "annotate_context_manager", None)
    if context is not None and type(profiler).__module__.startswith("vllm."):
        return context(name)
    return import_module("torch").profiler.record_function(name)


class _Forward:
    """One execute_model call."""

    __slots__ = ("is_profiled", "stamp", "step", "step_id")

    def __init__(self, own_id: int, stamp: int | None, step: Step, is_profiled: bool) -> None:  # noqa: FBT001
        self.step_id = own_id if stamp is None else stamp
        self.stamp = stamp
        self.step = step
        self.is_profiled = is_profiled


class _Scope:
    """Enters the engine's context, then ours; leaves them in the other order. Only the engine's can raise."""

    __slots__ = ("_forward", "_marker", "_outer", "_recorder", "_start", "_start_ns")

    def __init__(self, recorder: WorkerRecorder, outer: Any, marker: Any, forward: _Forward) -> None:
        self._recorder, self._outer, self._marker, self._forward = recorder, outer, marker, forward
        self._start = self._start_ns = 0

    def __enter__(self) -> Any:
        entered = self._outer.__enter__()
        with self._recorder.guard("starting a step's record"):
            marker, self._marker = self._marker, None
            self._start_ns, self._start = time.time_ns(), time.perf_counter_ns()
            self._recorder.begin(self._forward)
            if marker is not None:
                marker.__enter__()
                self._marker = marker
        return entered

    def __exit__(self, *error: object) -> Any:
        with self._recorder.guard("ending a step's record"):
            if self._marker is not None:
                self._marker.__exit__(None, None, None)
            if error[0] is None:
                self._recorder.end(self._forward, self._start_ns, time.perf_counter_ns() - self._start)
        return self._outer.__exit__(*error)


def _recorder(worker: Any, settings: Settings, engine_version: str) -> WorkerRecorder | None:
    if _RECORDER not in worker.__dict__:
        worker.__dict__[_RECORDER] = None
        with Guard()("starting a worker's record"):
            worker.__dict__[_RECORDER] = WorkerRecorder(worker, settings, engine_version)
    found: WorkerRecorder | None = worker.__dict__[_RECORDER]
    return found


def patch_worker(module: ModuleType, settings: Settings, engine_version: str) -> None:
    """Patch vLLM's Worker."""
    cls: Any = module.Worker
    if getattr(cls.annotate_profile, _WRAPPED, False):
        return
    original = cls.annotate_profile

    @functools.wraps(original)
    def annotate_profile(self: Any, scheduler_output: Any) -> Any:
        outer = original(self, scheduler_output)
        recorder = _recorder(self, settings, engine_version)
        return outer if recorder is None else recorder.scope(self, scheduler_output, outer)

    setattr(annotate_profile, _WRAPPED, True)
    cls.annotate_profile = annotate_profile
    _bind_before_capture(cls, settings, engine_version)


def patch_ascend_worker(module: ModuleType, settings: Settings, engine_version: str) -> None:
    """Patch vllm-ascend's NPUWorker: its model runner's execute_model, as called from the worker's."""
    cls: Any = module.NPUWorker
    if getattr(cls.execute_model, _WRAPPED, False):
        return
    original = cls.execute_model

    @functools.wraps(original)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder(self, settings, engine_version)
        if recorder is not None:
            with recorder.guard("finding the model runner"):
                _wrap_runner(self, recorder)
                self.__dict__[_WRAPPED] = scheduler_output  # dummy runs do not come this way
        try:
            return original(self, scheduler_output, *args, **kwargs)
        finally:
            self.__dict__[_WRAPPED] = None

    setattr(execute_model, _WRAPPED, True)
    cls.execute_model = execute_model
    _bind_before_capture(cls, settings, engine_version)


def _wrap_runner(worker: Any, recorder: WorkerRecorder) -> None:
    runner = worker.model_runner
    if _WRAPPED in runner.__dict__:
        return
    original = runner.execute_model

    @functools.wraps(original)
    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduler_output is not worker.__dict__.get(_WRAPPED):
            return original(scheduler_output, *args, **kwargs)
        worker.__dict__[_WRAPPED] = None
        with recorder.scope(worker, scheduler_output, _NoScope()):
            return original(scheduler_output, *args, **kwargs)

    runner.execute_model = execute_model
    runner.__dict__[_WRAPPED] = True


class _NoScope:
    """The engine has no context of its own here."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def _bind_before_capture(cls: Any, settings: Settings, engine_version: str) -> None:
    """Routers must have their callback before a graph of the model is captured."""
    if settings.expert_interval <= 0 or "compile_or_warm_up_model" not in cls.__dict__:
        return
    original = cls.compile_or_warm_up_model

    @functools.wraps(original)
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder(self, settings, engine_version)
        if recorder is not None and recorder.experts is not None:
            with recorder.guard("finding the routers"):
                recorder.experts.bind()
        return original(self, *args, **kwargs)

    cls.compile_or_warm_up_model = compile_or_warm_up_model

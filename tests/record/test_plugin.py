"""The plugin on an engine made of paper: what it patches, what it leaves alone, and that it never raises."""

from __future__ import annotations

import logging
import sys
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.record import vllm_plugin
from stepscope.record.guard import Guard
from stepscope.record.import_hook import patch_on_import
from stepscope.record.rows import RowTracker
from stepscope.record.scheduler_hook import STAMP, patch_scheduler
from stepscope.record.settings import Settings
from stepscope.record.worker_hook import patch_ascend_worker, patch_worker
from tests.record.outputs import New, Output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ON = Settings(is_on=True)


class Profiler:
    """A profiler that keeps the names of its ranges."""

    def __init__(self) -> None:
        self._running = True
        self.names: list[str] = []

    @contextmanager
    def annotate_context_manager(self, name: str) -> Iterator[None]:
        self.names.append(name)
        yield


Profiler.__module__ = "vllm.profiler.wrapper"


def worker_module() -> Any:
    module: Any = types.ModuleType("vllm.v1.worker.gpu_worker")

    class Worker:
        def __init__(self) -> None:
            self.profiler = Profiler()
            self.rank = 0
            self.vllm_config = types.SimpleNamespace()

        def annotate_profile(self, scheduler_output: Any) -> Any:
            return self.profiler.annotate_context_manager("execute_context")

        def execute_model(self, scheduler_output: Any) -> str:
            with self.annotate_profile(scheduler_output):
                return "done"

    module.Worker = Worker
    return module


def scheduler_module() -> Any:
    module: Any = types.ModuleType("vllm.v1.core.sched.scheduler")

    class Scheduler:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config = vllm_config

        def schedule(self) -> Output:
            return output()

        def add_request(self, request: Any) -> None: ...

        def finish_requests(self, request_ids: Any, finished_status: Any) -> None: ...

        def update_from_output(self, scheduler_output: Any) -> None: ...

        def _free_request(self, request: Any) -> None: ...

        def get_request_counts(self) -> tuple[int, int]:
            return 1, 2

    module.Scheduler = Scheduler
    return module


def output() -> Output:
    return Output(num_scheduled_tokens={"a": 10}, scheduled_new_reqs=[New("a", [0] * 10, 0)])


def test_a_profiled_step_has_the_engine_s_range_and_a_marker() -> None:
    module = worker_module()
    patch_worker(module, ON, "0.32.0")
    patch_worker(module, ON, "0.32.0")  # a second plugin of ours changes nothing
    worker = module.Worker()
    assert worker.execute_model(output()) == "done"
    assert worker.profiler.names == ["execute_context", "vllm_step v=1 s=0 n=10 r=a:10:10:0:c"]


def test_a_stamped_step_is_called_by_the_scheduler_s_number() -> None:
    module, schedulers = worker_module(), scheduler_module()
    patch_worker(module, ON, "0.32.0")
    patch_scheduler(schedulers, ON, "0.32.0")
    scheduler, worker = schedulers.Scheduler(None), module.Worker()
    scheduler.schedule()
    worker.execute_model(scheduler.schedule())
    assert worker.profiler.names[1].startswith("vllm_step v=1 s=1 ")


def test_a_subclass_with_its_own_schedule_is_stamped_once() -> None:
    schedulers = scheduler_module()
    patch_scheduler(schedulers, ON, "0.32.0")

    class Other(schedulers.Scheduler):  # type: ignore[name-defined, misc]
        def schedule(self) -> Any:
            return super().schedule()

    scheduler = Other(None)
    assert [getattr(scheduler.schedule(), STAMP) for _ in range(3)] == [0, 1, 2]


def test_no_profiler_no_marker() -> None:
    module = worker_module()
    patch_worker(module, ON, "0.32.0")
    worker = module.Worker()
    worker.profiler._running = False
    worker.execute_model(output())
    assert worker.profiler.names == ["execute_context"]


def test_an_error_of_ours_does_not_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise RuntimeError("ours")

    module, schedulers = worker_module(), scheduler_module()
    patch_worker(module, ON, "0.32.0")
    patch_scheduler(schedulers, ON, "0.32.0")
    monkeypatch.setattr(RowTracker, "observe", fail)
    worker = module.Worker()
    for _ in range(50):
        assert worker.execute_model(output()) == "done"
    assert schedulers.Scheduler(None).schedule() is not None


def test_an_error_of_the_engine_stays_its_own() -> None:
    module = worker_module()
    patch_worker(module, ON, "0.32.0")
    worker = module.Worker()
    with pytest.raises(KeyError, match="engine"), worker.annotate_profile(output()):
        raise KeyError("engine")


def test_ascend_marks_after_the_profiler_s_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    @contextmanager
    def record_function(name: str) -> Iterator[None]:
        calls.append(name)
        yield

    torch: Any = types.ModuleType("torch")
    torch.profiler = types.SimpleNamespace(record_function=record_function)
    monkeypatch.setitem(sys.modules, "torch", torch)
    module: Any = types.ModuleType("vllm_ascend.worker.worker")

    class Runner:
        def execute_model(self, scheduler_output: Any, tensors: Any, dummy_run: bool = False) -> str:
            calls.append("model")
            return "output"

    class NPUWorker:
        def __init__(self) -> None:
            self.model_runner, self.rank, self.vllm_config = Runner(), 0, types.SimpleNamespace()
            self.profiler = types.SimpleNamespace(_running=True)

        def execute_model(self, scheduler_output: Any) -> str:
            calls.append("profiler.step")
            return self.model_runner.execute_model(scheduler_output, None)

    module.NPUWorker = NPUWorker
    patch_ascend_worker(module, ON, "0.30.0")
    worker = NPUWorker()
    assert worker.execute_model(output()) == "output"
    assert worker.model_runner.execute_model(output(), None, dummy_run=True) == "output"
    assert calls == ["profiler.step", "vllm_step v=1 s=0 n=10 r=a:10:10:0:c", "model", "model"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType("vllm")
    module.__version__ = "0.32.0+cpu"
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(vllm_plugin, "_registered", [])
    monkeypatch.setattr(vllm_plugin, "_GUARD", Guard())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("STEPSCOPE_RECORD", "1")
    return module


def test_nothing_happens_unless_it_is_asked_for(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_RECORD", "0")
    before = list(sys.meta_path)
    vllm_plugin.register()
    assert sys.meta_path == before


def test_an_unknown_version_is_said_once_and_left_alone(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.__version__ = "0.47.1"
    before = list(sys.meta_path)
    with caplog.at_level(logging.WARNING):
        vllm_plugin.register()
        vllm_plugin.register()
    assert sys.meta_path == before
    assert len(caplog.records) == 1
    assert "0.47.1" in caplog.text
    monkeypatch.setenv("STEPSCOPE_RECORD", "force")
    vllm_plugin.register()
    assert sys.meta_path != before


def test_a_module_that_is_there_is_patched_at_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = worker_module()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vllm_plugin.register()
    worker = module.Worker()
    worker.execute_model(output())
    assert len(worker.profiler.names) == 2


def test_a_class_without_the_hook_is_left_alone(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    module: Any = types.ModuleType("vllm.v1.worker.gpu_worker")
    module.Worker = type("Worker", (), {})
    with caplog.at_level(logging.WARNING):
        vllm_plugin._patch(ON, "0.32.0", module.__name__, module)
    assert "Worker.annotate_profile" in caplog.text


def test_a_module_is_patched_right_after_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paper_engine.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[str] = []

    def patch(module: types.ModuleType) -> None:
        seen.append(module.__name__)
        module.VALUE += 1  # type: ignore[attr-defined]

    patch_on_import({"paper_engine": patch})
    import paper_engine  # type: ignore[import-not-found]  # noqa: PLC0415

    assert (paper_engine.VALUE, seen) == (2, ["paper_engine"])
    del sys.modules["paper_engine"]


def test_settings_that_cannot_be_read_have_their_defaults() -> None:
    settings = Settings.from_environment(
        {"STEPSCOPE_RECORD": "1", "STEPSCOPE_EXPERTS": "many", "STEPSCOPE_STEP_LOG": " "}
    )
    assert settings == Settings(is_on=True)

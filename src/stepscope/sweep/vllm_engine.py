"""Driver of a real vLLM engine: loaded once in a child process, a step log for rows and times, a profile for families.

The child runs `vllm_driver.py` with the engine's own interpreter, where the recorder is a plugin made of our package's
`record` folder. Steps of a cell are those of the log that began in its window and have its shape.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stepscope.record
from stepscope.calibrate.measured import steps_of_stream
from stepscope.errors import BadInput, TaskFailed
from stepscope.readers.step_log import read_step_log
from stepscope.sweep.conditions import hash_config
from stepscope.sweep.family_times import read_profile
from stepscope.sweep.figure import ASCEND_FIGURES, FAMILY_FIGURES, Measured, known, unknown
from stepscope.sweep.model import DEMO, load_model_config
from stepscope.sweep.model_driver import expert_figures, is_of_cell, rate_figures, sample_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.readers.step_log import StepLog, StepRecord, Stream
    from stepscope.sweep.figure import Figure
    from stepscope.sweep.plan import Cell, Plan

_LOG_WAIT_S = 20.0  # for the log's writer to come after the engine
_POLL_S = 0.05
_END_S = 10.0
_EXPERT_INTERVAL = 4  # steps: one of four is counted, so that the median of a window is of steps that are not
_NS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Where an engine is. `environment`: of its process; `folder`: for its logs, step logs and traces (None: aside)."""

    python: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    timeout_s: float = 1800.0


class VllmDriver:
    """The engine in a child process."""

    def __init__(self, plan: Plan, setup: EngineSetup) -> None:
        if setup.python is None:
            raise BadInput("engine vllm needs the interpreter that has vLLM: --engine-python VENV/bin/python.")
        self._plan, self._timeout_s = plan, setup.timeout_s
        self._aside = None if setup.folder else tempfile.TemporaryDirectory(prefix="stepscope-sweep-")
        root = setup.folder or Path(self._aside.name if self._aside else ".")
        starts = root / "engine"
        starts.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=starts, prefix="start-")).absolute()
        self._log = self._folder / "steps"
        model, self._config_hash = self._lay_model()
        environment = setup.environment | _environment(self._folder, self._log)
        self._words = (self._folder / "engine.log").open("wb")
        try:
            self._child = _Child(setup.python, _lay_program(self._folder), environment, self._words.fileno())
            self._ask({"model": model, "engine": self._arguments()})
        except BaseException:
            self.close()
            raise

    def _lay_model(self) -> tuple[str, str | None]:
        """Where the engine finds the model; a bare config.json gets a folder of its own."""
        path = Path(self._plan.model).expanduser()
        try:
            raw, _ = load_model_config(self._plan.model)
        except BadInput:
            return self._plan.model, None  # a name that the engine may know
        if self._plan.model != DEMO and path.is_dir():
            return str(path.absolute()), hash_config(raw)
        folder = self._folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        return str(folder), hash_config(raw)

    def _arguments(self) -> dict[str, Any]:
        plan, held = self._plan, self._plan.held
        arguments: dict[str, Any] = {
            "load_format": held.load_format,
            "skip_tokenizer_init": True,
            "seed": 0,
            "enforce_eager": held.enforce_eager,
            "enable_prefix_caching": False,
            "max_num_batched_tokens": max(plan.max_num_batched_tokens, plan.max_num_seqs),
            "max_num_seqs": plan.max_num_seqs,
            "max_model_len": plan.max_model_len,
            "tensor_parallel_size": held.tp,
            "enable_expert_parallel": held.ep > 1,
            "disable_log_stats": True,
        }
        if plan.window.profiled_steps:
            arguments["profiler_config"] = {
                "profiler": "torch",
                "torch_profiler_dir": str(self._folder / "traces"),
                "torch_profiler_with_stack": False,
            }
        return arguments | held.engine_args

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = self._child.ask(question, self._timeout_s, self._folder / "engine.log")
        if "error" in answer:
            raise TaskFailed(f"the engine: {answer['error']}")
        return answer

    def conditions(self) -> dict[str, Any]:
        """As the engine's own configuration says."""
        told = self._ask({"do": "conditions"})
        return {"checkpoint": self._plan.model, "checkpoint_hash": self._config_hash} | told

    def measure(self, cell: Cell) -> Measured:
        """Run the cell, then read its steps from the log and its families from the profile."""
        plan, w = self._plan, self._plan.window
        asked: dict[str, Any] = {"do": cell.kind, "warmup": w.warmup_steps, "profiled": w.profiled_steps}
        if cell.kind == "prefill":
            asked |= {"tokens": cell.tokens, "repeats": w.prefill_repeats}
        else:
            asked |= {"batch": cell.batch, "context_len": cell.context_len, "steps": w.decode_steps}
            asked |= {"output_len": plan.output_len(cell)}
        answer = self._ask(asked)
        calls = [(int(begin), int(end), float(busy)) for begin, end, busy in answer["calls"]]
        log = self._read_log(calls[-1][1])
        return measured_of_log(plan, cell, log, calls, [Path(path) for path in answer["traces"]])

    def _read_log(self, until_ns: int) -> StepLog:
        """The log once it holds a step that began after the window, or all that comes in a while."""
        deadline = time.monotonic() + _LOG_WAIT_S
        while True:
            try:
                log = read_step_log(self._log)
            except BadInput:
                log = None
            last = max((s.steps[-1].time_ns for s in log.schedulers if s.steps), default=0) if log else 0
            if log is not None and last >= until_ns:
                return log
            if time.monotonic() > deadline:
                if log is None:
                    raise BadInput(
                        f"{self._log}: no step log. Is this version of vLLM known to the recorder? See {self._folder}."
                    )
                return log
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the child."""
        child = getattr(self, "_child", None)
        if child is not None:
            child.close()
        self._words.close()
        if self._aside is not None:
            self._aside.cleanup()


def _lay_program(folder: Path) -> Path:
    """The driver's program in a folder of its own: Python imports from beside a program first, and ours are there."""
    place = folder / "program"
    place.mkdir()
    return Path(shutil.copy(Path(__file__).with_name("vllm_driver.py"), place))


def _environment(folder: Path, log: Path) -> dict[str, str]:
    """The recorder as an installed plugin, and an engine that stays in one process and calls nobody."""
    plugins = folder / "plugins"
    info = plugins / "stepscope_record-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stepscope_record\nVersion: 0\n")
    entry = "[vllm.general_plugins]\nstepscope_record = stepscope_record.vllm_plugin:register\n"
    (info / "entry_points.txt").write_text(entry)
    (plugins / "stepscope_record").symlink_to(Path(stepscope.record.__file__).parent.absolute())
    return {
        "PYTHONPATH": str(plugins),
        "STEPSCOPE_RECORD": "1",
        "STEPSCOPE_STEP_LOG": str(log),
        "STEPSCOPE_EXPERTS": str(_EXPERT_INTERVAL),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the thread that is timed is the engine's
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


class _Child:
    """A process that answers lines of JSON with lines of JSON."""

    def __init__(self, python: Path, script: Path, environment: dict[str, str], errors: int) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603  # the interpreter that the user names
                [str(python.expanduser().absolute()), str(script)],  # not resolved: a venv is known by its link
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=sys.platform != "win32",  # a terminal's Ctrl-C is ours alone
            )
        except OSError as error:
            raise BadInput(f"--engine-python {python}: cannot be started ({error.strerror}).") from error
        self._rest = b""

    def ask(self, question: dict[str, Any], timeout_s: float, log: Path) -> dict[str, Any]:
        """Its answer.

        Raises:
            TaskFailed: it ended, or took too long.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is noticed below
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        while b"\n" not in self._rest:
            block = self._read(timeout_s, log)
            if not block:
                code = self._process.wait()
                raise TaskFailed(f"the engine's process ended (exit code {code}). Its words are in {log}.")
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self, timeout_s: float, log: Path) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TaskFailed(f"the engine gave no answer in {timeout_s:g} s. Its words are in {log}.")
        return self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        """By the end of its input, then by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def measured_of_log(
    plan: Plan, cell: Cell, log: StepLog, calls: Sequence[tuple[int, int, float]], traces: Sequence[Path]
) -> Measured:
    """A cell's figures from the step log, the engine's calls of its window, and the profile behind it."""
    stream = log.schedulers[0]
    begin, end = calls[0][0], calls[-1][1]
    steps = {s.step_id: s for s in stream.steps if begin <= _begin_ns(s) < end and s.num_scheduled_tokens}
    of_cell = {number: s for number, s in steps.items() if is_of_cell(cell, s.shape)}
    samples = tuple(_wall(stream, of_cell) if plan.window.clock == "wall" else _busy(calls, of_cell.values()))
    problems = list(_problems(plan, cell, stream, steps, of_cell))
    if not samples:
        return Measured(figures={}, problems=(*problems, "no step of the cell has a known time"))
    figures: dict[str, Figure] = dict(sample_figures(samples, "recorded"))
    figures |= rate_figures(cell, known(figures["step_s"].value or 0.0, "derived"))
    figures["dense_m"] = known(cell.tokens, "recorded")
    rows = _rows_per_expert(log, set(of_cell))
    figures |= expert_figures(rows, "recorded", "no expert counts: the model has none, or its steps were not counted")
    figures |= read_profile(traces, cell, asked=bool(plan.window.profiled_steps))
    figures |= {name: unknown("only an Ascend profile has pipe ratios") for name in ASCEND_FIGURES}
    assert set(FAMILY_FIGURES) <= set(figures)
    contexts = [s.shape.decode.kv_sum / cell.batch for s in of_cell.values() if s.shape.decode.kv_sum]
    details = {"steps": len(samples), "mean_kv_len": sum(contexts) / len(contexts) if contexts else None}
    return Measured(figures=figures, samples=samples, rows_per_expert=rows, problems=tuple(problems), details=details)


def _begin_ns(step: StepRecord) -> int:
    return step.time_ns - (step.schedule_ns or 0)


def _wall(stream: Stream, wanted: dict[int, StepRecord]) -> Iterator[float]:
    """Seconds from one schedule() to the next, of the wanted steps."""
    ran = [step for step in stream.steps if step.num_scheduled_tokens]
    for step, measured in zip(ran, steps_of_stream(stream), strict=True):
        if step.step_id in wanted and measured.seconds is not None:
            yield measured.seconds


def _busy(calls: Sequence[tuple[int, int, float]], wanted: Iterable[StepRecord]) -> Iterator[float]:
    """CPU seconds of the call in which each wanted step was scheduled."""
    begins = [_begin_ns(step) for step in wanted]
    for begin, end, busy in calls:
        if any(begin <= at < end for at in begins):
            yield busy


def _problems(
    plan: Plan, cell: Cell, stream: Stream, steps: dict[int, StepRecord], of_cell: dict[int, StepRecord]
) -> Iterator[str]:
    if not stream.is_whole:
        yield f"{stream.num_dropped + stream.num_unexplained} records of the step log are missing"
    expected = plan.window.prefill_repeats if cell.kind == "prefill" else plan.window.decode_steps
    others = len(steps) - len(of_cell) - (expected if cell.kind == "prefill" else 0)  # a decode step behind each prompt
    if len(of_cell) < expected or others > 0:
        yield f"{len(of_cell)} steps of the window have the cell's shape, {expected} were expected"
    hits = sum(row.prefix_hit_tokens or 0 for step in of_cell.values() for row in step.rows)
    if hits:
        yield f"{hits} prompt tokens came from the prefix cache, 0 were expected"
    if any(step.preempted for step in steps.values()):
        yield "requests were preempted in the window: the KV cache is too small for the cell"


def _rows_per_expert(log: StepLog, step_ids: set[int]) -> tuple[int, ...]:
    """M_e of the first layer in the last counted step of the window, of rank 0."""
    for worker in log.workers:
        if worker.number("rank") not in (0, None):
            continue
        counted = [record for record in worker.experts if record.step_id in step_ids]
        if counted:
            return tuple(int(count) for count in counted[-1].counts[0])
    return ()

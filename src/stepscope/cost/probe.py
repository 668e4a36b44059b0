"""Measures this machine: effective flop_per_s and bytes_per_s -> a hardware file whose figures carry intervals.

GEMM over several m for a model's k, n and dtype, copy, attention (one query per row against its history), grouped
GEMM (one expert after another). With torch where it is installed, on its device; else with numpy, on the CPU in fp32.
A rate is the median of repeats after a warm-up; low and high are the 5th and 95th percentile of the repeats.
flop_per_s is that of the best m (GEMM), bytes_per_s counts a copy's read and write.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, Protocol

import numpy as np

from stepscope.errors import BadInput

Kernel = Literal["gemm", "copy", "attention", "grouped_gemm"]
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What is measured. `seconds_each`: spent on one kernel at most."""

    k: int = 4096
    n: int = 4096
    m: tuple[int, ...] = (1, 16, 128, 1024)
    dtype: str = "bf16"
    num_experts: int = 8
    copy_bytes: int = 256 * 1024 * 1024
    seconds_each: float = 1.0
    device: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kernel at one size, and the work of one run."""

    kernel: Kernel
    label: str
    flop: int
    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A task and the seconds of its repeats."""

    task: Task
    repeats: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median repeat."""
        return float(np.median(self.repeats))

    def rate(self, amount: int) -> tuple[float, float, float]:
        """(median, 5th, 95th percentile) of amount per second."""
        low, high = np.quantile(self.repeats, (0.05, 0.95))
        return amount / self.seconds, amount / float(high), amount / float(low)


class Backend(Protocol):
    """What a probe needs of a library."""

    name: str
    device: str
    dtype: str
    element_bytes: int

    def zeros(self, *shape: int) -> Any: ...  # noqa: D102
    def gemm(self, a: Any, b: Any) -> Callable[[], object]: ...  # noqa: D102
    def copy(self, source: Any, target: Any) -> Callable[[], object]: ...  # noqa: D102
    def attention(self, q: Any, k: Any, v: Any) -> Callable[[], object]: ...  # noqa: D102
    def wait(self) -> None: ...  # noqa: D102


class NumpyBackend:
    """The CPU through numpy's BLAS, fp32."""

    name, device, dtype, element_bytes = "numpy", "cpu", "fp32", 4

    def zeros(self, *shape: int) -> Any:
        """Filled, so that pages are there."""
        return np.full(shape, 0.01, dtype=np.float32)

    def gemm(self, a: Any, b: Any) -> Callable[[], object]:
        """[m, k] x [k, n]."""
        return lambda: a @ b

    def copy(self, source: Any, target: Any) -> Callable[[], object]:
        """Source into target."""
        return lambda: np.copyto(target, source)

    def attention(self, q: Any, k: Any, v: Any) -> Callable[[], object]:
        """Softmax attention over [heads, tokens, head_dim]."""

        def run() -> object:
            scores = q @ k.transpose(0, 2, 1)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return (weights / weights.sum(axis=-1, keepdims=True)) @ v

        return run

    def wait(self) -> None:
        """Numpy has finished when it returns."""


class TorchBackend:
    """Torch on its GPU or on the CPU."""

    name = "torch"

    def __init__(self, dtype: str, device: str) -> None:
        torch = importlib.import_module("torch")  # optional, and slow to load
        if dtype not in DTYPES:
            raise BadInput(f"the probe cannot measure dtype '{dtype}'. Known: {', '.join(DTYPES)}.")
        self._torch = torch
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self.dtype = dtype
        self._dtype = getattr(torch, DTYPES[dtype])
        self.element_bytes = int(torch.empty(0, dtype=self._dtype).element_size())

    def zeros(self, *shape: int) -> Any:
        """Filled, so that pages are there."""
        return self._torch.full(shape, 0.01, dtype=self._dtype, device=self.device)

    def gemm(self, a: Any, b: Any) -> Callable[[], object]:
        """[m, k] x [k, n]."""
        return lambda: a @ b

    def copy(self, source: Any, target: Any) -> Callable[[], object]:
        """Source into target."""
        return lambda: target.copy_(source)

    def attention(self, q: Any, k: Any, v: Any) -> Callable[[], object]:
        """Torch's own kernel."""
        return lambda: self._torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def wait(self) -> None:
        """Until the device has finished."""
        if self.device != "cpu":
            self._torch.cuda.synchronize()


def choose_backend(dtype: str, device: str = "auto", library: str = "auto") -> Backend:
    """Torch where it is installed, else numpy.

    Raises:
        BadInput: torch was asked for and is missing, or numpy cannot do the dtype or device.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    if library == "torch" and not has_torch:
        raise BadInput("torch is not installed. Install it, or probe the CPU with --library numpy.")
    if library != "numpy" and has_torch:
        return TorchBackend(dtype, device)
    if device not in ("auto", "cpu"):
        raise BadInput(f"device '{device}' needs torch, which is not installed. Install it, or probe the CPU.")
    if dtype != "fp32":
        raise BadInput(f"without torch the probe measures fp32 on the CPU, not '{dtype}'. Pass --dtype fp32.")
    return NumpyBackend()


def run_probe(plan: ProbePlan, backend: Backend) -> tuple[Measurement, ...]:
    """Every kernel of the plan, one after another."""
    calls = [*_gemms(plan, backend), _copy(plan, backend), _attention(backend), _grouped_gemm(plan, backend)]
    return tuple(_measure(task, call, plan, backend) for task, call in calls)


_Call = tuple[Task, Callable[[], object]]


def _gemms(plan: ProbePlan, backend: Backend) -> Iterator[_Call]:
    weight = backend.zeros(plan.k, plan.n)
    for m in plan.m:
        moved = backend.element_bytes * (m * plan.k + plan.k * plan.n + m * plan.n)
        task = Task(kernel="gemm", label=f"m={m}", flop=2 * m * plan.k * plan.n, moved_bytes=moved)
        yield task, backend.gemm(backend.zeros(m, plan.k), weight)


def _copy(plan: ProbePlan, backend: Backend) -> _Call:
    length = plan.copy_bytes // backend.element_bytes
    task = Task(kernel="copy", label=f"{plan.copy_bytes} bytes", flop=0, moved_bytes=2 * plan.copy_bytes)
    return task, backend.copy(backend.zeros(length), backend.zeros(length))


def _attention(backend: Backend) -> _Call:
    heads, history, dim = 32, 4096, 128
    q, k, v = (backend.zeros(heads, tokens, dim) for tokens in (1, history, history))
    moved = backend.element_bytes * 2 * heads * history * dim
    label = f"1 query, {history} rows, {heads} heads x {dim}"
    task = Task(kernel="attention", label=label, flop=4 * heads * history * dim, moved_bytes=moved)
    return task, backend.attention(q, k, v)


def _grouped_gemm(plan: ProbePlan, backend: Backend) -> _Call:
    rows, columns, experts = 4, max(plan.n // 4, 1), plan.num_experts
    tokens = backend.zeros(rows, plan.k)
    calls = [backend.gemm(tokens, backend.zeros(plan.k, columns)) for _ in range(experts)]
    moved = backend.element_bytes * experts * (plan.k * columns + rows * (plan.k + columns))
    task = Task(
        kernel="grouped_gemm",
        label=f"{experts} experts x {rows} rows, n={columns}",
        flop=2 * rows * plan.k * columns * experts,
        moved_bytes=moved,
    )
    return task, lambda: [call() for call in calls]


def _measure(task: Task, call: Callable[[], object], plan: ProbePlan, backend: Backend) -> Measurement:
    for _ in range(3):
        call()
    backend.wait()
    repeats: list[float] = []
    end = time.perf_counter() + plan.seconds_each
    while len(repeats) < 5 or (time.perf_counter() < end and len(repeats) < 500):
        start = time.perf_counter()
        call()
        backend.wait()
        repeats.append(max(time.perf_counter() - start, 1e-9))
    return Measurement(task=task, repeats=tuple(repeats))


def to_hardware_toml(measured: Sequence[Measurement], plan: ProbePlan, backend: Backend, name: str) -> str:
    """A hardware file with achieved figures only; the other measurements stand in its comments.

    Raises:
        BadInput: no GEMM or no copy was measured.
    """
    gemms = [m for m in measured if m.task.kernel == "gemm"]
    copies = [m for m in measured if m.task.kernel == "copy"]
    if not gemms or not copies:
        raise BadInput("a hardware file needs at least one GEMM and one copy measured.")
    best = max(gemms, key=lambda m: m.task.flop / m.seconds)
    today = date.today().isoformat()  # noqa: DTZ011  # a date in a file for people, not a result
    source = f"stepscope probe, {backend.name} on {backend.device}, {platform.machine()}"
    lines = [
        f"# {name}: measured by `stepscope probe`; low and high are the 5th and 95th percentile of the repeats.",
        *(
            f"# {m.task.kernel} {m.task.label}: {m.seconds * 1e6:.1f} us, {m.task.flop / m.seconds:.4g} flop_per_s, "
            f"{m.task.moved_bytes / m.seconds:.4g} bytes_per_s, {len(m.repeats)} repeats"
            for m in measured
        ),
        f'title = "{name}, as measured"',
        'maker = "measured"',
        "",
        "[achieved]",
        "memory = " + _entry("bytes_per_s", copies[0].rate(copies[0].task.moved_bytes), f"{source}: copy", today),
        "",
        "[achieved.compute]",
        f"{backend.dtype} = "
        + _entry(
            "flop_per_s", best.rate(best.task.flop), f"{source}: GEMM {best.task.label} k={plan.k} n={plan.n}", today
        ),
    ]
    return "\n".join(lines) + "\n"


def _entry(unit: str, rate: tuple[float, float, float], source: str, day: str) -> str:
    value, low, high = rate
    return f'{{ {unit} = {value:.4g}, low = {low:.4g}, high = {high:.4g}, source = "{source}", date = "{day}" }}'

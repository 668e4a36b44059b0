"""One executor: a function over tasks, in this process, in local worker processes, or on a Ray cluster.

Results come in the order of the tasks and as soon as they are there; at most two tasks a worker are out at once, so
neither tasks nor results pile up. Workers are started fresh (spawn), when a task waits for one; they end with the
iterator, however that ends, and by themselves when this process is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import connection, current_process, get_context
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.errors import BadInput, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_OUT_PER_WORKER = 2  # running, and done but not yet asked for
_SHOWN_CHARACTERS = 200
_GRACE_S = 5.0  # for a worker to end after it was told to


def count_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_tasks(
    function: Callable[[_Task], _Result], tasks: Iterable[_Task], *, workers: int | None = None, ray: bool = False
) -> Iterator[_Result]:
    """`function(task)` of each task, in order; `workers` (None: one a processor) run at a time.

    One worker, or one task, runs in this process. Function, tasks and results must be picklable where they travel.

    Raises:
        BadInput: there is no positive number of workers, or Ray is asked for and not installed.
        TaskFailed: a worker process was killed.
        Exception: what a task raises is raised here, with a note that names the task.
    """
    if workers is not None and workers < 1:
        raise BadInput(f"{workers} workers: at least one is needed. Leave the number out to use every processor.")
    return _map_on_ray(function, tasks, workers) if ray else _map_locally(function, tasks, workers)


def _map_locally(
    function: Callable[[_Task], _Result], tasks: Iterable[_Task], workers: int | None
) -> Iterator[_Result]:
    waiting = iter(tasks)
    first = list(islice(waiting, 2))
    limit = min(workers or count_cpus(), max(len(first), 1))
    # a worker's own tasks run in it: its siblings have the processors already
    if limit == 1 or current_process().daemon:
        for number, task in enumerate(chain(first, waiting)):
            with _named(number, task):
                result = function(task)
            yield result
            del result  # the caller's alone while the next one is made
        return
    pool = _Pool(function=function, limit=workers or count_cpus())
    try:
        yield from pool.run(enumerate(chain(first, waiting)))
    finally:
        pool.stop()


@contextmanager
def _named(number: int, task: object) -> Iterator[None]:
    """An exception gets a note that says which task it came from."""
    try:
        yield
    except Exception as error:
        error.add_note(_name(number, task))
        raise


def _name(number: int, task: object) -> str:
    shown = repr(task)
    return f"in task {number}: {shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + '...'}"


def _ending(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}. Run it alone to see why"
    killed = f"killed by {signal.Signals(-exit_code).name}"
    return f"{killed}; where memory ran out, use fewer workers" if exit_code == -signal.SIGKILL else killed


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A process, our end of its pipe, and the task that it has."""

    process: BaseProcess
    pipe: Connection[Any, Any]
    number: int | None = None
    task: object = None


@dataclass(slots=True, kw_only=True)
class _Pool:
    """Workers, started as tasks come, and answers that wait for their turn."""

    function: Callable[[Any], Any]
    limit: int
    workers: list[_Worker] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)

    def run(self, waiting: Iterator[tuple[int, Any]]) -> Iterator[Any]:
        """Answers in the order of the tasks."""
        wanted, has_more = 0, True
        while True:
            while has_more and (worker := self._find_idle()) is not None:
                following = next(waiting, None)
                has_more = following is not None
                if following is not None:
                    self._give(worker, *following)
            if wanted in self.answers:
                answer = self.answers.pop(wanted)
                if isinstance(answer, _Failure):
                    raise answer.error from _RemoteError(answer.traceback)
                yield answer
                wanted += 1
                continue
            busy = {worker.pipe: worker for worker in self.workers if worker.number is not None}
            if not busy:
                return
            for pipe in connection.wait(list(busy)):
                self._take(busy[pipe])  # type: ignore[index]  # only pipes were given

    def _find_idle(self) -> _Worker | None:
        """A worker for the next task, a new one if need be; None while enough is out."""
        num_busy = sum(worker.number is not None for worker in self.workers)
        if num_busy + len(self.answers) >= _OUT_PER_WORKER * self.limit:
            return None
        idle = next((worker for worker in self.workers if worker.number is None), None)
        if idle is None and len(self.workers) < self.limit:
            idle = _start_worker(self.function)
            self.workers.append(idle)
        return idle

    def _give(self, worker: _Worker, number: int, task: object) -> None:
        worker.number, worker.task = number, task
        with suppress(BrokenPipeError, ConnectionResetError), _named(number, task):
            worker.pipe.send(task)  # a dead worker is noticed where its answer is awaited

    def _take(self, worker: _Worker) -> None:
        number, task = worker.number, worker.task
        assert number is not None
        try:
            answer = _receive(worker.pipe)
        except (EOFError, ConnectionResetError):
            worker.process.join(_GRACE_S)
            self.workers.remove(worker)
            ended = f"its process ended ({_ending(worker.process.exitcode)})"
            answer = _Failure(TaskFailed(f"{_name(number, task)}: {ended}"), "")
        else:
            worker.number = worker.task = None
            if isinstance(answer, _Failure):
                answer.error.add_note(_name(number, task))
        self.answers[number] = answer  # a failure too: which of several is raised does not depend on chance

    def stop(self) -> None:
        """End every worker, busy or not."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join(_GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self.workers.clear()


class _RemoteError(Exception):
    """Where in the worker an exception came from, as text: tracebacks do not travel."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception on its way to the caller."""

    error: Exception
    traceback: str


def _start_worker(function: Callable[[Any], Any]) -> _Worker:
    """A fresh process that nobody's Ctrl-C reaches but ours: we end it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, function), daemon=True)
    with _held_interrupts():
        process.start()
    theirs.close()
    return _Worker(process=process, pipe=ours)


@contextmanager
def _held_interrupts() -> Iterator[None]:
    """SIGINT held back: a process started meanwhile has it held back for good, and ours comes at the end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection[Any, Any], function: Callable[[Any], Any]) -> None:
    """A worker's life: a task in, an answer out, until the other end is closed."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                answer: object = function(task)
            except Exception as error:  # noqa: BLE001  # every kind goes to the caller
                answer = _to_failure(error)
            try:
                _send(pipe, answer)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                _send(pipe, _to_failure(TypeError(f"the result cannot be sent back ({error})")))
            del task, answer


def _to_failure(error: Exception) -> _Failure:
    text = "".join(traceback.format_exception(error))
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    except Exception:  # noqa: BLE001  # exceptions with arguments of their own may not travel: say what they said
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, text)


def _send(pipe: Connection[Any, Any], value: object) -> None:
    """Arrays go as they lie in memory, beside the pickle: one copy less on both sides."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    pipe.send([len(head), *(view.nbytes for view in raw)])
    pipe.send_bytes(head)
    for view in raw:
        if view.nbytes:
            pipe.send_bytes(view)


def _receive(pipe: Connection[Any, Any]) -> Any:
    sizes: list[int] = pipe.recv()
    parts = [bytearray(size) for size in sizes]
    for part in parts:
        if part:
            pipe.recv_bytes_into(part)
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  # from a process that we started


def _map_on_ray(function: Callable[[_Task], _Result], tasks: Iterable[_Task], workers: int | None) -> Iterator[_Result]:
    try:
        import ray  # noqa: PLC0415  # an extra
    except ImportError:
        raise BadInput(
            "Ray is not installed. Install it (pip install 'stepscope[ray]'), or leave --ray out: this machine's "
            "processors are used then."
        ) from None
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    out: deque[tuple[int, _Task, Any]] = deque()
    try:
        remote = ray.remote(function)
        limit = _OUT_PER_WORKER * (workers or int(ray.cluster_resources().get("CPU", 1)))
        for number, task in enumerate(tasks):
            out.append((number, task, remote.remote(task)))
            if len(out) >= limit:
                yield _get_from_ray(*out.popleft())
        while out:
            yield _get_from_ray(*out.popleft())
    finally:
        for _, _, pending in out:
            ray.cancel(pending, force=True)
        if is_ours:
            ray.shutdown()


def _get_from_ray(number: int, task: object, pending: Any) -> Any:
    import ray  # noqa: PLC0415  # an extra

    try:
        return ray.get(pending)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        cause.add_note(_name(number, task))
        raise cause from error
    except ray.exceptions.RayError as error:
        raise TaskFailed(f"{_name(number, task)}: {error}") from error

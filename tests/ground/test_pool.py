"""Tasks in order, however many workers: errors name their task, and no process outlives the caller."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from multiprocessing import active_children
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.errors import AmbiguousInput, BadInput, BadQuery, StepscopeError, TaskFailed, UnreadableTrace
from stepscope.pool import map_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator


def square(number: int) -> int:
    return number * number


def refuse_three(number: int) -> int:
    if number == 3:
        raise UnreadableTrace("c.json", "the file is empty", "Record again")
    return number


def arrays(size: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"a": np.arange(size), "empty": np.empty(0, np.int64)}


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def process_id(_: int) -> int:
    return os.getpid()


def nested(number: int) -> list[int]:
    return list(map_tasks(square, range(number), workers=2))


class OddError(Exception):
    """Its constructor asks for more than its text."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def raise_odd(_: int) -> None:
    raise OddError("odd ", "end")


def give_lambda(_: int) -> object:
    return lambda: None


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    assert list(map_tasks(square, range(12), workers=workers)) == [n * n for n in range(12)]
    assert active_children() == []


def test_no_task_is_no_result() -> None:
    assert list(map_tasks(square, [])) == []


def test_one_worker_and_one_task_stay_in_this_process() -> None:
    assert list(map_tasks(process_id, range(3), workers=1)) == [os.getpid()] * 3
    assert list(map_tasks(process_id, [0])) == [os.getpid()]
    elsewhere = set(map_tasks(process_id, range(2), workers=2))
    assert os.getpid() not in elsewhere


def test_arrays_travel_whole_and_can_be_written_to() -> None:
    small, large = map_tasks(arrays, [3, 1 << 20], workers=2)
    assert small["a"].tolist() == [0, 1, 2]
    assert np.array_equal(large["a"], np.arange(1 << 20))
    assert large["empty"].size == 0
    large["a"][0] = 7


def test_tasks_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            taken.append(number)
            yield number
            number += 1

    results = map_tasks(square, endless(), workers=2)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(taken) <= 5 + 2 * 2
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert active_children() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_reaches_the_caller_and_names_its_task(workers: int) -> None:
    results = map_tasks(refuse_three, [1, 2, 3, 4], workers=workers)
    with pytest.raises(UnreadableTrace, match=r"c\.json: the file is empty") as caught:
        list(results)
    assert caught.value.path == "c.json"
    assert caught.value.__notes__ == ["in task 2: 3"]
    assert active_children() == []


def test_an_exception_that_cannot_travel_says_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="OddError: odd end"):
        list(map_tasks(raise_odd, [1, 2], workers=2))


def test_a_result_that_cannot_travel_is_an_error_of_its_task() -> None:
    with pytest.raises(TypeError, match="cannot be sent back") as caught:
        list(map_tasks(give_lambda, [1, 2], workers=2))
    assert caught.value.__notes__[0].startswith("in task ")


def test_a_killed_worker_is_named_with_its_task() -> None:
    with pytest.raises(TaskFailed, match=r"in task \d: \d: its process ended \(killed by SIGKILL; .*fewer workers"):
        list(map_tasks(die, [8, 9], workers=2))
    assert active_children() == []


def test_a_task_may_map_tasks_of_its_own() -> None:
    assert list(map_tasks(nested, [2, 3], workers=2)) == [[0, 1], [0, 1, 4]]


def test_a_number_of_workers_is_positive() -> None:
    with pytest.raises(BadInput, match="at least one"):
        map_tasks(square, [1], workers=0)


@pytest.mark.parametrize(
    "error",
    [
        UnreadableTrace("a", "is empty", "Record again"),
        AmbiguousInput("two", ("a", "b"), "Choose"),
        BadQuery("no such table"),
    ],
)
def test_our_errors_travel_with_what_they_carry(error: StepscopeError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


INTERRUPTED = """
import os, signal, sys, time
from stepscope.pool import map_tasks

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored

def stay(number):
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    list(map_tasks(stay, range(4), workers=2))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX")
def test_an_interrupt_leaves_no_process_behind(tmp_path: object) -> None:
    script = f"{tmp_path}/stay.py"
    with open(script, "w", encoding="utf-8") as out:  # noqa: PTH123
        out.write(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal sends it: to all of them
        said = parent.stderr.read()  # ends when the last holder of the stream is gone
        parent.wait()
    assert said.count("KeyboardInterrupt") == 1  # ours alone
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.extra
def test_ray_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert list(map_tasks(square, range(5), workers=2, ray=True)) == [0, 1, 4, 9, 16]
    with pytest.raises(UnreadableTrace) as caught:
        list(map_tasks(refuse_three, [3], ray=True))
    assert caught.value.__notes__ == ["in task 0: 3"]


def test_without_ray_the_way_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'stepscope\[ray\]'"):
        list(map_tasks(square, [1], ray=True))

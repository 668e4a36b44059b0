"""Driver: what runs the cells of a plan: a real engine, a server, the simulator, or the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stepscope.sweep.model_driver import CostDriver, SimulatorDriver
from stepscope.sweep.server import ServerDriver
from stepscope.sweep.vllm_engine import EngineSetup, VllmDriver

if TYPE_CHECKING:
    from stepscope.sweep.figure import Measured
    from stepscope.sweep.plan import Cell, Plan


class Driver(Protocol):
    """Runs one cell at a time; one driver is opened for many cells and closed at the end."""

    def conditions(self) -> dict[str, Any]:
        """What holds now, by the names of `conditions.CONDITIONS`."""
        ...

    def measure(self, cell: Cell) -> Measured:
        """Run a cell.

        Raises:
            StepscopeError: the cell cannot be run; others may.
        """
        ...

    def close(self) -> None:
        """Let go of engine and files."""
        ...


def open_driver(plan: Plan, setup: EngineSetup | None = None) -> Driver:
    """The plan's driver, ready for cells.

    Raises:
        BadInput: the engine does not start, the model is unknown, or `setup` is missing for vllm.
    """
    if plan.engine == "cost":
        return CostDriver(plan)
    if plan.engine == "simulator":
        return SimulatorDriver(plan)
    if plan.engine == "server":
        return ServerDriver(plan)
    return VllmDriver(plan, setup or EngineSetup())

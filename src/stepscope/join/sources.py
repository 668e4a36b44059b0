"""What a join is made of: whatever of trace, log, metrics, step log, client results and expert counts was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.readers.clients.reader import read_clients
from stepscope.readers.experts.reader import read_experts
from stepscope.readers.forward_metrics import read_forward_metrics
from stepscope.readers.prometheus.reader import read_metrics
from stepscope.readers.server_log.reader import read_server_log
from stepscope.readers.step_log import read_step_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.readers.clients.record import ClientResult
    from stepscope.readers.experts.reader import ExpertLog
    from stepscope.readers.forward_metrics import ForwardLog
    from stepscope.readers.losses import Reading
    from stepscope.readers.prometheus.reader import MetricsLog
    from stepscope.readers.server_log.reader import LogRecord, ServerLog
    from stepscope.readers.step_log import StepLog, Stream
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Files and folders as a user names them."""

    logs: tuple[Path, ...] = ()
    metrics: Path | None = None
    step_log: Path | None = None
    clients: tuple[Path, ...] = ()
    experts: Path | None = None
    forward_metrics: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was read. `ranks`: each worker's store with its steps; empty without a trace."""

    ranks: tuple[tuple[EventStore, StepTable], ...] = ()
    logs: tuple[ServerLog, ...] = ()
    metrics: MetricsLog | None = None
    step_log: StepLog | None = None
    clients: tuple[ClientResult, ...] = ()
    experts: ExpertLog | None = None
    forwards: ForwardLog | None = None

    @property
    def log_records(self) -> tuple[LogRecord, ...]:
        """Of all logs."""
        return tuple(record for log in self.logs for record in log.records)

    @property
    def schedulers(self) -> tuple[Stream, ...]:
        """Step log streams of engine cores."""
        return self.step_log.schedulers if self.step_log else ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Every side file with what was doubtful in it."""
        named = [log.reading for log in self.logs]
        named += [
            part.reading for part in (self.metrics, self.step_log, self.experts, self.forwards) if part is not None
        ]
        return (*named, *(client.reading for client in self.clients))


def read_sources(paths: Paths, ranks: Sequence[tuple[EventStore, StepTable]] = ()) -> Sources:
    """Read everything that was named.

    Raises:
        BadInput: a file is not there, or is not what it was named as.
    """
    return Sources(
        ranks=tuple(ranks),
        logs=tuple(read_server_log(path) for path in paths.logs),
        metrics=None if paths.metrics is None else read_metrics(paths.metrics),
        step_log=None if paths.step_log is None else read_step_log(paths.step_log),
        clients=tuple(result for path in paths.clients for result in read_clients(path)),
        experts=None if paths.experts is None else read_experts(paths.experts),
        forwards=None if paths.forward_metrics is None else read_forward_metrics(paths.forward_metrics),
    )

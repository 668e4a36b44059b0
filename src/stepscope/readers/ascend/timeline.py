"""trace_view.json and msprof_*.json -> Tasks and HostEvents: a bare list of events, `ts` a string of us.

The task type of this file says AI_CORE for vector kernels too, so a kernel's core is never taken from here where a
table tells it. Lanes that repeat others (planes of a group, overlap analysis) are counted and left aside.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import UnreadableTrace
from stepscope.readers.ascend.number import ns_of_us
from stepscope.readers.ascend.task import NO_DEVICE, HostEvent, Task, cann_name, role_of, torch_kind
from stepscope.store.events import NO_ID
from stepscope.store.schema import OTHER, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stepscope.store.health import HealthLog

_HARDWARE = "Ascend Hardware"
_COMMUNICATION = frozenset({"HCCL", "Communication"})
_TORCH = "Python"
_REPEATED = frozenset({"Overlap Analysis"})
_GROUP_LANE = re.compile(r"Communication", re.IGNORECASE)
_DEVICE_LABEL = re.compile(r"NPU (\d+)")
_SYNTHETIC_BITS = 10  # the profiler's own processes have the number pid << 10 plus their place


class _Event(msgspec.Struct):
    """The fields that are read; times are kept as they stand."""

    ph: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    dur: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    cat: str = ""
    args: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class _Wrapped(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815  # the file's own name


class _Args(msgspec.Struct):
    """What is read of an event's arguments."""

    task_type: str = msgspec.field(default="", name="Task Type")
    connection_id: int | None = None
    level: str = ""
    name: str = ""
    labels: str = ""
    operation: str = ""


_LIST = msgspec.json.Decoder(list[_Event])
_OBJECT = msgspec.json.Decoder(_Wrapped)
_ONE = msgspec.json.Decoder(_Event)
_ARGS = msgspec.json.Decoder(_Args)


@dataclass(slots=True)
class Timeline:
    """What one file, or its slices, hold."""

    health: HealthLog
    tasks: list[Task] = field(default_factory=list)
    host: list[HostEvent] = field(default_factory=list)
    lost: int = 0
    _process: dict[int | str, str] = field(default_factory=dict)
    _label: dict[int | str, str] = field(default_factory=dict)
    _thread: dict[tuple[int | str, int | str], str] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Add one file.

        Raises:
            UnreadableTrace: it is no JSON text at all.
        """
        events = self._decode(path)
        for event in events:
            if event.ph == "M":
                self._name(event)
        for event in events:
            if event.ph == "X":
                self._add(event)

    def _decode(self, path: Path) -> list[_Event]:
        text = path.read_bytes()
        if text.lstrip()[:1] not in (b"[", b"{"):
            raise UnreadableTrace(str(path), "this is no JSON text", "Export the profile again")
        try:
            return _LIST.decode(text) if text.lstrip().startswith(b"[") else _OBJECT.decode(text).traceEvents
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        return list(self._each(text.decode("utf-8", errors="replace"), path.name))

    def _each(self, text: str, name: str) -> Iterator[_Event]:
        """Event by event, for a text that is broken or cut off."""
        decoder, place = json.JSONDecoder(), text.find("{", 1)
        while place >= 0:
            try:
                _, end = decoder.raw_decode(text, place)
                yield _ONE.decode(text[place:end])
            except (ValueError, msgspec.DecodeError):
                self.lost += 1
                self.health.add("event_lost", f"{name}, character {place}")
                end = place + 1
                place = text.find('{"', end)
                if place < 0 or text.find("}", place) < 0:
                    self.health.add("truncated_file", name)
                    return
                continue
            place = text.find("{", end)
        if not text.rstrip().endswith(("]", "}")):
            self.health.add("truncated_file", name)

    def _name(self, event: _Event) -> None:
        args = self._args(event)
        if event.name == "process_name":
            self._process[event.pid] = args.name
        elif event.name == "process_labels":
            self._label[event.pid] = args.labels
        elif event.name == "thread_name":
            self._thread[event.pid, event.tid] = args.name

    def _args(self, event: _Event) -> _Args:
        try:
            return _ARGS.decode(event.args)
        except msgspec.DecodeError:
            loose: Any = json.loads(bytes(event.args))
            known = {k: v for k, v in loose.items() if isinstance(v, str)} if isinstance(loose, dict) else {}
            return _Args(task_type=known.get("Task Type", ""), name=known.get("name", ""))

    def _add(self, event: _Event) -> None:
        process = self._process.get(event.pid, "")
        if process in _REPEATED or (process in _COMMUNICATION and not self._is_group(event)):
            self.health.add("repeated_lane", process)
            return
        start, duration = _ns(event.ts), _ns(event.dur)
        if start is None or duration is None or duration < 0:
            problem = "missing_start" if start is None else "missing_duration" if duration is None else ""
            self.health.add(problem or "negative_duration", event.name)
            self.lost += 1
            return
        if process == _HARDWARE or process in _COMMUNICATION:
            self._add_task(event, start, duration, process)
        else:
            self._add_host(event, start, duration, process)

    def _is_group(self, event: _Event) -> bool:
        return bool(_GROUP_LANE.search(self._thread.get((event.pid, event.tid), "Communication")))

    def _add_task(self, event: _Event, start: int, duration: int, process: str) -> None:
        args = self._args(event)
        core = "COMMUNICATION" if process in _COMMUNICATION else args.task_type
        label = _DEVICE_LABEL.search(self._label.get(event.pid, ""))
        self.tasks.append(
            Task(
                start_ns=start,
                duration_ns=duration,
                name=f"{event.name} {args.operation}" if args.operation else event.name,
                type="",
                core=core,
                device=label[1] if label else NO_DEVICE,
                stream=str(event.tid),
                connection=NO_ID if args.connection_id is None else args.connection_id,
                role=role_of(core, event.name),
            )
        )

    def _add_host(self, event: _Event, start: int, duration: int, process: str) -> None:
        args = self._args(event)
        is_call = process == "CANN" or "@" in event.name.partition(" ")[0]
        name, kind, connection = event.name, OTHER, NO_ID
        if process == _TORCH or event.cat in ("cpu_op", "python_function", "enqueue", "dequeue", "mstx"):
            kind = torch_kind(event.cat, event.name)
        elif is_call:
            name, kind = cann_name(args.level, event.name), RUNTIME
            connection = NO_ID if args.connection_id is None else args.connection_id
        else:
            self.health.add("unknown_category", process or event.cat)
        self.host.append(
            HostEvent(
                start_ns=start,
                duration_ns=duration,
                name=name,
                kind=kind,
                process=self._host_process(event.pid),
                thread=str(event.tid),
                connection=connection,
            )
        )

    def _host_process(self, pid: int | str) -> str:
        """The process that a lane belongs to: CANN's lane is of the same process as the framework's."""
        if isinstance(pid, int) and pid >> _SYNTHETIC_BITS in self._process:
            return str(pid >> _SYNTHETIC_BITS)
        return str(pid)


def _ns(raw: msgspec.Raw) -> int | None:
    return ns_of_us(bytes(raw).decode("ascii", errors="replace"))

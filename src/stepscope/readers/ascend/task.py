"""What both exports say of device and host events, in one form, and what kind of event each is.

The sets of names are those of CANN's exports (text: task types of the timeline; database: TASK.taskType).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from stepscope.store.events import NO_ID
from stepscope.store.schema import DEVICE_SCOPE, FRAME, KERNEL, MEMCPY, OP, RUNTIME, SCOPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.store.counters import Reading

Role = Literal["compute", "communication", "copy", "wait", "mark", "part"]
NO_DEVICE = "NPU"  # the export does not say which one
NOT_SAID = "N/A"

# What a core's column of Accelerator Core or a task type says of a task; anything else that runs is compute.
_COPIES = re.compile(r"^MEMCPY(_ASYNC)?\b|^(SDMA|PCIE_DMA|ROCCE)(_SQE)?$", re.IGNORECASE)
_CORES = re.compile(
    r"^(KERNEL_)?(AI_?CORE|AI_?VEC(TOR_CORE)?|AIV_SQE|AIC|AIV|MIX_AI[CV]|AI_?CPU|DSA(_SQE)?)$", re.IGNORECASE
)
_WAITS = re.compile(r"^(EVENT|NOTIFY|CAPTURE)[_ ]WAIT(_SQE)?$|^Notify Wait$|^CAPTURE_WAIT$", re.IGNORECASE)
_MARKS = re.compile(
    r"^(EVENT|NOTIFY|CAPTURE)[_ ]RECORD(_SQE)?$|^PLACE_HOLDER_SQE$|^WRITE[_ ]VALUE(_SQE)?$|^PROFILING_(EN|DIS)ABLE$|"
    r"^(Invalidate|Writeback) Data( Context)?$|^(WRITE_BACK|INVALID)$|^MODEL_(EXECUTE|MAINTAINENCE)",
    re.IGNORECASE,
)
_COMMUNICATION = frozenset({"HCCL", "COMMUNICATION"})
# a group's digits and the place in it: hcom_allReduce__868_0_1
_GROUP = re.compile(r"^hcom_\w+?__(\w+?)_(\d+)_(\d+)$", re.IGNORECASE)
# record_function ranges and torch operations share a category
_RANGE = re.compile(r"[ #\[(/]|(?<!:):(?!:)")
_RANGES = frozenset({"forward", "sample_token", "draft_token", "async_state_update"})


class Task(NamedTuple):
    """One task on a device. `core` is what ran it, as recorded; `readings` its counters by column header."""

    start_ns: int
    duration_ns: int
    name: str
    type: str
    core: str
    device: str
    stream: str
    connection: int
    role: Role
    readings: Mapping[str, Reading] | None = None


class HostEvent(NamedTuple):
    """One range on a host thread."""

    start_ns: int
    duration_ns: int
    name: str
    kind: int
    process: str
    thread: str
    connection: int = NO_ID


EVENT_KIND: dict[Role, int] = {
    "compute": KERNEL,
    "communication": KERNEL,
    "copy": MEMCPY,
    "wait": KERNEL,
    "mark": DEVICE_SCOPE,
    "part": DEVICE_SCOPE,
}


def role_of(core: str, name: str) -> Role:
    """What a task is, by its task type or core, and where that is generic by its name."""
    if core in _COMMUNICATION or name.lower().startswith("hcom_"):
        return "communication"
    for text in () if _CORES.match(core) else (name, core):
        if _WAITS.search(text):
            return "wait"
        if _MARKS.search(text):
            return "mark"
        if _COPIES.search(text):
            return "copy"
    return "compute"


def core_name(core: str, role: Role) -> str:
    """What a task ran on; the core of collectives was renamed in 2026."""
    return "COMMUNICATION" if role == "communication" else core


def event_name(name: str, kernel_type: str) -> str:
    """The recorded name; a type that the name does not hold is set behind it, since the catalog reads one text."""
    if kernel_type in ("", NOT_SAID) or kernel_type.lower() in name.lower() or name.lower().startswith("hcom_"):
        return name
    return f"{name}/{kernel_type}"


def stream_name(stream: str, name: str, role: Role) -> str:
    """The track of a task: a collective has no stream of its own in both exports, so it is its group's."""
    if role == "communication":
        group = _GROUP.match(name)
        return f"communication {group[1]}" if group else "communication"
    return stream if stream not in ("", NOT_SAID) else "stream not recorded"


def torch_kind(category: str, name: str) -> int:
    """What an event of the framework's lane is."""
    if category == "python_function":
        return FRAME
    if category in ("enqueue", "dequeue"):
        return RUNTIME
    if category == "mstx" or _RANGE.search(name) or name in _RANGES:
        return SCOPE
    return OP


def cann_name(level: str, name: str) -> str:
    """A CANN call as both exports can say it: layer@name, without the layer for the public AscendCL functions."""
    layer, _, call = name.rpartition("@")
    prefix = layer or _LAYERS.get(level.lower(), level)
    return call if prefix == "AscendCL" else f"{prefix}@{call}"


_LAYERS = {
    "acl": "AscendCL",
    "node": "Node",
    "model": "Model",
    "runtime": "Runtime",
    "hccl": "Hccl",
    "communication": "Communication",
}

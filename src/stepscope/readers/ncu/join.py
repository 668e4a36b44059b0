"""Profiled launches -> the kernels of a store, by name and launch order.

ncu runs apart from the trace: it replays each kernel and serialises them. A page belongs to a trace if the two ran the
same kernels. Where the page's names follow each other in the trace exactly once, that place is taken. Else the k-th
launch of a name is the k-th kernel of that name, which the health of the store says.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.readers.ncu.page import CORE, NAME, RECORD_WITH, WANTED
from stepscope.store.counters import CounterColumn, Counters
from stepscope.store.health import HEALTH_CODES, HealthLog
from stepscope.store.schema import KERNEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.ncu.page import Page
    from stepscope.store.events import EventStore
    from stepscope.store.health import HealthRow

_RANK = re.compile(r"(?:^|[^a-z])rank[-_]?(\d+)(?!\d)", re.IGNORECASE)
_RETURNS = re.compile(r"^(?:static |inline |__global__ )*(?:void|bool|int)\s+")
_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]")


def base_name(name: str) -> str:
    """A kernel's own name, without return type, namespaces, template arguments and parameters.

    >>> base_name("void at::native::reduce_kernel<(int)512, Op<float>>(Op<float>)")
    'reduce_kernel'
    """
    name = _RETURNS.sub("", name.strip())
    while True:
        shorter = _NESTED.sub("", name)
        if shorter == name:
            break
        name = shorter
    # what is left of `<unnamed>::` and `(anonymous namespace)::` is an empty part
    return name.partition("<")[0].partition("(")[0].strip().rpartition("::")[2].strip() or name


def join_page(stores: Sequence[EventStore], page: Page) -> list[EventStore]:
    """The stores of a trace, with a page's counters in the one that it is of.

    That is the rank that the page's file name says, else the only store with kernels. Process ids are of another run
    and tell nothing, so a page of several processes, or of an unknown one of several ranks, is joined to none: the
    first store's health says so.
    """
    named = _RANK.search(Path(page.path).name)
    wanted = [
        i
        for i, store in enumerate(stores)
        if (store.rank == int(named[1]) if named else bool((store.events.kind == KERNEL).any()))
    ]
    joined = list(stores)
    if len(wanted) == 1 and len({launch.process for launch in page.launches}) == 1:
        joined[wanted[0]] = join_counters(stores[wanted[0]], page)
    elif joined:
        problem = f"{Path(page.path).name}: of which process of the trace is not certain; name it ..._rank0.csv"
        log = HealthLog()
        log.add("counters_without_kernel", problem, max(len(page.launches), 1))
        joined[0] = replace(joined[0], health=_merged(joined[0], log))
    return joined


def join_counters(store: EventStore, page: Page) -> EventStore:
    """The store with the page's counters at its kernels; what found no kernel, or no certain one, is counted."""
    log = HealthLog()
    pairs = _match(store, page, log)
    log.add("counters_without_kernel", f"in {page.path}", len(page.launches) - len(pairs))
    if pairs:
        log.add("counters_joined", f"from {page.path}", len(pairs))
    chosen = [page.launches[launch] for _, launch in pairs]
    labels = tuple(dict.fromkeys(launch.chip for launch in chosen))
    counters = Counters(
        source=NAME,
        setting=", ".join(page.present) or None,
        record_with=RECORD_WITH,
        row=np.array([row for row, _ in pairs], np.int64),
        label_id=np.array([labels.index(launch.chip) for launch in chosen], np.int8),
        labels=labels,
        columns=tuple(
            CounterColumn.from_readings(CORE, wanted.name, wanted.unit, [x.readings[wanted.name] for x in chosen])
            for wanted in WANTED
            if wanted.name in page.present
        ),
    )
    return replace(store, counters=counters if pairs else store.counters, health=_merged(store, log))


def _merged(store: EventStore, log: HealthLog) -> tuple[HealthRow, ...]:
    order = list(HEALTH_CODES)
    return tuple(sorted((*store.health, *log.rows()), key=lambda row: order.index(row.code)))


def _match(store: EventStore, page: Page, log: HealthLog) -> list[tuple[int, int]]:
    """(event row, position of the launch) pairs, in the order of the rows."""
    profiled = [base_name(launch.kernel) for launch in page.launches]
    wanted = set(profiled)
    e = store.events
    named = {i: base for i, name in enumerate(store.names) if (base := base_name(name)) in wanted}
    rows = [row for row in np.flatnonzero(e.kind == KERNEL).tolist() if int(e.name_id[row]) in named]
    recorded = [named[int(e.name_id[row])] for row in rows]
    place = _only_place(profiled, recorded)
    if place is not None:
        return [(rows[place + i], i) for i in range(len(profiled))]
    pairs = _by_name(profiled, recorded)
    log.add("counters_by_order", _differing(profiled, recorded), len(pairs))
    return sorted((rows[kernel], launch) for kernel, launch in pairs)


def _only_place(profiled: Sequence[str], recorded: Sequence[str]) -> int | None:
    """Where the profiled names stand one after the other among the recorded ones; None: nowhere, or in two places."""
    if not profiled or len(profiled) > len(recorded):
        return None
    ids = {name: i for i, name in enumerate(dict.fromkeys(recorded))}
    short = np.array([ids.get(name, -1) for name in profiled], np.int64)
    long = np.array([ids[name] for name in recorded], np.int64)
    starts = np.flatnonzero(long[: len(long) - len(short) + 1] == short[0])
    for offset in range(1, len(short)):
        if not len(starts):
            break
        starts = starts[long[starts + offset] == short[offset]]
    return int(starts[0]) if len(starts) == 1 else None


def _by_name(profiled: Sequence[str], recorded: Sequence[str]) -> list[tuple[int, int]]:
    """The k-th launch of each name with the k-th kernel of that name."""
    kernels: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(recorded):
        kernels[name].append(i)
    taken: dict[str, int] = defaultdict(int)
    pairs = []
    for launch, name in enumerate(profiled):
        if taken[name] < len(kernels[name]):
            pairs.append((kernels[name][taken[name]], launch))
        taken[name] += 1
    return pairs


def _differing(profiled: Sequence[str], recorded: Sequence[str]) -> str:
    before, after = Counter(profiled), Counter(recorded)
    name = next((n for n in before if before[n] != after[n]), "")
    if not name:
        return "the same kernels in another order, or in several places"
    return f"{name}: {before[name]} profiled, {after[name]} in the trace"

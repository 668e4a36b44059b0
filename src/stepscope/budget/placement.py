"""Every event's account: (category, family), from its name or, for kernels without a telling one, from its launcher.

Names are placed once each, not event by event. Nested host ranges are flattened: at each instant the innermost range
that a rule places decides; a generic one (`aten::bmm`, weak) yields to an enclosing specific one (an attention op).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepscope.store.launches import NO_LAUNCH, find_launches
from stepscope.store.schema import FRAME, KINDS, LAST_DEVICE_KIND, MEMCPY, MEMSET, OP, SCOPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepscope.budget.catalog import Catalog
    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore, Int32, Mask

Account = tuple[str, str]
UNMATCHED: Account = ("unmatched", "unmatched")
NO_ACCOUNT = -1
_STRETCH = 1 << 16
_UNTELLING = frozenset({"kernel", "device_kernel"})
_WORK = frozenset({"compute", "kv", "comm"})
STEP_INPUTS: Account = ("compute", "step_inputs")
_PREPARES = frozenset({"metadata", "host_prepare"})
_PLACED_KINDS = ("kernel", "memcpy", "memset", "runtime", "op", "scope", "frame")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """Per event the position of its account in `accounts` (NO_ACCOUNT: none), and whether its rule is a weak one."""

    accounts: tuple[Account, ...]
    account: Int32
    is_weak: Mask
    num_matched_ns: int
    num_device_ns: int

    @property
    def matched_fraction(self) -> float | None:
        """Placed device time / device time, durations summed; None without device work."""
        return self.num_matched_ns / self.num_device_ns if self.num_device_ns else None

    def of_category(self, *categories: str) -> Mask:
        """Which events are in some categories."""
        return self._of({i for i, (category, _) in enumerate(self.accounts) if category in categories})

    def of_family(self, *families: str) -> Mask:
        """Which events are in some families."""
        return self._of({i for i, (_, family) in enumerate(self.accounts) if family in families})

    def _of(self, wanted: Iterable[int]) -> Mask:
        table = np.zeros(len(self.accounts) + 1, bool)  # the last place is NO_ACCOUNT's
        table[list(wanted)] = True
        found: Mask = table[self.account]
        return found


def place_events(store: EventStore, catalog: Catalog) -> Placements:
    """Place all events of a store."""
    accounts: dict[Account, int] = {UNMATCHED: 0}
    account_of, weak_of = _place_names(store, catalog, accounts)
    e = store.events
    account, is_weak = account_of[e.kind, e.name_id], weak_of[e.kind, e.name_id]
    on_device = e.kind <= LAST_DEVICE_KIND
    copies = (e.kind == MEMCPY) | (e.kind == MEMSET)
    untelling = on_device & ~copies & np.array([name in _UNTELLING for name in store.names] or [False])[e.name_id]
    if (asked := copies | untelling).any():
        launcher = _from_launcher(store, account, is_weak, accounts, asked)
        kv = np.array([category == "kv" for category, _ in accounts] + [False])
        account = np.where(untelling | (copies & kv[launcher]), launcher, account).astype(np.int32)
    account[on_device & (account == NO_ACCOUNT)] = 0
    matched = on_device & (account > 0)
    return Placements(
        accounts=tuple(accounts),
        account=account,
        is_weak=is_weak,
        num_matched_ns=int(e.duration_ns[matched].sum()),
        num_device_ns=int(e.duration_ns[on_device].sum()),
    )


def _place_names(store: EventStore, catalog: Catalog, accounts: dict[Account, int]) -> tuple[Int32, Mask]:
    """Tables [kind, name] -> account and weakness; only pairs that occur are asked for."""
    num_names = max(len(store.names), 1)
    account = np.full((len(KINDS), num_names), NO_ACCOUNT, np.int32)
    is_weak = np.zeros((len(KINDS), num_names), bool)
    code = store.events.kind.astype(np.int64) * num_names + store.events.name_id
    for pair in np.flatnonzero(np.bincount(code, minlength=1)).tolist():
        kind, name_id = divmod(pair, num_names)
        if KINDS[kind] not in _PLACED_KINDS:
            continue
        place = catalog.place(store.names[name_id], _kind(kind))
        if place is not None:
            account[kind, name_id] = accounts.setdefault((place.category, place.family), len(accounts))
            is_weak[kind, name_id] = place.weak
    return account, is_weak  # type: ignore[return-value]  # two-dimensional tables


def _kind(code: int) -> Literal["kernel", "memcpy", "memset", "op", "scope", "frame", "runtime"]:
    return KINDS[code]  # type: ignore[return-value]  # the kinds that are placed are the catalog's


def _from_launcher(
    store: EventStore, account: Int32, is_weak: Mask, accounts: dict[Account, int], asked: Mask
) -> Int32:
    """Per event, the account of the operation or function that launched it, where it was asked for and is known.

    A kernel called `kernel` says nothing itself; a copy of the KV data path is known by what launched it alone.
    """
    e = store.events
    row, launch = find_launches(e)
    found = np.full(len(e), NO_ACCOUNT, np.int32)
    # a kernel that a preparing function launches is the device's side of that preparation
    inputs = accounts.setdefault(STEP_INPUTS, len(accounts))
    telling = np.array([c in _WORK or f in _PREPARES for c, f in accounts] + [False])
    prepares = [i for i, (_, family) in enumerate(accounts) if family in _PREPARES]
    account = np.where(np.isin(account, prepares), inputs, account).astype(np.int32)
    host = (e.kind == OP) | (e.kind == FRAME) | (e.kind == SCOPE)
    linked = asked[row] & (launch != NO_LAUNCH)
    for track in np.unique(e.track_id[launch[linked]]).tolist():
        pieces = flatten(store, host & (e.track_id == track) & telling[account], account, is_weak)
        if not len(pieces.starts):
            continue
        here = linked & (e.track_id[launch] == track)
        times = e.start_ns[launch[here]]
        place = np.maximum(np.searchsorted(pieces.starts, times, side="right") - 1, 0)
        inside = (pieces.starts[place] <= times) & (times < pieces.ends[place])
        found[row[here][inside]] = pieces.labels[place[inside]]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Disjoint, sorted [start, end) with the account that each belongs to."""

    starts: Int64
    ends: Int64
    labels: Int64


def flatten(store: EventStore, rows: Mask, account: Int32, is_weak: Mask, self_account: Int32 | None = None) -> Pieces:
    """Nested ranges of one thread -> pieces, each with the account of the innermost range that decides there.

    `self_account` is what a range's own time goes to, where that is not what it passes on to weak ranges inside.
    A range that ends after the one that it began in is cut there (the import has counted it).
    """
    e = store.events
    chosen = np.flatnonzero(rows)
    chosen = chosen[np.lexsort((-e.duration_ns[chosen], e.start_ns[chosen]))]
    own = account if self_account is None else self_account
    out = array("q")  # start, end, label, and so on: a tuple each would be five times as large
    stack: list[tuple[int, int, int, bool]] = []  # (end, own label, label passed on, is strong) of the open ranges
    now = 0
    for start, duration, label, passed, weak in _by_row((e.start_ns, e.duration_ns, own, account, is_weak), chosen):
        end = start + duration
        while stack and stack[-1][0] <= start:
            now = _emit(out, now, stack[-1][0], stack.pop()[1])
        if stack:
            outer = stack[-1]
            now = _emit(out, now, start, outer[1])
            cut = min(end, outer[0])
            stack.append((cut, outer[2], outer[2], True) if weak and outer[3] else (cut, label, passed, not weak))
        else:
            now = start
            stack.append((end, label, passed, not weak))
    while stack:
        end, label, _, _ = stack.pop()
        now = _emit(out, now, end, label)
    columns = np.frombuffer(out, np.int64).reshape(-1, 3)
    return Pieces(starts=columns[:, 0], ends=columns[:, 1], labels=columns[:, 2])


def _by_row(columns: tuple[Any, ...], rows: Int64) -> Iterator[tuple[int, int, int, int, bool]]:
    """Some rows as Python's numbers, a stretch at a time: all at once they would be the peak of a budget's memory."""
    for at in range(0, len(rows), _STRETCH):
        part = rows[at : at + _STRETCH]
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


def _emit(out: array[int], start: int, end: int, label: int) -> int:
    if end <= start:
        return start
    if out and out[-1] == label and out[-2] == start:
        out[-2] = end  # what goes on as before is one piece
    else:
        out.extend((start, end, label))
    return end

"""`Input Dims` and `Input type` of matrix products -> OpInputs; what is no list of lists of whole numbers is left out.

Other ops have them too, and more of them; they are not kept, for nothing asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.store.op_inputs import MATRIX_OPS, OpInput, OpInputs
from stepscope.store.schema import OP

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stepscope.readers.kineto.event import Args, Event, ExactEvent
    from stepscope.store.events import Events

_decode_dims = msgspec.json.Decoder(tuple[tuple[int, ...], ...]).decode
_decode_types = msgspec.json.Decoder(tuple[str, ...]).decode


@dataclass(slots=True)
class InputColumns:
    """Starts and interned inputs, batch by batch."""

    starts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    kinds: dict[OpInput, int] = field(default_factory=dict)
    num_names: int = 0  # names looked at so far
    meant: list[int] = field(default_factory=list)  # ids of those that are matrix products

    def add(self, events: Sequence[Event] | Sequence[ExactEvent], piece: Events, names: Collection[str]) -> None:
        """A batch's events and their columns; `names` in the order of their ids."""
        new = islice(names, self.num_names, None)
        self.meant += [number for number, name in enumerate(new, self.num_names) if name in MATRIX_OPS]
        self.num_names = len(names)
        if not self.meant:
            return
        for i in np.flatnonzero((piece.kind == OP) & np.isin(piece.name_id, self.meant)).tolist():
            found = _decode(events[i].name, events[i].args)
            if found is not None:
                self.starts.append(int(piece.start_ns[i]))
                self.places.append(self.kinds.setdefault(found, len(self.kinds)))

    def to_inputs(self) -> OpInputs | None:
        """All of them; None where the capture has none."""
        if not self.starts:
            return None
        return OpInputs(
            start_ns=np.array(self.starts, np.int64), kind=np.array(self.places, np.int64), kinds=tuple(self.kinds)
        )


def _decode(name: str, args: Args | None) -> OpInput | None:
    if args is None or not bytes(args.input_dims):
        return None
    try:
        dims = _decode_dims(args.input_dims)
        types = _decode_types(args.input_type) if bytes(args.input_type) else ()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return OpInput(name=name, dims=dims, types=types)

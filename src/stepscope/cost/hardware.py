"""hardware/*.toml -> Hardware: what a device may do at most, and what was measured on it, each number with its source.

Rates are per second of ONE device (a card; for Ascend 910C a package of two dies): flop_per_s by compute dtype without
structured sparsity, bytes_per_s of device memory, bytes_per_s in one direction of the links. `advertised` figures come
from a maker's sheet (or a tool that quotes it), `achieved` ones from a measurement; the two are never mixed.
The ridge is flop_per_s over bytes_per_s: `ridge_peak` of advertised, `ridge_effective` of achieved figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

from stepscope.cost.shipped import parse_toml, read_shipped
from stepscope.errors import BadInput

Basis = Literal["advertised", "achieved"]

MEMORY, SCALE_UP, SCALE_OUT, CAPACITY, CORES = "memory", "scale_up", "scale_out", "capacity", "cores"
_UNITS = {
    MEMORY: "bytes_per_s",
    SCALE_UP: "bytes_per_s",
    SCALE_OUT: "bytes_per_s",
    CAPACITY: "bytes",
    CORES: "count",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number. `low`, `high`: its 90 % interval where it was measured; `note`: what a reader must know.

    `is_checked`: the source was opened and says so; False: stated from general knowledge.
    """

    value: float
    unit: str
    source: str
    date: str
    low: float | None = None
    high: float | None = None
    note: str | None = None
    is_checked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device. `compute` is keyed (basis, dtype), `rates` (basis, name); `coefficients`: whose fits apply."""

    name: str
    title: str
    maker: str
    compute: dict[tuple[Basis, str], Figure]
    rates: dict[tuple[Basis, str], Figure]
    coefficients: str | None = None
    is_borrowed: bool = False
    notes: str = ""

    @property
    def basis(self) -> Basis:
        """What bounds rest on: advertised figures; achieved ones in a file that a probe wrote."""
        return "achieved" if self.has("achieved") and not self.has("advertised") else "advertised"

    def flop_per_s(self, dtype: str, basis: Basis | None = None) -> float:
        """Rate of a compute dtype; of this device's `basis` where none is named.

        Raises:
            BadInput: this device has no figure for the dtype.
        """
        chosen = basis or self.basis
        figure = self.compute.get((chosen, compute_dtype(dtype)))
        if figure is None:
            known = sorted(name for kind, name in self.compute if kind == chosen)
            raise BadInput(
                f"{self.name} has no {chosen} flop_per_s for dtype '{dtype}'. Known: {', '.join(known) or 'none'}. "
                "Choose one of these (--weights, --experts, --activations), or measure it with `stepscope probe`."
            )
        return figure.value

    def bytes_per_s(self, basis: Basis | None = None) -> float:
        """Device memory's rate.

        Raises:
            BadInput: no figure of this basis.
        """
        return self._rate(MEMORY, basis or self.basis)

    def link_bytes_per_s(self, group_size: int) -> float:
        """One direction of the links that a group of this size uses; beyond one node the scale-out network.

        Raises:
            BadInput: the device has no figure for it.
        """
        return self._rate(SCALE_UP if is_one_node(group_size) else SCALE_OUT, "advertised")

    @property
    def num_cores(self) -> int | None:
        """SMs or compute units; None where the file does not say."""
        figure = self.rates.get(("advertised", CORES))
        return None if figure is None else int(figure.value)

    def has(self, basis: Basis) -> bool:
        """Whether memory and at least one compute dtype have a figure of this basis."""
        return (basis, MEMORY) in self.rates and any(kind == basis for kind, _ in self.compute)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Names of the figures that bounds may rest on and whose source nobody opened."""
        figures = {**self.compute, **self.rates}
        return tuple(name for (_, name), found in figures.items() if not found.is_checked and name != CAPACITY)

    def _rate(self, name: str, basis: Basis) -> float:
        figure = self.rates.get((basis, name))
        if figure is None:
            raise BadInput(f"{self.name} has no {basis} '{name}' rate. Add it to a hardware file of your own.")
        return figure.value


def is_one_node(group_size: int) -> bool:
    """Whether a group of ranks fits on the eight devices of one node."""
    return group_size <= 8


# the format that the multiplier works in, of each storage format
_COMPUTE = {"fp8_block": "fp8", "mxfp4": "bf16", "int4": "bf16"}


def compute_dtype(dtype: str) -> str:
    """The dtype whose peak applies: block scales change no rate, weight-only formats multiply in bf16.

    >>> compute_dtype("fp8_block"), compute_dtype("bf16")
    ('fp8', 'bf16')
    """
    return _COMPUTE.get(dtype, dtype)


def hardware_names() -> tuple[str, ...]:
    """Short names of the devices that ship with the package."""
    return tuple(sorted(_shipped()))


def load_hardware(name_or_path: str) -> Hardware:
    """A device by its short name, or from a file in the format of the shipped ones.

    Raises:
        BadInput: nobody knows the name, or the file breaks the format.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml":
        try:
            return parse_hardware(path.read_text(encoding="utf-8"), path.stem, str(path))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror}). Name a hardware file.") from error
    key = name_or_path.lower().replace("_", "-")
    known = _shipped()
    if key not in known:
        raise BadInput(
            f"unknown hardware '{name_or_path}'. Known: {', '.join(hardware_names())}; or a path that ends in .toml "
            "(`stepscope probe` writes one)."
        )
    return known[key]


@cache
def _shipped() -> dict[str, Hardware]:
    return read_shipped("hardware", parse_hardware)


def parse_hardware(text: str, name: str, where: str) -> Hardware:
    """A device from a file's text.

    Raises:
        BadInput: it breaks the format; the message says where.
    """
    data = parse_toml(text, where)
    known = {"title", "maker", "coefficients", "is_borrowed", "notes", "advertised", "achieved"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise BadInput(f"{where}: unknown key '{unknown[0]}'. Known: {', '.join(sorted(known))}.")
    compute: dict[tuple[Basis, str], Figure] = {}
    rates: dict[tuple[Basis, str], Figure] = {}
    bases: tuple[Basis, ...] = ("advertised", "achieved")
    for basis in bases:
        section = data.get(basis, {})
        for dtype, entry in section.get("compute", {}).items():
            compute[basis, dtype] = _figure(entry, "flop_per_s", f"{where}: {basis}.compute.{dtype}")
        for key in set(section) - {"compute"}:
            if key not in _UNITS:
                raise BadInput(f"{where}: unknown key '{basis}.{key}'. Known: compute, {', '.join(_UNITS)}.")
            rates[basis, key] = _figure(section[key], _UNITS[key], f"{where}: {basis}.{key}")
    _check_order(compute, rates, where)
    return Hardware(
        name=name,
        title=data.get("title", name),
        maker=data.get("maker", "unknown"),
        compute=compute,
        rates=rates,
        coefficients=data.get("coefficients"),
        is_borrowed=data.get("is_borrowed", False),
        notes=data.get("notes", ""),
    )


def _check_order(compute: dict[tuple[Basis, str], Figure], rates: dict[tuple[Basis, str], Figure], where: str) -> None:
    """An achieved rate above the advertised one is an efficiency above 1: one of the two is wrong."""
    for table in (compute, rates):
        for (basis, name), figure in table.items():
            peak = table.get(("advertised", name))
            if basis == "achieved" and peak is not None and figure.value > peak.value:
                raise BadInput(
                    f"{where}: achieved {name} {figure.value:g} is above the advertised {peak.value:g}: an efficiency "
                    f"of {figure.value / peak.value:.2f}. Correct the one that is wrong, or leave the other out."
                )


def _figure(entry: Any, unit: str, where: str) -> Figure:
    if not isinstance(entry, dict):
        raise BadInput(f"{where}: expected a table with {unit}, source and date.")
    missing = [key for key in (unit, "source", "date") if key not in entry]
    if missing:
        raise BadInput(f"{where}: has no '{missing[0]}': every number carries its source and date.")
    unknown = sorted(set(entry) - {unit, "source", "date", "low", "high", "note", "checked"})
    if unknown:
        raise BadInput(f"{where}: unknown key '{unknown[0]}'.")
    value = entry[unit]
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise BadInput(f"{where}: {unit} is {value!r}; expected a number above 0.")
    if not isinstance(entry["source"], str) or not entry["source"].strip():
        raise BadInput(f"{where}: source is empty; name the sheet or the measurement.")
    return Figure(
        value=float(value),
        unit=unit,
        source=entry["source"],
        date=_day(entry["date"], where),
        low=entry.get("low"),
        high=entry.get("high"),
        note=entry.get("note"),
        is_checked=entry.get("checked", True),
    )


def _day(value: object, where: str) -> str:
    """A TOML date, or text that starts like one (yyyy-mm)."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and len(value) >= 7 and value[:4].isdigit() and value[4] == "-" and value[5:7].isdigit():
        return value
    raise BadInput(f"{where}: date is {value!r}; expected yyyy-mm or yyyy-mm-dd.")

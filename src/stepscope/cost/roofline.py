"""Operator x Hardware -> Terms: the three times that no run can beat, and which of them binds.

compute_s = flop / F, memory_s = bytes / B, network_s = bytes sent / L; F, B, L: flop_per_s of the compute dtype,
bytes_per_s of device memory and of one direction of the links.
lower_s = max of the terms (all three overlap perfectly), serial_s = their sum (nothing overlaps); lower <= serial.
intensity = flop / bytes; compute-bound where it passes the ridge F / B: `ridge_peak` of advertised figures,
`ridge_effective` of achieved ones (probe, or a fit's efficiencies). A bound is no prediction: kernels take 30 to 90 %
longer at the median (docs/cost.md). Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stepscope.cost.hardware import Basis, Hardware, compute_dtype
from stepscope.errors import BadInput
from stepscope.operators.operator import Operator, Transfer

Array = np.ndarray[Any, np.dtype[Any]]
Seconds = float | Array
Bound = Literal["compute", "memory", "network", "overhead"]
TERMS: tuple[Bound, ...] = ("compute", "memory", "network")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Seconds of one execution; arrays where the operator holds many shapes."""

    compute_s: Seconds
    memory_s: Seconds
    network_s: Seconds

    @property
    def lower_s(self) -> Seconds:
        """The longest term."""
        return _plain(np.maximum(np.maximum(self.compute_s, self.memory_s), self.network_s))

    @property
    def serial_s(self) -> Seconds:
        """All terms, one after another."""
        return _plain(np.asarray(self.compute_s) + self.memory_s + self.network_s)

    @property
    def bound(self) -> Any:
        """The name of the longest term (an array of names over many shapes); compute where all are equal."""
        parts = np.broadcast_arrays(self.compute_s, self.memory_s, self.network_s)
        names = np.array(TERMS)[np.argmax(np.stack(parts), axis=0)]
        return str(names) if names.ndim == 0 else names


def _plain(value: Any) -> Seconds:
    array = np.asarray(value, dtype=float)
    return float(array) if array.ndim == 0 else array


def roofline(operator: Operator, hardware: Hardware, basis: Basis | None = None) -> Terms:
    """The terms of an operator.

    Raises:
        BadInput: the hardware has no figure that the operator needs.
    """
    flop, moved = np.asarray(operator.flop, dtype=float), np.asarray(operator.bytes_moved, dtype=float)
    compute = flop / bound_flop_per_s(hardware, operator.dtypes.compute, basis) if np.any(flop) else flop
    network: Any = 0.0
    if isinstance(operator.work, Transfer) and operator.work.group_size > 1:
        sent = np.asarray(operator.work.wire_bytes, dtype=float)
        network = sent / hardware.link_bytes_per_s(operator.work.group_size)
        moved = np.zeros_like(moved)  # the payload's way through memory runs beside the wire
    return Terms(
        compute_s=_plain(compute), memory_s=_plain(moved / hardware.bytes_per_s(basis)), network_s=_plain(network)
    )


def bound_flop_per_s(hardware: Hardware, dtype: str, basis: Basis | None = None) -> float:
    """The rate that bounds work in a dtype.

    fp32 takes bf16's where a device's sheet gives no fp32 rate: the bound stays a bound, only a looser one.

    Raises:
        BadInput: the device has no rate for the dtype.
    """
    if compute_dtype(dtype) == "fp32" and (basis or hardware.basis, "fp32") not in hardware.compute:
        return hardware.flop_per_s("bf16", basis)
    return hardware.flop_per_s(dtype, basis)


def intensity(flop: float, moved_bytes: float) -> float:
    """Flop per byte.

    >>> round(intensity(2 * 64 * 4096 * 1024, 2 * (64 * 4096 + 4096 * 1024 + 64 * 1024)), 4)
    59.3623
    """
    if moved_bytes <= 0:
        raise BadInput(f"bytes are {moved_bytes}: an intensity needs at least one byte moved.")
    return flop / moved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """flop_per_s over bytes_per_s, in flop per byte; `effective` is None where nothing was measured."""

    dtype: str
    peak: float | None
    effective: float | None
    effective_from: str | None


def ridge(hardware: Hardware, dtype: str, efficiencies: tuple[float, float] | None = None) -> Ridge:
    """Both ridges; `efficiencies` (compute, bandwidth) of a fit serve where the device was not probed.

    Raises:
        BadInput: the device has no rate for the dtype at all.
    """
    name = compute_dtype(dtype)
    has_peak = ("advertised", name) in hardware.compute and hardware.has("advertised")
    has_probe = ("achieved", name) in hardware.compute and hardware.has("achieved")
    if not has_peak and not has_probe:
        hardware.flop_per_s(dtype)  # raises, and says what is known
    peak = hardware.flop_per_s(dtype) / hardware.bytes_per_s() if has_peak else None
    if has_probe:
        effective = hardware.flop_per_s(dtype, "achieved") / hardware.bytes_per_s("achieved")
        return Ridge(dtype=name, peak=peak, effective=effective, effective_from="probe")
    if efficiencies is None or peak is None:
        return Ridge(dtype=name, peak=peak, effective=None, effective_from=None)
    compute, bandwidth = efficiencies
    return Ridge(dtype=name, peak=peak, effective=peak * compute / bandwidth, effective_from="fitted GEMM efficiencies")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthUse:
    """A rate over both denominators, never one alone; a fraction above 1 says that an input is wrong."""

    bytes_per_s: float
    of_advertised: float | None
    of_achieved: float | None


def bandwidth_use(
    read_bytes: float, seconds: float, *, advertised: float | None = None, achieved: float | None = None
) -> BandwidthUse:
    """What a run made of the memory. `read_bytes`: what it really read in that time, not what is resident.

    >>> use = bandwidth_use(623e9, 1.0, advertised=936.2e9, achieved=854.2e9)
    >>> round(use.of_advertised, 3), round(use.of_achieved, 3)
    (0.665, 0.729)

    Raises:
        BadInput: no time, or no bytes.
    """
    if seconds <= 0 or read_bytes <= 0:
        raise BadInput(f"bytes {read_bytes} in {seconds} s: both have to be above 0.")
    rate = read_bytes / seconds
    return BandwidthUse(
        bytes_per_s=rate,
        of_advertised=None if advertised is None else rate / advertised,
        of_achieved=None if achieved is None else rate / achieved,
    )


def efficiency(lower_bound_s: float, measured_s: float) -> float:
    """lower_bound_s / measured_s, as it is: above 1 the model or the peak is wrong, and that is to be seen.

    >>> efficiency(2.0, 1.6)
    1.25

    Raises:
        BadInput: a measured time that is not above 0.
    """
    if measured_s <= 0:
        raise BadInput(f"measured time is {measured_s} s; expected a number above 0.")
    return lower_bound_s / measured_s


def amdahl_bound(fraction: float, speedup: float) -> float:
    """The most that a whole gains where `fraction` of its time becomes `speedup` times faster.

    1 / ((1 - f) + f / s). Source: Amdahl, AFIPS 1967.

    >>> round(amdahl_bound(0.29, 2.0), 2)
    1.17

    Raises:
        BadInput: a fraction outside 0..1, or a speedup that is not above 0.
    """
    if not 0 <= fraction <= 1 or speedup <= 0:
        raise BadInput(f"fraction {fraction} and speedup {speedup}: expected 0..1 and a number above 0.")
    return 1 / ((1 - fraction) + fraction / speedup)

"""Operators x Hardware -> StepCost: bounds always; a prediction with its interval where kernels were measured.

lower_bound_s = Σ count x the longest term, serial_bound_s = Σ count x the sum of the terms: operators run one after
another in both. time_s = Σ count x the kernel models' times, None where any operator has no model (then only bounds
are given, and `unpriced` names what lacks one). The interval adds up the operators' intervals as if all erred the same
way: it is wide, and safe. Not included: the host's work between kernels, and overlap of communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stepscope.cost.core_model import CoreWork, core_seconds
from stepscope.cost.expert_model import ExpertWork
from stepscope.cost.gemm_model import Device, GemmWork
from stepscope.cost.hardware import Hardware, load_hardware
from stepscope.cost.kernel_model import CoefficientSet, KernelModel, load_coefficients
from stepscope.cost.measured_cost import MeasuredCost
from stepscope.cost.module_cost import price_modules
from stepscope.cost.operator_cost import OperatorCost
from stepscope.cost.operator_work import (
    Priceable,
    core_work,
    expert_work,
    gemm_work,
    stream_work,
    transfer_work,
)
from stepscope.cost.roofline import Seconds, Terms, roofline
from stepscope.evidence import Grade
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.operator import AttentionWork, Operator, Transfer

Array = np.ndarray[Any, np.dtype[Any]]
CostSource = Literal["model", "bound", "measured"]
DEFAULT_CORES = 128  # where a hardware file gives no number of cores


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A step, or many at once (then every time is an array over the steps). `operators` in the order given."""

    hardware: str
    operators: tuple[OperatorCost, ...]
    counts: tuple[int, ...]
    unpriced: tuple[str, ...]

    @property
    def lower_bound_s(self) -> Seconds:
        """Σ count x the longest term."""
        return _total(self.counts, [cost.terms.lower_s for cost in self.operators])

    @property
    def serial_bound_s(self) -> Seconds:
        """Σ count x the sum of the terms."""
        return _total(self.counts, [cost.terms.serial_s for cost in self.operators])

    @property
    def time_s(self) -> Seconds | None:
        """The prediction; None where an operator has none."""
        return self._sum("time_s")

    @property
    def low_s(self) -> Seconds | None:
        """The interval's lower end."""
        return self._sum("low_s")

    @property
    def high_s(self) -> Seconds | None:
        """The interval's upper end."""
        return self._sum("high_s")

    @property
    def grade(self) -> Grade | None:
        """The weakest grade of the operators; None where only bounds are given."""
        grades = {cost.grade for cost in self.operators}
        if None in grades:
            return None
        return "extrapolated" if "extrapolated" in grades else "modelled"

    @property
    def bound(self) -> Any:
        """The term that the most of the lower bound is bound by."""
        parts = [
            _total(self.counts, [np.where(cost.bound == name, cost.terms.lower_s, 0.0) for cost in self.operators])
            for name in ("compute", "memory", "network")
        ]
        names = np.array(("compute", "memory", "network"))[np.argmax(np.stack(np.broadcast_arrays(*parts)), axis=0)]
        return str(names) if names.ndim == 0 else names

    def _sum(self, name: str) -> Seconds | None:
        values = [getattr(cost, name) for cost in self.operators]
        return None if any(value is None for value in values) else _total(self.counts, values)


def _total(counts: Sequence[int], values: Sequence[Any]) -> Seconds:
    total: Any = 0.0
    for count, value in zip(counts, values, strict=True):
        total = total + count * value
    return float(total) if np.ndim(total) == 0 else np.asarray(total)


def price_step(
    operators: Sequence[Operator],
    hardware: Hardware | str,
    plan: ParallelPlan | None = None,
    *,
    cost: CostSource = "model",
    measured: MeasuredCost | None = None,
) -> StepCost:
    """Price the operators of one step, or of many steps at once.

    `cost`: "model" the fitted kernels, "bound" the roofline alone, "measured" tables (`measured`), and the bound
    outside of their range.

    Raises:
        BadInput: unknown hardware, or one without a figure that an operator needs.
    """
    device = load_hardware(hardware) if isinstance(hardware, str) else hardware
    pricer = _Pricer(
        hardware=device,
        fits=load_coefficients(device) if cost == "model" else None,
        measured=(measured or MeasuredCost.from_package(device.name)) if cost == "measured" else None,
        lender=load_hardware(device.coefficients) if device.is_borrowed and device.coefficients else None,
        ep=1 if plan is None else plan.ep,
        layers=_grouped(operators),
        seen={},
        unique={},
    )
    costs = tuple(pricer.price(operator) for operator in operators)
    if pricer.fits is not None and (plan is None or plan.cp == 1) and _is_alike(device, pricer.lender):
        costs = price_modules(operators, costs, pricer.fits)
    lacking = (
        ()
        if cost == "bound"
        else tuple(dict.fromkeys(op.name for op, found in zip(operators, costs, strict=True) if found.time_s is None))
    )
    return StepCost(hardware=device.name, operators=costs, counts=tuple(op.count for op in operators), unpriced=lacking)


def _is_alike(device: Hardware, lender: Hardware | None) -> bool:
    """Whether whole modules, which know no rates, may be taken from the lender: its memory and bf16 within 5 %."""
    if lender is None:
        return True
    pairs = ((device.bytes_per_s(), lender.bytes_per_s()), (device.flop_per_s("bf16"), lender.flop_per_s("bf16")))
    return all(abs(own / theirs - 1) <= 0.05 for own, theirs in pairs)


def _grouped(operators: Sequence[Operator]) -> dict[str, list[Operator]]:
    found: dict[str, list[Operator]] = {}
    for operator in operators:
        if operator.kind == "grouped_gemm":
            found.setdefault(operator.layer_type, []).append(operator)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    """What pricing needs; `seen` and `unique` keep what equal GEMMs and equal row counts share."""

    hardware: Hardware
    fits: CoefficientSet | None
    measured: MeasuredCost | None
    lender: Hardware | None  # whose coefficients are borrowed
    ep: int
    layers: dict[str, list[Operator]]
    seen: dict[tuple[Any, ...], Array]
    unique: dict[int, tuple[Array, Array, Array]]

    def price(self, operator: Operator) -> OperatorCost:
        terms = roofline(operator, self.hardware)
        if not np.any(terms.serial_s):
            return _nothing(terms)
        if self.measured is not None:
            return self._from_table(operator, terms)
        if self.fits is None:
            return _bound_only(terms)
        task = _task(operator, self.layers, self.ep)
        model = self.fits.find(*task.models)
        if model is None:
            return _bound_only(terms)
        is_first = f"{model.form}." in task.models[0] and self.fits.models.get(task.models[0]) is model
        exact = is_first and not task.is_stand_in and not self.hardware.is_borrowed and model.covers(**task.features)
        seconds = task.share * self._seconds(model, task, operator)
        seconds = np.where(np.asarray(terms.serial_s) > 0, seconds, 0.0)  # of many steps, those in which nothing runs
        return OperatorCost(
            terms=terms,
            time_s=_plain(seconds),
            low_s=_plain(seconds * model.band.low),
            high_s=_plain(seconds * model.band.high),
            grade="modelled" if exact else "extrapolated",
            source=f"{task.models[0] if is_first else 'stand-in'} of {self.fits.name}",
        )

    def _from_table(self, operator: Operator, terms: Terms) -> OperatorCost:
        assert self.measured is not None
        found = self.measured.seconds(operator, self.layers.get(operator.layer_type, []), self.ep)
        if found is None or np.all(np.isnan(found[0])):
            return OperatorCost(
                terms=terms, time_s=terms.lower_s, low_s=None, high_s=None, grade=None, source="roofline bound"
            )
        seconds, table = found
        outside = np.isnan(seconds)
        return OperatorCost(
            terms=terms,
            time_s=_plain(np.where(outside, terms.lower_s, seconds)),
            low_s=None,
            high_s=None,
            grade=None if np.any(outside) else "modelled",
            source=f"measured: {table}{', roofline bound outside' if np.any(outside) else ''}",
        )

    def _seconds(self, model: KernelModel, task: Priceable, operator: Operator) -> Array:
        if isinstance(operator.work, Transfer):
            return model.transfer(task.features["wire_bytes"])
        if isinstance(task.work, GemmWork) and model.form == "gemm":
            return self._gemm(model, task.models[0], task.work)
        if isinstance(task.work, CoreWork) and model.form == "gemm":  # streams: launch, then the GEMM's efficiencies
            launch, compute, bandwidth = model.coefficients[:3]
            c = np.array([launch, compute, bandwidth, max(model.coefficients[3], 1.0), 0.0])
            return core_seconds(c, task.work, self._device("bf16"))
        assert isinstance(task.work, CoreWork | ExpertWork)
        dtype = task.models[0].split(".")[1] if isinstance(task.work, ExpertWork) else operator.dtypes.compute
        if task.models[0].startswith("core.indexer"):
            dtype = "fp8"  # what the fit is relative to
        return model.seconds(task.work, self._device(dtype))

    def _gemm(self, model: KernelModel, name: str, work: GemmWork) -> Array:
        dtype = name.split(".")[1] if work.has_quantisation else "bf16"
        has_fit = len(model.coefficients) > 7
        m, inverse = self._unique(work.m)
        plain = GemmWork(
            m=m,
            n=work.n,
            k=work.k,
            x_bytes=work.x_bytes,
            w_bytes=work.w_bytes,
            y_bytes=work.y_bytes,
            has_quantisation=work.has_quantisation and has_fit,
        )
        device = self._device(dtype)
        key = (id(model), id(m), float(work.n), float(work.k), work.x_bytes, work.w_bytes, work.y_bytes)
        if key not in self.seen:
            here = model if self.lender is None else model.on_another_device(_device_of(self.lender, dtype), device)
            self.seen[key] = here.seconds(plain, device)
        return np.asarray(self.seen[key][inverse] if work.m.ndim else self.seen[key])

    def _unique(self, m: Array) -> tuple[Array, Array]:
        """Each row count once: many steps share theirs. Kept by content, together with what it was made of."""
        if m.ndim == 0:
            key = hash(float(m))
            if key not in self.unique:
                self.unique[key] = (m, m, np.array(0))
            return self.unique[key][1], self.unique[key][2]
        key = hash(m.tobytes())
        if key not in self.unique:
            self.unique[key] = (m, *np.unique(m, return_inverse=True))
        return self.unique[key][1], self.unique[key][2]

    def _device(self, dtype: str) -> Device:
        return _device_of(self.hardware, dtype)


def _device_of(hardware: Hardware, dtype: str) -> Device:
    """Its rates for a dtype; bf16's where the sheet has none, as for fp32."""
    has_rate = (hardware.basis, dtype) in hardware.compute or dtype in ("fp8_block", "mxfp4", "int4")
    return Device(
        flop_per_s=hardware.flop_per_s(dtype if has_rate else "bf16"),
        bytes_per_s=hardware.bytes_per_s(),
        num_cores=hardware.num_cores or DEFAULT_CORES,
    )


def _task(operator: Operator, layers: dict[str, list[Operator]], ep: int) -> Priceable:
    if isinstance(operator.work, Transfer):
        return transfer_work(operator)
    if operator.kind == "grouped_gemm":
        return expert_work(operator, layers[operator.layer_type], ep)
    if operator.kind in ("gemm", "batched_gemm"):
        return gemm_work(operator)
    if isinstance(operator.work, AttentionWork) and operator.kind != "recurrent":
        return core_work(operator)
    return stream_work(operator)


def _nothing(terms: Terms) -> OperatorCost:
    zero = terms.lower_s
    return OperatorCost(terms=terms, time_s=zero, low_s=zero, high_s=zero, grade="modelled", source="no work")


def _bound_only(terms: Terms) -> OperatorCost:
    return OperatorCost(terms=terms, time_s=None, low_s=None, high_s=None, grade=None, source=None)


def _plain(value: Any) -> Seconds:
    array = np.asarray(value, dtype=float)
    return float(array) if array.ndim == 0 else array

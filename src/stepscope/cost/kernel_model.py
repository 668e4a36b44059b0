"""KernelModel: a fitted form with its residuals, its range and its provenance; coefficients/*.toml -> CoefficientSet.

A prediction is never given alone: `grade` is "modelled" inside the range that was fitted and "extrapolated" outside
it or with coefficients borrowed from another device, and the interval multiplies the prediction by the `band` of points
that were held out when the form was fitted. Times are seconds; the forms are in gemm_model, expert_model, core_model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stepscope.cost import core_model, expert_model, gemm_model
from stepscope.cost.core_model import CoreWork, ModuleWork, core_seconds, module_seconds, transfer_seconds
from stepscope.cost.expert_model import ExpertWork, expert_seconds
from stepscope.cost.gemm_model import Device, GemmWork, gemm_seconds
from stepscope.cost.hardware import Hardware
from stepscope.cost.least_squares import Band
from stepscope.cost.shipped import parse_toml, read_shipped
from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]
Form = Literal["gemm", "experts", "core", "module", "transfer"]
Work = GemmWork | ExpertWork | CoreWork | ModuleWork

FORMS: dict[Form, tuple[str, ...]] = {
    "gemm": gemm_model.NAMES,
    "experts": expert_model.NAMES,
    "core": core_model.CORE_NAMES,
    "module": core_model.MODULE_NAMES,
    "transfer": core_model.TRANSFER_NAMES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModel:
    """One kernel (family) on one device. `ranges`: least and most of each feature among the fitted points."""

    form: Form
    coefficients: tuple[float, ...]
    band: Band
    ranges: Mapping[str, tuple[float, float]]
    source: str
    date: str

    def seconds(self, work: Work, device: Device) -> Array:
        """The form's prediction.

        Raises:
            BadInput: the work is of another form.
        """
        c = np.array(self.coefficients)
        if self.form == "gemm" and isinstance(work, GemmWork):
            return gemm_seconds(c, work, device)
        if self.form == "experts" and isinstance(work, ExpertWork):
            return expert_seconds(c, work, device)
        if self.form == "core" and isinstance(work, CoreWork):
            return core_seconds(c, work, device)
        if self.form == "module" and isinstance(work, ModuleWork):
            return module_seconds(c, work)
        raise BadInput(f"a model of form '{self.form}' cannot price {type(work).__name__}.")

    def on_another_device(self, fitted_on: Device, own: Device) -> KernelModel:
        """The same kernel on a device of the same family: a tile's overhead keeps its time, not its count of k.

        `overhead_k` counts elements of K at the speed of one core; a slower core spends the same time on fewer of them.
        """
        if self.form != "gemm":
            return self
        slower = (own.flop_per_s / own.num_cores) / (fitted_on.flop_per_s / fitted_on.num_cores)
        position = gemm_model.NAMES.index("overhead_k")
        changed = [c * slower if i == position else c for i, c in enumerate(self.coefficients)]
        return replace(self, coefficients=tuple(changed))

    def transfer(self, wire_bytes: Any) -> Array:
        """A collective's time."""
        return transfer_seconds(np.array(self.coefficients), wire_bytes)

    def covers(self, **features: Any) -> bool:
        """Whether every feature lies inside what was fitted."""
        return all(
            bool(
                np.all(np.asarray(value) >= self.ranges[name][0]) and np.all(np.asarray(value) <= self.ranges[name][1])
            )
            for name, value in features.items()
            if name in self.ranges
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientSet:
    """All fitted models of one device, by "<form>.<kernel>": gemm.bf16, core.indexer, transfer.all_reduce_8."""

    name: str
    models: Mapping[str, KernelModel]

    def find(self, *names: str) -> KernelModel | None:
        """The first of these that was fitted."""
        return next((self.models[name] for name in names if name in self.models), None)


def load_coefficients(hardware: Hardware) -> CoefficientSet | None:
    """The fits that apply to a device; None where nothing was measured on it or its like: bounds only.

    Raises:
        BadInput: the hardware names a set that does not exist.
    """
    if hardware.coefficients is None:
        return None
    name = hardware.coefficients
    path = Path(name).expanduser()
    if path.suffix == ".toml":
        try:
            return parse_coefficients(path.read_text(encoding="utf-8"), path.stem, str(path))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror}).") from error
    known = _shipped()
    if name not in known:
        raise BadInput(
            f"{hardware.name}: coefficients '{name}' do not exist. Known: {', '.join(sorted(known))}; or a .toml path."
        )
    return known[name]


@cache
def _shipped() -> dict[str, CoefficientSet]:
    return read_shipped("coefficients", parse_coefficients)


def parse_coefficients(text: str, name: str, where: str) -> CoefficientSet:
    """A set from a file's text.

    Raises:
        BadInput: it breaks the format.
    """
    data = parse_toml(text, where)
    models = {}
    for form in FORMS:
        for kernel, entry in data.get(form, {}).items():
            models[f"{form}.{kernel}"] = _model(form, entry, f"{where}: {form}.{kernel}")
    return CoefficientSet(name=name, models=models)


def _model(form: Form, entry: Mapping[str, Any], where: str) -> KernelModel:
    names = FORMS[form]
    for key in ("coefficients", "band", "source", "date"):
        if key not in entry:
            raise BadInput(f"{where}: has no '{key}'.")
    given = entry["coefficients"]
    needed = names[: gemm_model.NUM_PLAIN] if form == "gemm" else names
    missing = [key for key in needed if key not in given]
    unknown = [key for key in given if key not in names]
    if missing or unknown:
        raise BadInput(f"{where}: {'lacks' if missing else 'has unknown'} '{(missing or unknown)[0]}'.")
    coefficients = tuple(float(given[key]) for key in names if key in given)
    if min(coefficients) < 0:
        raise BadInput(f"{where}: a coefficient is negative; a cost never is.")
    return KernelModel(
        form=form,
        coefficients=coefficients,
        band=Band(**entry["band"]),
        ranges={key: (float(low), float(high)) for key, (low, high) in entry.get("ranges", {}).items()},
        source=entry["source"],
        date=str(entry["date"]),
    )


def to_toml(models: Mapping[str, KernelModel], header: str) -> str:
    """The text that `parse_coefficients` reads back; `header` becomes its comment."""
    lines = [f"# {line}" for line in header.splitlines()]
    for name, model in models.items():
        values = ", ".join(
            f"{key} = {value:.6g}" for key, value in zip(FORMS[model.form], model.coefficients, strict=False)
        )
        band = model.band
        held_out = f"level = {band.level}, num_points = {band.num_points}"
        ranges = ", ".join(f"{key} = [{low:.6g}, {high:.6g}]" for key, (low, high) in model.ranges.items())
        lines += [
            "",
            f"[{name}]",
            f'source = "{model.source}"',
            f'date = "{model.date}"',
            f"coefficients = {{ {values} }}",
            f"band = {{ low = {band.low:.4f}, high = {band.high:.4f}, {held_out} }}",
            f"ranges = {{ {ranges} }}",
        ]
    return "\n".join(lines) + "\n"

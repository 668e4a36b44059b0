"""The options that hold a recorded run against a model: which one, how it is split and stored, on what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stepscope.answers.modelled_steps import ModelChoice
from stepscope.cost.calibration_file import read_calibration
from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment

Model = Annotated[
    str | None,
    typer.Option("--model", help="Hold the run against this model: a bundled name or a config.json.", metavar="MODEL"),
]
HardwareName = Annotated[str | None, typer.Option("--hardware", help="The device that ran it (with --model).")]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="Scale the model's families by this calibration (with --model).")
]
Tp = Annotated[int | None, typer.Option("--tp", min=1, help="Tensor-parallel ranks of the run (with --model).")]
Dp = Annotated[int | None, typer.Option("--dp", min=1, help="Data-parallel ranks of the run (with --model).")]
Ep = Annotated[int | None, typer.Option("--ep", min=1, help="Expert-parallel ranks of the run (with --model).")]
Kv = Annotated[str | None, typer.Option("--kv", help="Layout of the KV cache (with --model; default bf16).")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="dtype of the projections (with --model; default: the checkpoint's).")
]
ExpertWeights = Annotated[
    str | None, typer.Option("--expert-weights", help="dtype of the routed experts (with --model; default: --weights).")
]
Fusion = Annotated[str | None, typer.Option("--fusion", help="none, vllm or sglang (with --model).")]
MaxModelLen = Annotated[int | None, typer.Option("--max-model-len", help="Accept contexts up to here (with --model).")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What was given; None: it was not."""

    model: str | None
    hardware: str | None
    calibration: Path | None
    tp: int | None
    dp: int | None
    ep: int | None
    kv: str | None
    weights: str | None
    expert_weights: str | None
    fusion: str | None
    max_model_len: int | None

    def choose(self) -> ModelChoice | None:
        """The model to hold the run against; None where none is named.

        Raises:
            BadInput: a model without hardware, options without a model, or names that nobody knows.
        """
        if self.model is None:
            self._refuse_others()
            return None
        fitted = None if self.calibration is None else read_calibration(self.calibration)
        device = self.hardware or (None if fitted is None else fitted.hardware)
        if device is None:
            raise BadInput(
                f"--model {self.model}: bounds need the device that ran it. Name it with --hardware (`stepscope "
                "hardware` lists them, `stepscope probe` measures one)."
            )
        plan = fitted.plan if fitted is not None else ParallelPlan()
        stored = {} if fitted is None else fitted.dtypes
        architecture = read_model(self.model)
        deployment = Deployment(
            plan=ParallelPlan(tp=self.tp or plan.tp, dp=self.dp or plan.dp, ep=self.ep or plan.ep, cp=plan.cp),
            weights=self.weights or stored.get("weights"),
            experts=self.expert_weights or stored.get("experts"),
            activations=stored.get("activations"),
            kv=self.kv or stored.get("kv") or "bf16",
            fusion=self.fusion or "none",
            max_model_len=self.max_model_len,
        )
        deployment.check(architecture)
        return ModelChoice(
            architecture=architecture, deployment=deployment, hardware=load_hardware(device), calibration=fitted
        )

    def _refuse_others(self) -> None:
        for name in (
            "hardware",
            "calibration",
            "tp",
            "dp",
            "ep",
            "kv",
            "weights",
            "expert_weights",
            "fusion",
            "max_model_len",
        ):
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise BadInput(f"--{option} is of a model, and none is named. Add --model (`stepscope models`).")

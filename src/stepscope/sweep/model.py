"""Model: the configuration that a plan names: a path, a bundled model, or the tiny one of the demo."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from stepscope.models.hf_config import from_hf_config, load_config
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.router import Router

if TYPE_CHECKING:
    from stepscope.models.architecture import Architecture
    from stepscope.sweep.plan import Plan

DEMO = "demo"


def load_model_config(model: str) -> tuple[dict[str, Any], str]:
    """The parsed config.json, and the model's short name.

    Raises:
        BadInput: there is no such model.
    """
    if model == DEMO:
        text = (resources.files("stepscope.sweep") / "demo_model.json").read_text(encoding="utf-8")
        return json.loads(text), DEMO
    raw, name, _ = load_config(model)
    return raw, name


def read_architecture(model: str) -> Architecture:
    """What the model wing makes of it.

    Raises:
        BadInput: there is no such model, or it is of an unknown family.
    """
    raw, name = load_model_config(model)
    return from_hf_config(raw, name=name, source=f"{name}'s config.json")


def deployment_of(plan: Plan) -> Deployment:
    """How the plan runs the model."""
    held = plan.held
    return Deployment(
        plan=ParallelPlan(tp=held.tp, dp=held.dp, ep=held.ep),
        weights=held.weights,
        experts=held.experts,
        kv=held.kv,
        fusion=held.fusion,
        router=Router(skew=held.router_skew),
        is_eager=held.enforce_eager,
        max_model_len=held.max_model_len,
    )

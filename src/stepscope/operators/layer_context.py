"""LayerContext: what every operator of a layer is built from: the model, the layer, the rows and the deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.models.architecture import Architecture, Layer
from stepscope.operators.operator import Amount, Dtypes, Operator, OperatorKind, Traffic

if TYPE_CHECKING:
    from stepscope.operators.deployment import Deployment
    from stepscope.operators.rows import Phase, PhaseRows, StepRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """`layer` is None for what runs once a step (embedding, head)."""

    architecture: Architecture
    deployment: Deployment
    rows: StepRows
    layer: Layer | None = None
    count: int = 1

    @property
    def layer_type(self) -> str:
        """Where the operators stand."""
        return "model" if self.layer is None else self.layer.layer_type

    @property
    def num_tokens(self) -> Amount:
        """Tokens that this rank computes: context parallelism splits those of prefill."""
        return per_rank(self.rows.prefill.num_tokens, self.deployment.plan.cp) + self.rows.decode.num_tokens

    @property
    def phases(self) -> tuple[tuple[Phase, PhaseRows], ...]:
        """The phases that have rows at all."""
        parts: tuple[tuple[Phase, PhaseRows], ...] = (("prefill", self.rows.prefill), ("decode", self.rows.decode))
        return tuple((phase, rows) for phase, rows in parts if rows.query_len.size)

    def operator(
        self,
        *,
        name: str,
        role: str,
        kind: OperatorKind,
        traffic: Traffic,
        flop: Amount = 0,
        dtypes: Dtypes | None = None,
        **detail: Any,
    ) -> Operator:
        """An operator of this layer; `detail`: shape and work."""
        return Operator(
            layer_type=self.layer_type,
            count=self.count,
            name=name,
            role=role,
            kind=kind,
            flop=flop,
            traffic=traffic,
            dtypes=dtypes or Dtypes(),
            **detail,
        )


def per_rank(amount: Amount, ranks: int) -> Amount:
    """The share of the fullest of `ranks` ranks."""
    result: Amount = -(-amount // ranks)
    return result

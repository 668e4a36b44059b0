"""Plan: the grid of a sweep, the engine that runs it and what is held fixed, as a YAML 1.2 file and back.

Axes after the founding note on prefill and decode, section 7: prefill over the step's new tokens M; decode over active
requests B at each fixed context.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "stepscope-sweep/1"
Engine = Literal["vllm", "server", "simulator", "cost"]
ENGINES: tuple[Engine, ...] = ("vllm", "server", "simulator", "cost")
Count = Annotated[int, Meta(ge=1)]
_K = 1024
_LEAST_BUDGET = 2048  # tokens of a step: contexts are filled in fewer steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point: a prefill step of `tokens`, or decode steps of `batch` requests at `context_len`."""

    kind: Literal["prefill", "decode"]
    tokens: int
    batch: int
    context_len: int

    @property
    def name(self) -> str:
        """Its file's name, without an ending."""
        return f"prefill-m{self.tokens}" if self.kind == "prefill" else f"decode-b{self.batch}-c{self.context_len}"


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of each cell is measured, the same for all.

    Attributes:
        warmup_steps: steps (of prefill: requests) before the window.
        decode_steps: decode steps in the window; prefill_repeats: prompts in the window, one after the other.
        profiled_steps: steps after the window that a profiler records for the times by family; 0: none.
        clock: wall, or busy: the CPU seconds of the engine's thread, for a CPU engine on a machine that others use.
    """

    warmup_steps: Annotated[int, Meta(ge=0)] = 2
    decode_steps: Annotated[int, Meta(ge=2)] = 16
    prefill_repeats: Annotated[int, Meta(ge=2)] = 5
    profiled_steps: Annotated[int, Meta(ge=0)] = 6
    clock: Literal["wall", "busy"] = "wall"


class Held(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is the same in every cell, as it is asked for; None: whatever the engine has, written down and held.

    Attributes:
        checkpoint_hash: of the model's config.json, `sha256:` and 16 digits.
        weights, experts, kv, fusion, router_skew: for the model of costs; a real engine is told by `engine_args`.
        engine_args: further arguments of vLLM's `LLM`.
        max_num_batched_tokens, max_num_seqs, max_model_len: None: as the largest cell needs.
    """

    checkpoint_hash: str | None = None
    weights: str | None = None
    experts: str | None = None
    kv: str = "bf16"
    tp: Count = 1
    dp: Count = 1
    ep: Count = 1
    fusion: str = "none"
    router_skew: Annotated[float, Meta(ge=0)] = 0.0
    load_format: str = "dummy"
    enforce_eager: bool = True
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    engine_args: dict[str, Any] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep. `hardware` prices the simulator and cost engines, and the predictions beside measured crossovers."""

    format: Literal["stepscope-sweep/1"] = FORMAT  # type: ignore[assignment]
    grid: str
    engine: Engine
    model: str
    hardware: str | None = None
    cost: Literal["model", "bound", "measured"] = "model"
    url: str | None = None
    prefill_tokens: tuple[Count, ...] = ()
    decode_batches: tuple[Count, ...] = ()
    decode_context_lens: tuple[Count, ...] = ()
    window: Window = Window()
    held: Held = Held()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every point, prefill first, then decode context by context."""
        prefill = [Cell(kind="prefill", tokens=m, batch=1, context_len=0) for m in self.prefill_tokens]
        return (
            *prefill,
            *(
                Cell(kind="decode", tokens=b, batch=b, context_len=c)
                for c in self.decode_context_lens
                for b in self.decode_batches
            ),
        )

    @property
    def hash(self) -> str:
        """Of its content; results of one plan are not results of another."""
        content = json.dumps(msgspec.to_builtins(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def output_len(self, cell: Cell) -> int:
        """Of a decode cell's request: the first one outlives the others' prompts, warm-up, window and profile."""
        w, prompts = self.window, cell.batch * cell.context_len
        left = max(
            self.max_num_batched_tokens - cell.batch, 1
        )  # of a step's budget beside requests that decode already
        return -(-prompts // left) + w.warmup_steps + w.decode_steps + w.profiled_steps + 8

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(
            cell.tokens + 2 if cell.kind == "prefill" else cell.context_len + self.output_len(cell)
            for cell in self.cells
        )

    @property
    def max_num_seqs(self) -> int:
        """Seats."""
        return self.held.max_num_seqs or max((*self.decode_batches, 1))

    @property
    def max_num_batched_tokens(self) -> int:
        """Budget of a step: the largest prefill runs in one."""
        return self.held.max_num_batched_tokens or max((*self.prefill_tokens, *self.decode_batches, _LEAST_BUDGET))

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the engine takes."""
        return self.held.max_model_len or -(-self.longest // 128) * 128


GRIDS: dict[str, dict[str, tuple[int, ...]]] = {
    "prefill": {"prefill_tokens": (128, 512, _K, 2 * _K, 4 * _K, 8 * _K)},
    "decode": {
        "decode_batches": (1, 2, 4, 8, 16, 32, 64, 128),
        "decode_context_lens": (8 * _K, 32 * _K, 128 * _K),
    },
    "demo": {
        "prefill_tokens": (128, 256, 512, _K, 2 * _K),
        "decode_batches": (1, 2, 4, 8, 16, 32),
        "decode_context_lens": (512, 2 * _K, 8 * _K),
    },
    "small": {"prefill_tokens": (32, 64), "decode_batches": (1, 2), "decode_context_lens": (64, 128)},
}


def make_plan(grid: str, **rest: Any) -> Plan:
    """A built-in grid on an engine and a model; `rest` as Plan's fields.

    Raises:
        BadInput: no such grid, or an impossible plan.
    """
    axes = GRIDS.get(grid)
    if axes is None:
        raise BadInput(f"--grid {grid}: there is no such grid. Choose one of {', '.join(GRIDS)}.")
    return check_plan(Plan(grid=grid, **(rest | axes)), f"grid {grid}")


def check_plan(plan: Plan, where: str) -> Plan:
    """The plan, if it can be run.

    Raises:
        BadInput: it has no cell, half an axis, a value twice, too little room, or lacks what its engine needs.
    """
    if bool(plan.decode_batches) != bool(plan.decode_context_lens):
        raise BadInput(f"{where}: decode needs both decode_batches and decode_context_lens. Give both, or neither.")
    if not plan.cells:
        raise BadInput(f"{where}: there is no cell. Give prefill_tokens, or decode_batches and decode_context_lens.")
    for name in ("prefill_tokens", "decode_batches", "decode_context_lens"):
        values = getattr(plan, name)
        if list(values) != sorted(set(values)):
            raise BadInput(f"{where}: {name} {list(values)} has to rise, each value once.")
    if plan.engine in ("simulator", "cost") and plan.hardware is None:
        raise BadInput(f"{where}: engine {plan.engine} needs hardware (see `stepscope hardware`). Give --hardware.")
    if plan.engine == "server" and plan.url is None:
        raise BadInput(f"{where}: engine server needs its url, such as http://localhost:8000. Give --url.")
    if plan.max_model_len < plan.longest:
        raise BadInput(
            f"{where}: max_model_len {plan.max_model_len} is too short for a cell of {plan.longest} tokens. Raise it."
        )
    if plan.max_num_batched_tokens < max((*plan.prefill_tokens, 1)):
        raise BadInput(
            f"{where}: max_num_batched_tokens {plan.max_num_batched_tokens} cuts a prefill of "
            f"{max(plan.prefill_tokens)} tokens into chunks: M would not be the step's. Raise it."
        )
    if plan.max_num_seqs < max((*plan.decode_batches, 1)):
        raise BadInput(f"{where}: max_num_seqs {plan.max_num_seqs} seats no {max(plan.decode_batches)} requests.")
    return plan


def read_plan(path: Path) -> Plan:
    """A plan from its file.

    Raises:
        BadInput: it cannot be read, is no YAML 1.2, holds an unknown key or an impossible value.
    """
    try:
        raw = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}). Write a plan with `stepscope sweep plan`.") from error
    except YAMLError as error:
        raise BadInput(f"{path}: is no YAML 1.2 ({str(error).splitlines()[0]}). See `stepscope sweep plan`.") from error
    try:
        plan = msgspec.convert(raw, Plan)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: is no sweep plan ({error}). See `stepscope sweep plan` for one.") from error
    return check_plan(plan, str(path))


_COMMENTS = {
    "engine": "vllm: the real engine, offline; server: a running OpenAI-compatible one; simulator; cost",
    "model": "a folder or config.json, a bundled name, or demo: a tiny mixture of experts with random weights",
    "hardware": "prices simulator and cost, and the predictions beside what was measured",
    "cost": "model: fitted kernels; bound: the roofline's lower bound; measured: tables",
    "prefill_tokens": "M: new tokens of a prefill step, one request",
    "decode_batches": "B: active requests, each with one new token a step",
    "decode_context_lens": "tokens of history of each of them",
    "window": "the same for every cell",
    "held": "held fixed: checked before and after every cell; a cell in which it changed is invalid",
}
_HELD_COMMENTS = {
    "checkpoint_hash": "of config.json; null: not checked against the plan",
    "weights": "this to router_skew: for the cost model; null: as the checkpoint has it",
    "max_num_batched_tokens": "null: as the largest cell needs, here and below",
    "engine_args": "further arguments of vLLM's LLM",
}
_HEAD = """A sweep of Stepscope. Run it:  stepscope sweep run THIS -o FOLDER
Also held: engine and driver versions, attention backend, MoE communication, cache hits (0), the number of requests."""


def to_yaml(plan: Plan) -> str:
    """With comments, so that it can be edited."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq  # noqa: PLC0415  # only here

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return CommentedMap({key: convert(item) for key, item in value.items()})
        if isinstance(value, list | tuple):
            row = CommentedSeq(value)
            row.fa.set_flow_style()
            return row
        return value

    document = convert(msgspec.to_builtins(plan))
    document.yaml_set_start_comment(_HEAD)
    for comments, part, indent in ((_COMMENTS, document, 0), (_HELD_COMMENTS, document["held"], 2)):
        for key, text in comments.items():
            part.yaml_set_comment_before_after_key(key, before=text, indent=indent)
    out = StringIO()
    yaml = YAML()
    yaml.width = 120
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    yaml.dump(document, out)
    return out.getvalue()

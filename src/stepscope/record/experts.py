"""Expert token counts of a step, through vLLM's own router callback (`set_capture_fn`; absent: not recorded).

On the CPU the ids are counted at once. On a device each layer's ids go to a fixed buffer (one copy kernel, which a
captured graph replays); after the step they are counted on the device and copied to pinned memory, and the record is
written with a later step, when the copy has ended: the host never waits.
ids: top_k logical expert indices of each token. Padding behind the step's own tokens is left out.
"""

from __future__ import annotations

import base64
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .guard import Guard

_MOST_IN_FLIGHT = 4


class ExpertCounter:
    """Counts one worker's routed tokens in every `interval`-th step."""

    def __init__(self, worker: Any, interval: int, guard: Guard) -> None:
        self._worker = worker
        self._interval = interval
        self._guard = guard
        self._routers: dict[int, Any] | None = None
        self._layers: list[int] = []
        self._num_experts = 0
        self._top_k = 0
        self._buffer: Any = None  # [layers, tokens, top_k]
        self._is_seen: list[bool] = []
        self._step_id: int | None = None
        self._num_tokens = 0
        self._in_flight: deque[tuple[dict[str, Any], Any, Any]] = deque()

    def bind(self) -> None:
        """Put a callback on every router of the model; once."""
        if self._routers is not None:
            return
        torch = import_module("torch")
        self._routers = {}
        if getattr(self._worker.vllm_config.parallel_config, "enable_dbo", False):
            self._guard.say("experts are not counted with dual batch overlap")
            return
        self._routers = _find_routers(self._worker.model_runner)
        if not self._routers:
            self._guard.say("no router with a capture callback was found; experts are not counted")
            return
        self._layers = sorted(self._routers)
        first = self._routers[self._layers[0]]
        config = self._worker.vllm_config
        self._num_experts = int(getattr(first, "global_num_experts", 0) or config.model_config.get_num_experts())
        self._top_k = int(first.top_k)
        tokens = int(config.scheduler_config.max_num_batched_tokens)
        device = getattr(self._worker, "device", None) or "cpu"
        self._buffer = torch.zeros((len(self._layers), tokens, self._top_k), dtype=torch.int32, device=device)
        self._is_seen = [False] * len(self._layers)
        for index, layer in enumerate(self._layers):
            router = self._routers[layer]
            capture = self._captured(index, getattr(router, "capture_fn", None))
            if hasattr(router, "set_capture_fn"):
                router.set_capture_fn(capture)
            else:
                router.capture_fn = capture

    def _captured(self, index: int, before: Any) -> Any:
        def capture(topk_ids: Any) -> None:
            if before is not None:  # the engine's own recorder of routed experts
                before(topk_ids)
            with self._guard("recording routed experts"):
                ids = _own_rows(topk_ids)
                if ids is None or ids.shape[-1] != self._top_k:
                    self._is_seen[index] = False
                    return
                rows = min(int(ids.shape[0]), int(self._buffer.shape[1]))
                self._buffer[index, :rows].copy_(ids[:rows])
                self._is_seen[index] = True

        return capture

    def begin(self, step_id: int, num_tokens: int) -> None:
        """A step starts."""
        self.bind()
        wanted = bool(self._layers) and num_tokens > 0 and step_id % self._interval == 0
        self._step_id = step_id if wanted else None
        if self._layers and self._buffer.device.type == "cpu":  # a device's graph runs no callback when it is replayed
            self._is_seen = [False] * len(self._layers)
        self._num_tokens = num_tokens

    def end(self) -> Iterator[dict[str, Any]]:
        """The step is launched: start its counting; give the records that are ready."""
        if self._step_id is not None:
            self._count()
        while self._in_flight and (self._in_flight[0][2] is None or self._in_flight[0][2].query()):
            record, counts, _ = self._in_flight.popleft()
            yield {**record, "rows_per_expert": base64.b64encode(counts.numpy().astype("<i4").tobytes()).decode()}

    def _count(self) -> None:
        torch = import_module("torch")
        num = self._num_tokens
        if len(self._in_flight) >= _MOST_IN_FLIGHT or not all(self._is_seen):
            self._guard.say("the routed experts of some steps were not seen; these steps have no counts")
            return
        ids = self._buffer[:, :num].reshape(len(self._layers), -1).long()
        counts = torch.zeros((len(self._layers), self._num_experts), dtype=torch.int32, device=ids.device)
        counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.int32))
        event = None
        if ids.device.type != "cpu":
            on_device, counts = counts, torch.empty(counts.shape, dtype=torch.int32, pin_memory=True)
            counts.copy_(on_device, non_blocking=True)
            event = torch.get_device_module(ids.device).Event()
            event.record()
        record = {
            "kind": "experts",
            "step_id": self._step_id,
            "num_tokens": num,
            "top_k": self._top_k,
            "num_experts": self._num_experts,
            "layers": self._layers,
        }
        self._in_flight.append((record, counts, event))


def _find_routers(runner: Any) -> dict[int, Any]:
    """Layer index -> what has the callback: a router, or (V4's fused experts) the layer itself."""
    model = runner.get_model() if hasattr(runner, "get_model") else runner.model
    found: dict[int, Any] = {}
    for module in model.modules():
        layer = getattr(module, "layer_id", None)
        if layer is None:
            continue
        router = getattr(module, "router", None)
        if hasattr(router, "set_capture_fn") and hasattr(router, "top_k"):
            found[int(layer)] = router
        elif hasattr(module, "capture_fn") and hasattr(module, "top_k"):
            found[int(layer)] = module
    return found


def _own_rows(topk_ids: Any) -> Any:
    """This data-parallel rank's part of the ids; None where the layout is another one."""
    metadata = import_module("vllm.forward_context").get_forward_context().dp_metadata
    if metadata is None:
        return topk_ids
    tokens = [int(n) for n in metadata.num_tokens_across_dp_cpu]
    rank = import_module("vllm.distributed").get_dp_group().rank_in_group
    if topk_ids.shape[0] == sum(tokens):
        start = sum(tokens[:rank])
        return topk_ids[start : start + tokens[rank]]
    return topk_ids if topk_ids.shape[0] == tokens[rank] else None

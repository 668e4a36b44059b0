"""GraphGrid: the sizes that an engine captured as device graphs, and what a step of another size runs as.

A step is padded to the next captured size and replayed; above the largest one it is launched eagerly. B: decode rows,
T: scheduled tokens. vLLM captures T in two modes (full for uniform decode, piecewise for any step); SGLang captures B
for decode only. Sources: vLLM 0.32, config/vllm.py `_set_cudagraph_sizes` and v1/cudagraph_dispatcher.py;
SGLang 0.5.23, arg_groups/cuda_graph_hook.py `generate_decode_cuda_graph_batch_sizes`, arg_groups/memory_hook.py and
model_executor/runner/base_cuda_graph_runner.py `get_batch_sizes_to_capture`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from stepscope.errors import BadInput
from stepscope.simulate.clock import TICKS_PER_S, to_ticks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.simulate.step_time import StepTime

Mode = Literal["full", "piecewise", "none"]
GIB = 1 << 30
# memory below, in GiB; cuda-graph-max-bs with tp_size below 4; with more
SGLANG_MAX_BS = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512), (1 << 30, 512, 512))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphGrid:
    """Captured sizes, ascending.

    Attributes:
        decode_sizes: of uniform decode steps, replayed as `decode_mode`.
        other_sizes: of any step, replayed as `other_mode`; empty: none.
        falls_back: whether a decode step that `decode_sizes` does not hold is replayed as any other step.
    """

    decode_sizes: tuple[int, ...]
    other_sizes: tuple[int, ...] = ()
    decode_mode: Mode = "full"
    other_mode: Mode = "piecewise"
    falls_back: bool = True

    def __post_init__(self) -> None:
        for sizes in (self.decode_sizes, self.other_sizes):
            if sizes and (sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes))):
                raise BadInput(f"captured sizes {sizes}: give each once, ascending, 1 or more.")

    def padded(self, num_tokens: int, *, is_uniform_decode: bool = True) -> int:
        """The size that runs; that of the step itself where no graph holds it."""
        size, _ = self._find(num_tokens, is_uniform_decode=is_uniform_decode)
        return size

    def mode(self, num_tokens: int, *, is_uniform_decode: bool = True) -> Mode:
        """What a step runs as."""
        _, mode = self._find(num_tokens, is_uniform_decode=is_uniform_decode)
        return mode

    def uncovered(self, limit: int) -> tuple[int, ...]:
        """Decode batches of 1 to `limit` rows that are not replayed as `decode_mode`."""
        return tuple(size for size in range(1, limit + 1) if self.mode(size) != self.decode_mode)

    def _find(self, num_tokens: int, *, is_uniform_decode: bool) -> tuple[int, Mode]:
        if is_uniform_decode:
            place = bisect_left(self.decode_sizes, num_tokens)
            if place < len(self.decode_sizes):
                return self.decode_sizes[place], self.decode_mode
        if not is_uniform_decode or self.falls_back:
            place = bisect_left(self.other_sizes, num_tokens)
            if place < len(self.other_sizes):
                return self.other_sizes[place], self.other_mode
        return num_tokens, "none"


def vllm_grid(
    *, max_num_seqs: int, max_num_batched_tokens: int, most: int = 512, has_last_decode: bool = True
) -> GraphGrid:
    """What vLLM captures by default (mode FULL_AND_PIECEWISE, no drafts).

    `most` is 1024 on data-centre Blackwell. `has_last_decode`: max_num_seqs is a size too, as in 0.32; versions before
    that change left the largest batches without a full graph.

    >>> vllm_grid(max_num_seqs=100, max_num_batched_tokens=8192, has_last_decode=False).uncovered(100)
    (97, 98, 99, 100)
    """
    largest = min(max_num_seqs * 2, most, max_num_batched_tokens)
    sizes = {1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)}
    if max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    if has_last_decode and max_num_seqs <= largest:
        sizes.add(max_num_seqs)
    captured = tuple(sorted(size for size in sizes if size <= largest))
    return GraphGrid(
        decode_sizes=tuple(size for size in captured if size <= max_num_seqs),
        other_sizes=captured,
    )


def sglang_max_bs(*, device_bytes: int, tp_size: int = 1, max_running_requests: int | None = None) -> int:
    """SGLang's default of cuda-graph-max-bs, by the device's memory.

    >>> sglang_max_bs(device_bytes=48 << 30)  # an L40
    32
    """
    narrow, wide = next(sizes for below, *sizes in SGLANG_MAX_BS if device_bytes < below * GIB)
    largest = narrow if tp_size < 4 else wide
    return largest if max_running_requests is None else min(largest, max_running_requests)


def sglang_grid(*, cuda_graph_max_bs: int, max_running_requests: int) -> GraphGrid:
    """What SGLang captures for decode by default (no drafts); beyond, decode is launched eagerly."""
    if min(cuda_graph_max_bs, max_running_requests) < 1:
        raise BadInput(
            f"cuda_graph_max_bs {cuda_graph_max_bs}, max_running_requests {max_running_requests}: give 1 or more."
        )
    sizes = {1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, cuda_graph_max_bs + 1, 32)}
    sizes = {size for size in sizes if size <= cuda_graph_max_bs} | {cuda_graph_max_bs}
    if cuda_graph_max_bs > max_running_requests:
        sizes.add(max_running_requests)
    return GraphGrid(
        decode_sizes=tuple(sorted(size for size in sizes if size <= max_running_requests)), falls_back=False
    )


def padded_time(time: StepTime, grid: GraphGrid, extra_s: Mapping[Mode, float], *, max_decode: int) -> StepTime:
    """The StepTime of an engine that pads to `grid`, each mode costing `extra_s` more per step.

    Steps of up to `max_decode` tokens are taken for decode steps (a prefill step of so few costs as much), longer ones
    for others. The table must reach to the padded sizes.

    Raises:
        BadInput: it does not.
    """
    extra = {mode: to_ticks(seconds, f"extra_s[{mode!r}]") for mode, seconds in extra_s.items()}
    ticks = [time.by_tokens[0]]
    for tokens in range(1, len(time.by_tokens)):
        is_decode = tokens <= max_decode
        size = grid.padded(tokens, is_uniform_decode=is_decode)
        if size >= len(time.by_tokens):
            raise BadInput(f"{tokens} tokens are padded to {size} and the table ends at {len(time.by_tokens) - 1}.")
        ticks.append(time.by_tokens[size] + extra.get(grid.mode(tokens, is_uniform_decode=is_decode), 0))
    return replace(time, by_tokens=tuple(ticks), _lines={})


def stable_batches(
    time: StepTime, *, rate_per_s: float, steps_per_request: int, kv_len: int = 0, most: int
) -> tuple[int, ...]:
    """Decode batches at which requests leave as fast as they come: Little's law, B = rate x residency(B).

    Residency is `steps_per_request` decode steps of B rows at mean `kv_len`. A batch is stable where one row fewer
    fills up and it does not; with a cliff in the step time there can be two, and load alone does not say which. Empty:
    the batch grows beyond `most`.
    """
    found: list[int] = []
    was_filling = True
    for rows in range(1, most + 1):
        pieces = time.decode_line(rows)
        kv_sum = rows * kv_len
        start, ticks, slope = next(piece for piece in reversed(pieces) if piece[0] <= kv_sum or piece is pieces[0])
        step_s = (time.by_tokens[rows] + ticks + slope * (kv_sum - start)) / TICKS_PER_S
        is_filling = rate_per_s * steps_per_request * step_s > rows
        if was_filling and not is_filling:
            found.append(rows)
        was_filling = is_filling
    return tuple(found)

"""Prefix first, then chunk: a prompt and its prefix hit -> the chunks that a token budget cuts it into.

Semantics of vLLM 0.16 to 0.32, checked against its scheduler (docs/metrics.md): a hit is whole blocks, and the prompt's
last token is always computed, since its output is wanted; hit tokens cost no budget; running decodes take their tokens
first; `long_prefill_token_threshold` caps one request's tokens per step. SGLang is the same with its page size as the
block, and may cut chunks down to whole pages (`chunk_multiple`).
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import BadInput, InvariantBroken


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One prefill row: `query_len` tokens computed while `shared_tokens` of other requests run in the same step."""

    chunk_index: int
    query_len: int
    context_len: int
    shared_tokens: int = 0

    @property
    def kv_len(self) -> int:
        """Tokens that the chunk's last query attends to."""
        return self.context_len + self.query_len

    @property
    def step_tokens(self) -> int:
        """Scheduled tokens of the whole step."""
        return self.query_len + self.shared_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """A prompt's way through prefill. `found_tokens` is what the cache held, `prefix_hit_tokens` what counts of it."""

    prompt_len: int
    found_tokens: int
    prefix_hit_tokens: int
    chunks: tuple[Chunk, ...]

    @property
    def effective_prefill_tokens(self) -> int:
        """Prompt tokens that are really computed."""
        return self.prompt_len - self.prefix_hit_tokens

    @property
    def alignment_loss_tokens(self) -> int:
        """Found in the cache and computed all the same: a block that is not full, or the last token."""
        return self.found_tokens - self.prefix_hit_tokens

    def check(self) -> None:
        """Hit + Σ query_len = prompt; every chunk begins where the one before it ended."""
        place = self.prefix_hit_tokens
        for chunk in self.chunks:
            if chunk.context_len != place or chunk.query_len <= 0:
                raise InvariantBroken(f"chunk {chunk.chunk_index} starts at {chunk.context_len}, expected {place}")
            place = chunk.kv_len
        if place != self.prompt_len:
            raise InvariantBroken(f"hit and chunks cover {place} tokens, the prompt has {self.prompt_len}")


def usable_hit(found_tokens: int, *, prompt_len: int, block_size: int) -> int:
    """Of the tokens found in the cache, those that need no computing: whole blocks, never the prompt's last token.

    >>> usable_hit(8200, prompt_len=20000, block_size=16), usable_hit(48, prompt_len=48, block_size=16)
    (8192, 32)
    """
    blocks = min(found_tokens // block_size, (prompt_len - 1) // block_size)
    return max(blocks, 0) * block_size


def chunk_len(needed: int, *, budget_left: int, cap: int = 0, multiple: int = 1) -> int:
    """Tokens of one request in one step; 0 where nothing fits.

    `cap` is `long_prefill_token_threshold` (0: off). A cut chunk is a multiple of `multiple`; a last one need not be.

    >>> chunk_len(11808, budget_left=8192), chunk_len(3616, budget_left=8192), chunk_len(900, budget_left=500, cap=512)
    (8192, 3616, 500)
    """
    fits = min(needed, budget_left, cap or needed)
    if fits < needed:
        fits -= fits % multiple
    return max(fits, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRule:
    """How an engine cuts: tokens per step, per request (cap 0: none), and what a cut chunk is a multiple of."""

    token_budget: int
    block_size: int = 16
    cap: int = 0
    chunk_multiple: int = 1

    def __post_init__(self) -> None:
        if self.token_budget < 1 or self.block_size < 1 or self.chunk_multiple < 1 or self.cap < 0:
            raise BadInput(
                f"token budget {self.token_budget}, block size {self.block_size}, chunk multiple "
                f"{self.chunk_multiple}, cap {self.cap}: the first three must be 1 or more, the cap 0 (off) or more."
            )


def plan_chunks(prompt_len: int, rule: ChunkRule, *, found_tokens: int = 0, shared_tokens: int = 0) -> ChunkPlan:
    """The chunks of a prompt that is alone in prefill, while running requests take `shared_tokens` of each step.

    >>> rule = ChunkRule(token_budget=8192, block_size=16)
    >>> [(c.query_len, c.kv_len) for c in plan_chunks(20000, rule, found_tokens=8192).chunks]
    [(8192, 16384), (3616, 20000)]

    Raises:
        BadInput: a length is negative, more was found than the prompt holds, or nothing is left of the budget.
    """
    if prompt_len < 1 or not 0 <= found_tokens <= prompt_len or shared_tokens < 0:
        raise BadInput(
            f"prompt {prompt_len}, found {found_tokens}, shared {shared_tokens} tokens: a prompt has 1 token or more, "
            "the cache holds at most the prompt, and nothing is negative."
        )
    hit = usable_hit(found_tokens, prompt_len=prompt_len, block_size=rule.block_size)
    budget_left = rule.token_budget - shared_tokens
    chunks: list[Chunk] = []
    place = hit
    while place < prompt_len:
        length = chunk_len(prompt_len - place, budget_left=budget_left, cap=rule.cap, multiple=rule.chunk_multiple)
        if length == 0:
            raise BadInput(
                f"nothing is ever computed: {shared_tokens} shared tokens leave {max(budget_left, 0)} of a budget of "
                f"{rule.token_budget}, in multiples of {rule.chunk_multiple}. Raise the budget."
            )
        chunks.append(Chunk(chunk_index=len(chunks), query_len=length, context_len=place, shared_tokens=shared_tokens))
        place += length
    plan = ChunkPlan(prompt_len=prompt_len, found_tokens=found_tokens, prefix_hit_tokens=hit, chunks=tuple(chunks))
    plan.check()
    return plan

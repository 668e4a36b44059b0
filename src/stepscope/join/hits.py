"""Prefix hits by where they came from, and whether they are reuse: A hit is worth prefill time only if it is.

Tiers: `local` (on the device), `external` (loaded by a KV connector). After a preemption a request finds its own blocks
again: that counts as hits in the engine's rate, saves nothing against never being preempted, and predicts no TTFT gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.join.reconcile import total_of
from stepscope.join.requests import account_requests, add_totals, total_prefill
from stepscope.messages import Message, say
from stepscope.units import show_count, show_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.join.requests import PrefillTotals
    from stepscope.join.sources import Sources
    from stepscope.readers.server_log.reader import LogRecord

Verdict = Literal["reuse", "recomputation", "mixed", "unknown"]
_RANDOM = ("random", "random-ids", "synthetic", "emulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class HitJudgement:
    """What the hits are, and in how far the judgement rests on counts of requests (`totals`) or on totals only."""

    verdict: Verdict
    text: Message
    totals: PrefillTotals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Where the tokens of hits lay. A test that finds nearly all of them locally shows nothing of the other tiers."""

    local_tokens: int
    external_tokens: int
    num_requests: int

    @property
    def shows_external(self) -> bool:
        """Whether external loads are a tenth or more of the hits."""
        return self.external_tokens * 10 >= self.local_tokens + self.external_tokens > 0

    @property
    def text(self) -> Message:
        """As a sentence."""
        counts = say(
            "Hits of {requests} requests: {local} tokens local, {external} loaded from an external tier.",
            requests=show_count(self.num_requests),
            local=show_count(self.local_tokens),
            external=show_count(self.external_tokens),
        )
        if self.shows_external or not self.local_tokens:
            return counts
        return say("{counts} This test cannot show what the external tier gains: clear the local cache.", counts=counts)


def judge_hits(sources: Sources) -> HitJudgement | None:
    """What the prefix hits of these sources are; None where there are none."""
    totals = [total_prefill(account_requests(stream)) for stream in sources.schedulers]
    known = [t for t in totals if t is not None]
    if known:
        return _from_requests(known)
    fraction = _hit_fraction(sources)
    if not fraction:
        return None
    preemptions = _preemptions(sources)
    if _is_random(sources):
        return _of_random(show_fraction(fraction), preemptions)
    return _of_any(show_fraction(fraction), preemptions)


def _of_random(share: str, preemptions: int | None) -> HitJudgement:
    if preemptions == 0:
        text = say("{share} hits on prompts that share nothing, without preemptions", share=share)
        return HitJudgement(verdict="unknown", text=text)
    text = say(
        "{share} of looked-up tokens were hits, but these prompts share no prefix: the hits are blocks of preempted "
        "requests that are computed again. This is no reuse, and no gain in TTFT follows.",
        share=share,
    )
    if preemptions is not None:
        text = say("{text} Preemptions: {count}.", text=text, count=show_count(preemptions))
    return HitJudgement(verdict="recomputation", text=text)


def _of_any(share: str, preemptions: int | None) -> HitJudgement:
    if preemptions is None:
        return HitJudgement(verdict="unknown", text=say("{share} hits; preemptions were not recorded", share=share))
    if not preemptions:
        return HitJudgement(verdict="reuse", text=say("{share} hits, without a preemption: reuse.", share=share))
    text = say(
        "{share} of looked-up tokens were hits, with {count} preemptions: a part of them is no reuse.",
        share=share,
        count=show_count(preemptions),
    )
    return HitJudgement(verdict="mixed", text=text)


def _from_requests(parts: Sequence[PrefillTotals]) -> HitJudgement:
    totals = add_totals(parts)
    hits = totals.local_hit_tokens + (totals.external_hit_tokens or 0)
    verdict: Verdict = "reuse"
    if totals.recovered_tokens:
        verdict = "mixed" if hits else "recomputation"
    text = say(
        "{requests} requests: {prompt} prompt tokens = {hits} hit + {effective} effective. After {preemptions} "
        "preemptions {recomputed} tokens were computed again and {recovered} found again, which is no reuse.",
        requests=show_count(totals.num_requests),
        prompt=show_count(totals.prompt_tokens),
        hits=show_count(hits),
        effective=show_count(totals.effective_tokens),
        preemptions=show_count(totals.num_preemptions),
        recomputed=show_count(totals.recomputed_tokens),
        recovered=show_count(totals.recovered_tokens),
    )
    return HitJudgement(verdict=verdict, text=text, totals=totals)


def _hit_fraction(sources: Sources) -> float | None:
    hits, asked = (total_of(sources.metrics, f"prefix_{part}_tokens") for part in ("hit", "query"))
    if hits is not None and asked:
        return hits / asked
    values = [v for r in sources.log_records if (v := r.number("prefix_hit_fraction")) is not None]
    return values[-1] if values else None


def _preemptions(sources: Sources) -> int | None:
    counted = total_of(sources.metrics, "num_preemptions")
    if counted is not None:
        return round(counted)
    printed = [v for r in sources.log_records if (v := r.number("num_preemptions")) is not None]
    return round(sum(printed)) if printed else None


def _is_random(sources: Sources) -> bool:
    """Whether a client says that its prompts are random, so that they share no prefix."""
    return any(
        client.settings.get("dataset_name", "") in _RANDOM and not client.figures.get("random_prefix_len")
        for client in sources.clients
    )


def find_tiers(records: tuple[LogRecord, ...]) -> Tiers | None:
    """Local and external hits, from a KV connector's lines at admission; None where there are none."""
    own = [r for r in records if r.kind == "lmcache_lookup" and r.number("num_loaded_tokens") is not None]
    if not own:
        return None
    external = sum(round(r.number("num_loaded_tokens") or 0) for r in own)
    total = sum(round(r.number("num_tier_hit_tokens") or 0) for r in own)
    return Tiers(local_tokens=max(total - external, 0), external_tokens=external, num_requests=len(own))

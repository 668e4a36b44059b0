"""Step annotations of serving engines: the name of a host range -> what the step ran.

Dialects and their sources (checked 2026-11):
vLLM 0.16 to 0.32 `execute_context_N(T)_generation_N(T)`; its detailed form with sq, sk, sqsq, sqsk (0.26 and newer);
the B200 build's `N(T_Q)` with Q = Σq²; SGLang `step[EXTEND bs=15 toks=15360]` and its c_*/g_* sums; ATOM
`prefill[bs=2 tok=14721 ...]`, `decode[bs=117/128 ...]` (real rows / padded rows); TensorRT-LLM's iteration range;
diffusion steps; graph captures (not steps). A dialect is one row of `_DIALECTS`.
q = query_len, k = kv_len; sums run over the rows of a phase.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from stepscope.batch import NO_ROWS, UNKNOWN_ROWS, BatchShape, PhaseSums, Row, StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable

AnnotationKind = Literal["marker", "step", "capture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A parsed name. `num_padded_tokens` is what padding added, None where the name does not say."""

    dialect: str
    kind: AnnotationKind
    shape: BatchShape
    num_padded_tokens: int | None = None


@lru_cache(maxsize=65536)
def parse_annotation(name: str) -> Annotation | None:
    """What a range name says about a step, or None if it is no step annotation.

    >>> parse_annotation("execute_context_1(512)_generation_3(3)").shape.num_scheduled_tokens
    515
    """
    for dialect, pattern, build in _DIALECTS:
        match = pattern.search(name)
        if match:
            return build(dialect, match)
    return None


def _vllm(dialect: str, match: re.Match[str]) -> Annotation:
    prefill = _vllm_sums(match["c_n"], match["c_body"])
    decode = _vllm_sums(match["g_n"], match["g_body"])
    return Annotation(dialect=dialect, kind="step", shape=BatchShape.from_sums(prefill, decode))


_MOMENTS = re.compile(r"^sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)$")


def _vllm_sums(num_requests: str, body: str) -> PhaseSums:
    if int(num_requests) == 0:
        return NO_ROWS
    moments = _MOMENTS.match(body)
    if moments:
        query, kv, query_sq, query_kv = map(int, moments.groups())
        return PhaseSums(
            num_requests=int(num_requests), query_sum=query, kv_sum=kv, query_sq_sum=query_sq, query_kv_sum=query_kv
        )
    query_text, _, square_text = body.partition("_")
    return PhaseSums(
        num_requests=int(num_requests),
        query_sum=int(query_text),
        query_sq_sum=int(square_text) if square_text else None,
    )


_PAIR = re.compile(r"\b([a-z_]+)=(\d+)(?:/(\d+))?")


def _sglang(dialect: str, match: re.Match[str]) -> Annotation:
    fields = {key: int(value) for key, value, _ in _PAIR.findall(match["body"])}
    mode, rows, tokens = match["mode"], fields.get("bs"), fields.get("toks")
    if mode == "IDLE" or rows == 0:
        shape = BatchShape.from_sums(NO_ROWS, NO_ROWS)
    elif mode in ("EXTEND", "PREFILL"):
        shape = BatchShape.from_sums(_sums(fields, "c_", rows, tokens), NO_ROWS)
    elif mode == "DECODE" or (mode.endswith("VERIFY") and "g_sq" in fields):
        # without a token count a decode row computes one token; with drafts SGLang gives g_sq
        shape = BatchShape.from_sums(NO_ROWS, _sums(fields, "g_", rows, rows if tokens is None else tokens))
    elif "c" in fields and "g" in fields:
        shape = BatchShape.from_sums(_side(fields, "c"), _side(fields, "g"))
    else:  # MIXED, TARGET_VERIFY, ...: the name does not say which rows are which
        named: StepPhase | None = "mixed" if mode == "MIXED" else None
        shape = BatchShape(num_scheduled_tokens=tokens, num_requests=rows, named_phase=named)
    return Annotation(dialect=dialect, kind="step", shape=shape)


def _side(fields: dict[str, int], letter: str) -> PhaseSums:
    return _sums(fields, f"{letter}_", fields[letter], None) if fields[letter] else NO_ROWS


def _sums(fields: dict[str, int], prefix: str, num_requests: int | None, query_sum: int | None) -> PhaseSums:
    return PhaseSums(
        num_requests=num_requests,
        query_sum=fields.get(f"{prefix}sq", query_sum),
        kv_sum=fields.get(f"{prefix}sk"),
        query_sq_sum=fields.get(f"{prefix}sqsq"),
        query_kv_sum=fields.get(f"{prefix}sqsk"),
    )


def _atom(dialect: str, match: re.Match[str]) -> Annotation:
    pairs = _PAIR.findall(match["body"])
    fields = {key: int(value) for key, value, _ in pairs}
    padded_rows = next((int(padded) for key, _, padded in pairs if key == "bs" and padded), None)
    rows = fields["bs"]
    sums = _sums(fields, "", rows, fields.get("tok", rows if match["mode"] == "decode" else None))
    parts = (sums, NO_ROWS) if match["mode"] == "prefill" else (NO_ROWS, sums)
    # a padded row computes as many tokens as a real one: its own and its drafts
    padding = None if padded_rows is None else (padded_rows - rows) * (1 + fields.get("spec", 0))
    return Annotation(dialect=dialect, kind="step", shape=BatchShape.from_sums(*parts), num_padded_tokens=padding)


def _tensorrt(dialect: str, match: re.Match[str]) -> Annotation:
    prefill_rows, decode_rows = int(match["c"]), int(match["g"])
    tokens = int(match["tokens"]) if match["tokens"] else None
    prefill = PhaseSums(num_requests=prefill_rows, query_sum=tokens) if prefill_rows else NO_ROWS
    # with drafts a decode row computes more than one token, and this name does not say how many
    decode = PhaseSums(num_requests=decode_rows) if decode_rows else NO_ROWS
    return Annotation(dialect=dialect, kind="step", shape=BatchShape.from_sums(prefill, decode))


def _vllm_early(dialect: str, match: re.Match[str]) -> Annotation:
    """`execute_new_N_cached_M`: rows that are new and rows that were there; chunks and decodes are not told apart."""
    total = int(match["new"]) + int(match["cached"])
    return Annotation(dialect=dialect, kind="step", shape=BatchShape(num_requests=total))


def _unnamed(dialect: str, match: re.Match[str]) -> Annotation:
    kind: AnnotationKind = "capture" if match[0].startswith("capture_") else "step"
    return Annotation(dialect=dialect, kind=kind, shape=BatchShape(prefill=UNKNOWN_ROWS, decode=UNKNOWN_ROWS))


def _marker(dialect: str, match: re.Match[str]) -> Annotation:
    """`r=` lists rows; `c=` and `g=` sum the prefill and the decode rows that are not listed (big batches)."""
    rows = tuple(_marker_row(text) for text in match["rows"].split(",")) if match["rows"] else ()
    listed = BatchShape.from_rows(rows)
    if match["c"] is None and match["g"] is None:
        return Annotation(dialect=dialect, kind="marker", shape=listed)
    sums = [
        _plus(part, match[letter]) if match[letter] else part
        for letter, part in (("c", listed.prefill), ("g", listed.decode))
    ]
    return Annotation(dialect=dialect, kind="marker", shape=BatchShape.from_sums(*sums))


def _marker_row(text: str) -> Row:
    request_id, query, kv, hit, phase = text.rsplit(":", 4)
    return Row(
        query_len=int(query),
        context_len=int(kv) - int(query),
        phase="prefill" if phase == "c" else "decode",
        request_id=request_id,
        prefix_hit_tokens=int(hit),
    )


def _plus(part: PhaseSums, text: str) -> PhaseSums:
    num, query, kv, query_sq, query_kv = map(int, text.split(":"))
    return PhaseSums(
        num_requests=num + (part.num_requests or 0),
        query_sum=query + (part.query_sum or 0),
        kv_sum=kv + (part.kv_sum or 0),
        query_sq_sum=query_sq + (part.query_sq_sum or 0),
        query_kv_sum=query_kv + (part.query_kv_sum or 0),
    )


_ROW = r"[^:\s,]+(?::\d+){3}:[cg]"
_SUMS = r"\d+(?::\d+){4}"

_DIALECTS: tuple[tuple[str, re.Pattern[str], Callable[[str, re.Match[str]], Annotation]], ...] = (
    (
        "marker",
        re.compile(
            rf"^vllm_step v=1 s=\d+ n=\d+(?: r=(?P<rows>{_ROW}(?:,{_ROW})*))?"
            rf"(?: c=(?P<c>{_SUMS}))?(?: g=(?P<g>{_SUMS}))?$"
        ),
        _marker,
    ),
    (
        "vllm",
        re.compile(
            r"^execute_(?:\d+_)?context_(?P<c_n>\d+)\((?P<c_body>\d+(?:_\d+)?|sq\d+sk\d+sqsq\d+sqsk\d+)\)"
            r"_generation_(?P<g_n>\d+)\((?P<g_body>\d+(?:_\d+)?|sq\d+sk\d+sqsq\d+sqsk\d+)\)$"
        ),
        _vllm,
    ),
    ("sglang", re.compile(r"^step\[(?P<mode>[A-Z_]+)(?P<body>[^\]]*)\]"), _sglang),
    ("atom", re.compile(r"^(?P<mode>prefill|decode)\[(?P<body>bs=\d+.*)\]"), _atom),
    ("vllm-early", re.compile(r"^execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)$"), _vllm_early),
    (
        "tensorrt-llm",
        re.compile(
            r"\[Executor\] _forward_step \d+: (?P<c>\d+) ctx reqs, (?:(?P<tokens>\d+) ctx tokens, )?(?P<g>\d+) gen reqs"
        ),
        _tensorrt,
    ),
    ("diffusion", re.compile(r"^execute_diffusion_\d+_\d+x\d+$"), _unnamed),
    ("capture", re.compile(r"^capture_\d+_[A-Z_]+$"), _unnamed),
)

"""What a user writes of a step -> BatchShape: `64@8192`, `2048`, `32k`, or a file of rows.

B@C: B decode rows whose context_len, the KV that is there before the step, is C. With d draft tokens to verify a
decode row computes 1 + d tokens. A file holds `rows`: phase, query_len (decode: 1), context_len (0), count (1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stepscope.batch import BatchShape, Row
from stepscope.errors import BadInput

_SUFFIX = {"k": 1024, "m": 1024 * 1024}
EXAMPLE = "rows: [{phase: decode, context_len: 8192, count: 64}, {phase: prefill, query_len: 512}]"


class RowsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Equal rows in a shape file."""

    phase: Literal["prefill", "decode"]
    query_len: int | None = None
    context_len: int = 0
    count: int = 1


class ShapeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape file."""

    rows: list[RowsOf]


def parse_count(text: str, what: str = "a count") -> int:
    """A whole number of tokens or rows; k is 1024, m is 1024 x 1024.

    >>> parse_count("8k"), parse_count("1m"), parse_count("777")
    (8192, 1048576, 777)

    Raises:
        BadInput: it is none.
    """
    word = text.strip().lower().replace("_", "")
    scale = _SUFFIX.get(word[-1:], 1)
    digits = word[:-1] if scale > 1 else word
    if not digits.isdigit():
        raise BadInput(f"{what}: '{text}' is no whole number. Write 8192, 8k or 1m.")
    return int(digits) * scale


def parse_counts(text: str, what: str) -> list[int]:
    """Several, with commas between."""
    return [parse_count(part, what) for part in text.split(",")]


def read_rows_per_expert(text: str) -> tuple[int, ...]:
    """Rows per expert with commas between, or @FILE of a JSON list.

    Raises:
        BadInput: the file cannot be read, or holds no list of whole numbers.
    """
    if not text.startswith("@"):
        return tuple(parse_counts(text, "--rows-per-expert"))
    path = Path(text[1:]).expanduser()
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[int, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path}: a JSON list of rows per expert was expected ({error}).") from error


def read_shape(
    *, prefill: Sequence[str], context: str, decode: Sequence[str], draft_tokens: int, batch: Path | None
) -> BatchShape:
    """The step that the options describe.

    Raises:
        BadInput: no row at all, or something that is no row.
    """
    rows: list[Row] = [] if batch is None else list(read_shape_file(batch))
    shared = parse_count(context, "--context")
    for text in ",".join(prefill).split(",") if prefill else ():
        query, at, own = text.partition("@")
        own_context = parse_count(own, "--prefill") if at else shared
        rows.append(Row(query_len=parse_count(query, "--prefill"), context_len=own_context, phase="prefill"))
    for text in decode:
        count, at, own = text.partition("@")
        if not at:
            raise BadInput(f"--decode {text}: B@C was expected, B rows whose context is C tokens, such as 64@8192.")
        row = Row(query_len=1 + draft_tokens, context_len=parse_count(own, "--decode"), phase="decode")
        rows += [row] * parse_count(count, "--decode")
    if not rows:
        raise BadInput("the step has no rows: pass --prefill 2048, --decode 64@8192 or --batch FILE.")
    if any(row.query_len < 1 for row in rows):
        raise BadInput("a row computes at least one token: check --prefill and the file's query_len.")
    return BatchShape.from_rows(tuple(rows))


def read_shape_file(path: Path) -> tuple[Row, ...]:
    """The rows of a YAML or JSON file.

    Raises:
        BadInput: it cannot be read, or holds something else than rows.
    """
    try:
        found = msgspec.convert(_parse(path), ShapeFile)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{path}: no shape file ({error}). Expected, for example: {EXAMPLE}") from error
    rows: list[Row] = []
    for part in found.rows:
        query_len = part.query_len if part.query_len is not None else 1
        if part.query_len is None and part.phase == "prefill":
            raise BadInput(f"{path}: a prefill row needs its query_len. Expected, for example: {EXAMPLE}")
        if query_len < 1 or part.context_len < 0 or part.count < 0:
            raise BadInput(f"{path}: query_len is at least 1, context_len and count at least 0: {part}.")
        rows += [Row(query_len=query_len, context_len=part.context_len, phase=part.phase)] * part.count
    return tuple(rows)


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() == ".json":
        return json.loads(text)
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise BadInput(
            f"{path}: is no YAML 1.2 ({str(error).splitlines()[0]}). Expected, for example: {EXAMPLE}"
        ) from error

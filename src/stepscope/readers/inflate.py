"""A file -> blocks of its text, plain or gzip, whatever its name says.

gzip is read member by member. Several ranks that wrote one file, and killed writers, leave broken members: what was
inflated is kept, and reading goes on at the next member's magic number.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isal import isal_zlib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from stepscope.store.health import HealthLog

GZIP_MAGIC = b"\x1f\x8b\x08"
BLOCK_BYTES = 8 << 20
_READ_BYTES = 64 << 10  # of a broken member, the text of one such piece is lost


def is_gzip(path: Path) -> bool:
    """By the first bytes, never by the name."""
    with path.open("rb") as source:
        return source.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def read_blocks(path: Path, health: HealthLog, on_progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """Blocks of at least BLOCK_BYTES (the last one smaller); `on_progress` gets the number of file bytes just read."""
    compressed = is_gzip(path)
    if compressed != path.name.endswith(".gz"):
        health.add("name_mismatch", f"{path.name} is {'gzip' if compressed else 'plain text'}")
    with path.open("rb") as source:
        chunks = _inflate(_chunks(source, on_progress), health) if compressed else _chunks(source, on_progress)
        block: list[bytes] = []
        size = 0
        for chunk in chunks:
            block.append(chunk)
            size += len(chunk)
            if size >= BLOCK_BYTES:
                yield b"".join(block)
                block, size = [], 0
        if block:
            yield b"".join(block)


def _chunks(source: BinaryIO, on_progress: Callable[[int], None] | None) -> Iterator[bytes]:
    while chunk := source.read(_READ_BYTES):
        if on_progress:
            on_progress(len(chunk))
        yield chunk


def _inflate(chunks: Iterator[bytes], health: HealthLog) -> Iterator[bytes]:
    """Inflate member by member. `fed` is what the current member was given last, to look for a magic number in."""
    member: Any = None  # the decompressor, None between members
    num_members, fed, is_lost = 0, b"", False
    for chunk in chunks:
        pending = fed + chunk if is_lost else chunk
        while pending:
            if member is None:
                # between members, zero bytes are padding; behind a broken one, all is skipped up to the next
                pending, fed = _from_magic(pending) if is_lost else (pending.lstrip(b"\0"), b"")
                if not pending:
                    break
                member, num_members, is_lost = isal_zlib.decompressobj(wbits=31), num_members + 1, False
            try:
                text = member.decompress(pending)
            except (isal_zlib.error, zlib.error) as error:  # type: ignore[misc]  # the stub declares a value
                health.add("gzip_member_lost", f"member {num_members}: {error}")
                member, is_lost, pending = None, True, (fed + pending)[1:]  # without its own magic number
                continue
            if text:
                yield text
            if member.eof:
                member, pending = None, member.unused_data
            else:
                fed, pending = (fed + pending)[-2 * _READ_BYTES :], b""
    if num_members > 1:
        health.add("gzip_several_members", f"{num_members} members")
    if member is not None:
        health.add("gzip_truncated")


def _from_magic(data: bytes) -> tuple[bytes, bytes]:
    """(from the next member on, what may be the start of its magic number if it is not there yet)."""
    at = data.find(GZIP_MAGIC)
    return (data[at:], b"") if at >= 0 else (b"", data[1 - len(GZIP_MAGIC) :])

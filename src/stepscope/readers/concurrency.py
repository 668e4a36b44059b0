"""How many files are read at a time: by processors, by memory, here or on a cluster.

Reading takes a process about 90 MiB (numpy, pyarrow, the readers), 60 MiB of text and decoded events on their way, and
per MB of uncompressed text 0.25 MiB of columns (3,200 events of 37 bytes, twice while they are put in order; measured
in benchmarks/results/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.pool import count_cpus
from stepscope.readers.inflate import is_gzip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MIB = 1 << 20
_PROCESS_BYTES = 150 * _MIB
_COLUMN_BYTES_PER_BYTE = 0.27
_INFLATED = 14  # bytes of trace text a byte of gzip, at most: 12 to 14 in recorded traces
_WORTH_A_PROCESS = 20 * _MIB  # of gzip: below, a second process costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """`workers` None: as many as processors, files and memory allow. The memory limit is for all of them together."""

    workers: int | None = 1
    ray: bool = False
    memory_limit_bytes: int | None = None

    def count_workers(self, paths: Sequence[Path]) -> int | None:
        """How many files to read at a time; None: what the cluster has."""
        if self.ray:
            return self.workers
        sizes = [_text_bytes(path) for path in paths]
        if self.workers is None and sum(sizes) < _WORTH_A_PROCESS * _INFLATED:
            return 1
        wanted = min(self.workers or count_cpus(), max(len(paths), 1))
        if self.memory_limit_bytes is not None and sizes:
            largest = _PROCESS_BYTES + _COLUMN_BYTES_PER_BYTE * max(sizes)
            wanted = min(wanted, max(int(self.memory_limit_bytes // largest), 1))
        return wanted


ONE_AT_A_TIME = Concurrency()


def _text_bytes(path: Path) -> int:
    """About how much text a file holds; of a profile that is a directory, its files together."""
    if path.is_dir():
        return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())
    size = path.stat().st_size
    return size * _INFLATED if is_gzip(path) else size

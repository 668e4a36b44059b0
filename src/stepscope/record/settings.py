"""What the environment asks of the recorder. The engine's processes inherit it; nothing else configures them.

STEPSCOPE_RECORD=1            record (`force`: also in an engine version that was never tried)
STEPSCOPE_STEP_LOG=DIR        write the step log there; without it only markers are made
STEPSCOPE_EXPERTS=N           count experts in every Nth step (needs a step log; 0: not at all)
STEPSCOPE_HASH_IDS=1          hash every request id
STEPSCOPE_LOG_FILE_BYTES, STEPSCOPE_LOG_FILES, STEPSCOPE_LOG_QUEUE_BYTES   size of a file, files kept, queue's bound
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The recorder's settings; sizes in bytes."""

    is_on: bool = False
    is_forced: bool = False
    folder: Path | None = None
    expert_interval: int = 0
    is_hashing: bool = False
    file_bytes: int = 64 << 20
    num_files: int = 16
    queue_bytes: int = 4 << 20

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables; what cannot be read has its default."""
        wish = environment.get("STEPSCOPE_RECORD", "").strip().lower()
        folder = environment.get("STEPSCOPE_STEP_LOG", "").strip()
        return cls(
            is_on=wish in ("1", "true", "yes", "on", "force"),
            is_forced=wish == "force",
            folder=Path(folder).absolute() if folder else None,
            expert_interval=_number(environment, "STEPSCOPE_EXPERTS", 0),
            is_hashing=environment.get("STEPSCOPE_HASH_IDS", "") == "1",
            file_bytes=_number(environment, "STEPSCOPE_LOG_FILE_BYTES", 64 << 20),
            num_files=_number(environment, "STEPSCOPE_LOG_FILES", 16),
            queue_bytes=_number(environment, "STEPSCOPE_LOG_QUEUE_BYTES", 4 << 20),
        )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environment.get(name, "").strip() or default)
    except ValueError:
        return default

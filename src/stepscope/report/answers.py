"""Answers kept in a run folder: a report is read again in milliseconds, as long as nothing that it rests on changed.

An answer's name is the hash of the run's content, the program's own files, the user's catalogs and the device that was
asked for. So an answer is never stale, only unused, and what is unused is removed when there are many.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stepscope
from stepscope.store.run import content_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "answers"  # of a run folder: kept, no part of the recording
_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """The place of one answer in a run folder."""

    path: Path

    def read(self) -> dict[str, Any] | None:
        """The document, if it is there and whole."""
        try:
            document: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document

    def write(self, document: dict[str, Any]) -> None:
        """Keep it; where the folder cannot be written, it is not kept."""
        with suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            handle, aside = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as out:
                    json.dump(document, out, ensure_ascii=False)
                Path(aside).replace(self.path)
            finally:
                Path(aside).unlink(missing_ok=True)
            for old in sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]:
                old.unlink(missing_ok=True)


def find_answer(run: Path, catalogs: Sequence[Path], device: str | None) -> KeptAnswer:
    """Where the answer to this question about this run is kept, if it is."""
    digest = hashlib.sha256()
    asked = (content_of(run), str(run), stepscope.__version__, _program(), device or "")
    for text in (*asked, *(_text(path) for path in catalogs)):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return KeptAnswer(path=run / FOLDER / f"{digest.hexdigest()[:32]}.json")


def _program() -> str:
    """The program's files by size and time: an edited catalog or a new version gives another answer."""
    root = Path(stepscope.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".toml"))
    return " ".join(f"{path.relative_to(root)}:{(s := path.stat()).st_size}:{s.st_mtime_ns}" for path in files)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # reading it as a catalog says what is wrong

"""Reference counts of 21 published models, with their source in the file itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REFERENCE: dict[str, Any] = json.loads(Path(__file__).with_name("reference.json").read_text(encoding="utf-8"))["models"]
MODELS = tuple(REFERENCE)

"""The environment of an engine that loads the recorder and the truth plugin, without installing either."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
_GIVEN = os.environ.get("STEPSCOPE_ENGINE_PYTHON")
PYTHON = None if _GIVEN is None else (ROOT / _GIVEN).absolute()  # not resolved: a link in a venv says which venv it is

_PLUGINS = {
    "stepscope_record": (ROOT / "src" / "stepscope" / "record", "stepscope_record.vllm_plugin:register"),
    "stepscope_truth": (ROOT / "tests" / "engine" / "truth_plugin.py", "stepscope_truth:register"),
}


def plugin_folder(folder: Path) -> Path:
    """A folder for PYTHONPATH that holds both plugins as installed distributions."""
    for name, (source, entry) in _PLUGINS.items():
        info = folder / f"{name}-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {entry}\n")
        (folder / (name + source.suffix)).symlink_to(source)
    return folder


def engine_environment(folder: Path, log: Path | None = None) -> dict[str, str]:
    """Recording to `log` (default: FOLDER/log), the truth to FOLDER/truth."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": str(plugin_folder(folder / "plugins")),
        "STEPSCOPE_RECORD": "1",
        "STEPSCOPE_STEP_LOG": str(log or folder / "log"),
        "STEPSCOPE_EXPERTS": "1",
        "STEPSCOPE_TRUTH": str(folder / "truth"),
    }

"""The vLLM entry point (`vllm.general_plugins`): patches the scheduler and the workers of a version that was tried.

vLLM calls `register` in each of its processes before anything is built. Nothing is imported here that the process would
not import itself: the patches wait for their modules. Off unless STEPSCOPE_RECORD says otherwise (see settings).
"""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING

from .guard import Guard
from .import_hook import patch_on_import
from .scheduler_hook import patch_scheduler
from .settings import Settings
from .worker_hook import patch_ascend_worker, patch_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Versions whose source was checked (docs/record.md lists what was run): from and up to, minor version by minor version.
FIRST_VERSION = (0, 16)
LAST_VERSION = (0, 32)

# What is patched: module -> class -> the methods that must be there, with their first arguments.
HOOKS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "vllm.v1.core.sched.scheduler": {
        "Scheduler": {
            "__init__": ("self", "vllm_config"),
            "schedule": ("self",),
            "add_request": ("self", "request"),
            "finish_requests": ("self", "request_ids", "finished_status"),
            "update_from_output": ("self", "scheduler_output"),
            "_free_request": ("self", "request"),
            "get_request_counts": ("self",),
        }
    },
    "vllm.v1.worker.gpu_worker": {"Worker": {"annotate_profile": ("self", "scheduler_output")}},
    "vllm_ascend.worker.worker": {"NPUWorker": {"execute_model": ("self", "scheduler_output")}},
}
_PATCHES: dict[str, Callable[[ModuleType, Settings, str], None]] = {
    "vllm.v1.core.sched.scheduler": patch_scheduler,
    "vllm.v1.worker.gpu_worker": patch_worker,
    "vllm_ascend.worker.worker": patch_ascend_worker,
}
_GUARD = Guard()
_registered: list[str] = []


def register() -> None:
    """Turn recording on in this process, if it is asked for. Never raises."""
    with _GUARD("starting to record"):
        settings = Settings.from_environment()
        if not settings.is_on or _registered:
            return
        version = _engine_version()
        if not settings.is_forced and not is_known(version):
            _GUARD.say(
                f"vLLM {version} was never tried (known: {_show(FIRST_VERSION)} to {_show(LAST_VERSION)}); nothing is "
                "recorded. STEPSCOPE_RECORD=force tries it all the same."
            )
            return
        _registered.append(version)
        patch_on_import({name: functools.partial(_patch, settings, version, name) for name in _PATCHES})


def is_known(version: str) -> bool:
    """Whether the plugin has been checked against this engine version.

    >>> is_known("0.32.0+cpu"), is_known("0.33.0"), is_known("dev")
    (True, False, False)
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return bool(match) and FIRST_VERSION <= (int(match[1]), int(match[2])) <= LAST_VERSION if match else False


def _patch(settings: Settings, version: str, name: str, module: ModuleType) -> None:
    with _GUARD(f"patching {name}"):
        missing = [
            f"{cls}.{method}"
            for cls, methods in HOOKS[name].items()
            for method in methods
            if not callable(getattr(getattr(module, cls, None), method, None))
        ]
        if missing:
            _GUARD.say(f"vLLM {version} has no {', '.join(missing)} in {name}; that side is not recorded")
            return
        _PATCHES[name](module, settings, version)


def _engine_version() -> str:
    engine = sys.modules.get("vllm")
    return str(getattr(engine, "__version__", "unknown"))


def _show(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))

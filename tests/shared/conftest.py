"""Where the larger captures lie: STEPSCOPE_TRACES, or `shared/traces` beside the checkout; skipped where neither is."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope.answers.account import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.answers.account import Account

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def traces() -> Path:
    folder = Path(os.environ.get("STEPSCOPE_TRACES") or ROOT.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip("the larger captures are not here: set STEPSCOPE_TRACES to the folder that holds them")
    return folder


@pytest.fixture(scope="module")
def account(traces: Path) -> Callable[[str], Account]:
    """Accounts by path below the folder, each made once a module."""
    return cache(lambda name: explain(traces / name))

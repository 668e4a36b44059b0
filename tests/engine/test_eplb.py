"""Our placement of experts against the engine's own EPLB policy on random counts; set up as test_scheduler is."""

from __future__ import annotations

import json
import os
import subprocess
from random import Random

import pytest

from stepscope.simulate.expert_balance import imbalance, place_balanced
from tests.engine.real_scheduler import QUIET, ROOT

PYTHON = os.environ.get("STEPSCOPE_ENGINE_PYTHON")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]
SCRIPT = """
import json, sys, torch
from vllm.distributed.eplb.policy.default import DefaultEplbPolicy as policy
for line in sys.stdin:
    rows, ranks, slots = json.loads(line)
    print(json.dumps(policy.rebalance_experts(torch.tensor([rows]), slots, 1, 1, ranks)[0].tolist()))
"""


def test_same_placement_as_the_engines_policy() -> None:
    rng = Random(5)
    cases = []
    for _ in range(200):
        ranks = rng.choice([2, 4, 8])
        rows = rng.sample(range(100_000), 32)  # no two alike: their order is not the policy's
        cases.append((rows, ranks, 32 + rng.choice([0, 8, 16])))
    told = "\n".join(json.dumps(case) for case in cases)
    command = [str((ROOT / str(PYTHON)).absolute()), "-c", SCRIPT]
    done = subprocess.run(command, input=told, env={**os.environ, **QUIET}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(theirs) == len(cases)
    for (rows, ranks, slots), flat in zip(cases, theirs, strict=True):
        size = slots // ranks
        placed = tuple(tuple(flat[first : first + size]) for first in range(0, slots, size))
        assert imbalance(rows, place_balanced(rows, ranks, slots - 32)) == pytest.approx(imbalance(rows, placed))

"""Retiming recorded runs with nothing changed gives them back, or says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepscope.answers.retime import TOLERANCE, Retimed, retime
from stepscope.answers.walk import NOTHING_CHANGED, Changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.answers.account import Account

pytestmark = pytest.mark.shared

# every capture below the folder in which something marks steps
CAPTURES = (
    *(
        f"vllm-cpu/{name}"
        for name in (
            "dense-pp2-small", "dense-tp1-small-default", "dense-tp1-small-nostack", "dense-tp2-mixed",
            "dense-tp2-recompile-badjson", "dense-tp2-small", "dense-v2runner-tp2", "dsv4-interp-tiny", "mla-tp2-small",
            "moe-tp1-experts", "moe-tp1-small", "moe-tp2-small", "serve-nostack/manual_rank0*",
        )
    ),
    "public/tracelens/vllm-b200-tp8-eager-prefill.json.gz",
    "public/tracelens/sglang-qwen3-30b-a3b-decode-B300.json.gz",
    "public/tracelens/sglang-qwen3-30b-a3b-decode-MI300.json.gz",
    "public/tracelens/sglang-mi300x-qwen3-8b-decode/sglang_Qwen3-8B_decode.json.gz",
    "public/tracelens/vllm-mi300x-mixed-piecewise/graph_execution.json.gz",
    "public/hta/a100-graphs-rank0.json.gz",
    "public/hta/cpu-only-rank34.json.gz",
    "public/hta/mi250-toy.json.gz",
    "public/hta/sampled-rank0.json.gz",
    "public/hta/sampled-rank1.json.gz",
    "public/hta/v100-ns-resolution.json.gz",
    "public/kineto/resnet50_nw4.json.gz",
    "public/param/dlrm-8ranks",
    "public/nsys/mfu_2gpu_after.sqlite",
    "public/nsys/mfu_2gpu_before.sqlite",
    *(
        f"ascend/910b-train-{export}/{level}_ascend_pt"
        for export in ("text", "db")
        for level in ("level0/rank0", "level1/rank0", "level1/rank1", "level2/rank0")
    ),
)  # fmt: skip

# a what-if on these is refused, for a reason that says this
REFUSED = {
    "public/hta/a100-graphs-rank0.json.gz": "belongs to no step",
    "public/hta/mi250-toy.json.gz": "1 of 2 steps have no kernel",
    "public/nsys/mfu_2gpu_after.sqlite": "a graph as one item",
    "public/nsys/mfu_2gpu_before.sqlite": "a graph as one item",
    "ascend/910b-train-text/level0/rank0_ascend_pt": "do not explain",
    "ascend/910b-train-text/level1/rank1_ascend_pt": "the clocks of host and device",
    "ascend/910b-train-db/level0/rank0_ascend_pt": "the clocks of host and device",
}


@pytest.fixture(scope="module")
def retimed(account: Callable[[str], Account]) -> dict[str, tuple[Retimed, ...]]:
    return {name: retime(account(name), NOTHING_CHANGED).ranks for name in CAPTURES}


def test_recorded_spans_are_reproduced(retimed: dict[str, tuple[Retimed, ...]]) -> None:
    close = [name for name, ranks in retimed.items() if all(abs(rank.error) < TOLERANCE for rank in ranks)]
    assert len(close) >= 0.9 * len(CAPTURES), sorted(set(CAPTURES) - set(close))


def test_what_is_refused_is_known_with_its_reason(retimed: dict[str, tuple[Retimed, ...]]) -> None:
    refused = {name: ranks[0].refusal for name, ranks in retimed.items() if ranks[0].refusal is not None}
    assert set(refused) == set(REFUSED)
    for name, reason in REFUSED.items():
        assert reason in (refused[name] or "")
    for name, ranks in retimed.items():
        for rank in ranks:
            if rank.refusal is None:
                assert rank.saving_ns == 0, name
                assert sum(rank.critical_ns.values()) == rank.retimed_ns, name


def test_a_host_bound_prefill_gains_from_the_host_alone(account: Callable[[str], Account]) -> None:
    """The eager prefill step of the B200 capture: 86 % of its window the device waits for the host."""
    capture = account("public/tracelens/vllm-b200-tp8-eager-prefill.json.gz")
    (device,) = retime(capture, Changes(categories={"compute": 0.5})).ranks
    assert device.saving_ns is not None
    assert device.saving_ns < 0.001 * device.recorded_ns
    (host,) = retime(capture, Changes(host=0.1)).ranks
    assert host.retimed_ns == pytest.approx(11.6e6, rel=0.02)  # what the device is busy

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stepscope.record.settings import Settings
from stepscope.record.sglang_plugin import around, is_known
from stepscope.record.step_log import ROW_FIELDS, Damage, read_records

if TYPE_CHECKING:
    from pathlib import Path


class Scheduler:
    """As far as the hook looks."""

    def __init__(self) -> None:
        self.forward_ct = 0
        self.running_batch = SimpleNamespace(reqs=[1, 2])
        self.waiting_queue = [3]
        self.server_args = SimpleNamespace(tp_size=2, pp_size=1, dp_size=1)
        self.tp_rank = 1

    def run_batch(self, batch: Any) -> str:
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct
        return "result"


def request(name: str, prompt: int, output: int = 0) -> Any:
    return SimpleNamespace(rid=name, origin_input_ids=[0] * prompt, output_ids=[0] * output, retraction_count=0)


def batch(mode: str, requests: list[Any], **more: Any) -> Any:
    fields = {"decoding_reqs": None, "extend_lens": None, "prefix_lens": None, "spec_info": None, **more}
    return SimpleNamespace(forward_mode=SimpleNamespace(name=mode), reqs=requests, **fields)


def lengths(*values: int) -> Any:
    return SimpleNamespace(tolist=lambda: list(values))


def test_batches_are_logged_with_their_rows_and_forward_number(tmp_path: Path) -> None:
    hook = around(Settings(is_on=True, folder=tmp_path), "0.5.23")
    scheduler, a, b = Scheduler(), request("a", 100), request("b", 10, 3)
    batches = [
        batch("EXTEND", [a], extend_lens=[60], prefix_lens=[16]),
        batch("MIXED", [a, b], extend_lens=[24, 1], prefix_lens=[76, 12], decoding_reqs=[b]),
        batch("DECODE", [a, b], seq_lens_cpu=lengths(101, 14)),
        batch("DECODE", [request(str(i), 10, 1) for i in range(40)], seq_lens_cpu=lengths(*[11] * 40)),
        batch("TARGET_VERIFY", [a]),
        batch("IDLE", []),
    ]
    for item in batches:
        assert hook(Scheduler.run_batch, scheduler, item) == "result"
    scheduler.__dict__["_stepscope_recorder"]._channel.close(10)
    end = time.monotonic() + 20
    steps: list[dict[str, Any]] = []
    while len(steps) < 5 and time.monotonic() < end:
        time.sleep(0.05)
        records = [r for p in tmp_path.glob("*.steplog") for r in read_records(p.read_bytes())]
        steps = [r for r in records if not isinstance(r, Damage) and r["kind"] == "step"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 6]
    assert [step["num_scheduled_tokens"] for step in steps] == [60, 25, 2, 40, 0]
    assert all(len(row) == len(ROW_FIELDS) for step in steps for row in step["rows"])
    assert [row[:6] for row in steps[0]["rows"]] == [["a", 60, 76, 16, "prefill", 0]]
    assert [row[:6] for row in steps[1]["rows"]] == [
        ["a", 24, 100, 16, "prefill", 1],
        ["b", 1, 13, None, "decode", None],
    ]
    assert [row[:3] for row in steps[2]["rows"]] == [["a", 1, 101], ["b", 1, 14]]
    assert steps[3]["decodes"] == [40, 40, 440, 40, 440, 11]
    assert steps[0]["num_waiting"] == 1


def test_a_batch_that_is_not_understood_runs_all_the_same(tmp_path: Path) -> None:
    hook = around(Settings(is_on=True, folder=tmp_path), "0.5.23")
    broken = batch("EXTEND", [request("a", 5)], extend_lens=None)
    assert hook(Scheduler.run_batch, Scheduler(), broken) == "result"


def test_only_checked_versions_are_known() -> None:
    assert is_known("0.5.15")
    assert not is_known("0.5.24")
    assert not is_known("0.6.0")

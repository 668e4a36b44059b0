"""A log that the simulator wrote is fitted back and its other half predicted; refusals; clocks; no look at held-out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.batch import BatchShape, Row
from stepscope.calibrate.request_log import LoggedRequest, read_request_log
from stepscope.calibrate.requests import EngineSetup, Latencies, fit_requests, mean_error, predict_requests
from stepscope.calibrate.step_form import NUM_TERMS, StepForm
from stepscope.errors import BadInput
from stepscope.latency import RequestTimes
from stepscope.simulate.scheduler import SchedulerRules

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES = SchedulerRules(
    max_num_batched_tokens=512,
    max_num_seqs=16,
    max_model_len=4096,
    num_blocks=4000,
    enable_prefix_caching=False,
    async_scheduling=True,
)
#               step  mixed row   decode_kv query_kv token past_256 past_512 experts shared
DENSE = StepForm(coefficients=(8e-3, 2e-3, 4e-5, 2e-7, 2e-9, 1e-5, 3e-5, 0.0, 0.0, 0.0))
EXPERTS = StepForm(coefficients=(6e-3, 2e-3, 4e-5, 2e-7, 2e-9, 1e-5, 2e-5, 0.0, 4e-3, 1e-5), saturation=16.0)
ONE = EngineSetup(rules=RULES)
TWO = EngineSetup(rules=RULES, num_ranks=2, saturation=16.0)


def log_of(setup: EngineSetup, form: StepForm, count: int, per_s: float) -> list[LoggedRequest]:
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / per_s, count))
    asked = [
        LoggedRequest(
            request_id=str(number),
            prompt_len=int(rng.integers(20, 1200)),
            times=RequestTimes(arrival_s=float(arrivals[number]), output_len=int(rng.integers(10, 120))),
        )
        for number in range(count)
    ]
    run = setup.run(asked, form)
    return [replace(each, times=done.times) for each, done in zip(asked, run.requests, strict=True)]


@pytest.mark.parametrize(
    ("setup", "form", "per_s"), [(ONE, DENSE, 60.0), (TWO, EXPERTS, 90.0)], ids=["one", "lockstep"]
)
def test_a_simulated_log_is_fitted_back_and_predicts_its_other_half(
    setup: EngineSetup, form: StepForm, per_s: float
) -> None:
    log = log_of(setup, form, 120, per_s)
    rng = np.random.default_rng(0)
    fit = fit_requests(log, setup, 60, rng)
    measured, predicted = Latencies.of(log), predict_requests(log, setup, fit.form, rng)
    for name in ("ttft_s", "decode_s", "e2el_s"):
        errors = np.abs(getattr(predicted, name) / getattr(measured, name) - 1)
        assert np.median(errors[60:]) < 0.01, name


def test_held_out_times_are_not_looked_at() -> None:
    log = log_of(ONE, DENSE, 40, 12.0)
    blind = [
        *log[:20],
        *(replace(each, times=replace(each.times, first_token_s=None, last_token_s=None)) for each in log[20:]),
    ]
    seen = fit_requests(log, ONE, 20, np.random.default_rng(0))
    assert fit_requests(blind, ONE, 20, np.random.default_rng(0)) == seen


def test_the_table_and_the_function_of_one_form_agree() -> None:
    form = replace(EXPERTS, coefficients=(*EXPERTS.coefficients[:-1], 0.0))
    table = form.step_time(600)
    rows = (
        *(Row(query_len=1, context_len=100 * n, phase="decode") for n in range(1, 9)),
        Row(query_len=500, context_len=64, phase="prefill"),
    )
    for count in (1, 5, 9):
        shape = BatchShape.from_rows(rows[:count])
        assert form.group_ticks([shape]) / table.ticks(shape) == pytest.approx(1, rel=1e-6)


def test_a_step_of_ranks_by_hand() -> None:
    decode = BatchShape.from_rows((Row(query_len=1, context_len=99, phase="decode"),) * 4)
    prefill = BatchShape.from_rows((Row(query_len=300, context_len=0, phase="prefill"),))
    form = StepForm(coefficients=(1.0,) * NUM_TERMS)
    # the busiest rank: 300 x 300 of the prefill against 4 rows of 100; 304 tokens and a dummy's, 300 on the longest
    assert form.terms([decode, prefill, None]) == (1, 1, 0, 0, 90_000, 300, 44, 0, 0, 5)


def test_an_error_counts_as_one_at_most() -> None:
    one = np.array([1.0])
    measured = Latencies(ttft_s=one, decode_s=one * 0, e2el_s=one)
    assert mean_error(Latencies(ttft_s=one * 9, decode_s=one, e2el_s=one * 1.5), measured) == pytest.approx(0.75)


@pytest.mark.parametrize("num_fitted", [19, 41])
def test_too_few_or_too_many_are_refused(num_fitted: int) -> None:
    log = log_of(ONE, DENSE, 40, 12.0)
    with pytest.raises(BadInput, match=f"first {num_fitted} of 40"):
        fit_requests(log, ONE, num_fitted, np.random.default_rng(0))


def test_a_fitted_request_without_times_is_refused() -> None:
    log = log_of(ONE, DENSE, 40, 12.0)
    log[3] = replace(log[3], times=replace(log[3].times, first_token_s=None))
    with pytest.raises(BadInput, match="request '3' has no time"):
        fit_requests(log, ONE, 20, np.random.default_rng(0))


@pytest.mark.parametrize("coefficients", [(1.0,) * 3, (-1.0,) * NUM_TERMS, (float("nan"),) * NUM_TERMS])
def test_coefficients_that_are_no_costs_are_refused(coefficients: Sequence[float]) -> None:
    with pytest.raises(BadInput, match="coefficients of 0 or more"):
        StepForm(coefficients=tuple(coefficients))


def lines(*rows: dict[str, object]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


ROW: dict[str, object] = {"input_toks": 10, "output_toks": 3, "first_token_ts": 7.0, "last_token_ts": 8.0}


def test_the_least_lag_sets_the_clocks_offset(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    rows = [
        ROW | {"arrival_time": 1001.0, "queued_ts": 6.5},
        ROW | {"arrival_time": 1000.0, "queued_ts": 5.1},
        ROW | {"arrival_time": 1001.5, "queued_ts": 6.55},  # the least lag, but it is not fitted
    ]
    path.write_text(lines(*rows), encoding="utf-8")
    assert [each.times.arrival_s for each in read_request_log(path, num_fitted=2)] == pytest.approx([0, 1, 1.5])
    first = read_request_log(path, num_fitted=2)[0]
    assert (first.request_id, first.prompt_len, first.times.output_len) == ("1", 10, 3)
    assert first.times.ttft_s == pytest.approx(7.0 - 5.1)
    assert read_request_log(path)[0].times.ttft_s == pytest.approx(7.0 - 5.05)
    assert [each.times.arrival_s for each in read_request_log(path, by_queue=True)] == pytest.approx([0, 1.4, 1.45])


def test_a_log_without_the_clients_clock_counts_from_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(lines(ROW | {"queued_ts": 6.0}, ROW | {"queued_ts": 6.5, "arrival_time": None}), encoding="utf-8")
    assert [each.times.arrival_s for each in read_request_log(path)] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no request"),
        ("{}", "line 1"),
        ("not json", "line 1"),
        (lines(ROW | {"queued_ts": None}), "line 1"),
        (lines(ROW | {"queued_ts": 6.0, "output_toks": 0}), "line 1: a request without a prompt or without an output"),
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=told):
        read_request_log(path)

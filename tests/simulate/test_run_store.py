"""A simulated run is a run folder: its steps are the simulation's, its time adds up, and nothing claims a recording."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stepscope.answers.account import explain
from stepscope.answers.recorded_load import read_measured_times, read_recorded_load
from stepscope.errors import BadInput
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.report.charts import make_charts
from stepscope.report.document import to_document
from stepscope.report.html import render_html
from stepscope.simulate.run_store import SIMULATED_TABLES, to_store, write_simulated_run
from stepscope.simulate.scenario import Outcome, Scenario, run_scenario
from stepscope.simulate.step_costs import Served
from stepscope.store.trace import Trace
from tests.simulate.loads import ENGINE, plain_scenario, poisson_load

DESCRIBED = {"rules": {"block_size": 16}}


@pytest.fixture(scope="module")
def plain() -> Outcome:
    return run_scenario(plain_scenario())


@pytest.fixture(scope="module")
def modelled() -> Outcome:
    served = Served(model="qwen3-30b-a3b", hardware="h200")
    return run_scenario(Scenario(requests=poisson_load(), engine=replace(ENGINE, host_s=0.001), served=served))


@pytest.mark.parametrize("name", ["plain", "modelled"])
def test_its_steps_are_the_simulations(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outcome: Outcome = request.getfixturevalue(name)
    account = explain(str(write_simulated_run(outcome, tmp_path / "run", DESCRIBED)))
    (rank,) = account.ranks
    assert len(rank.table.steps) == outcome.shown.num_steps
    for step, simulated in zip(rank.table.steps, outcome.shown.steps, strict=True):
        assert (step.boundary.shape.prefill, step.boundary.shape.decode) == (
            simulated.shape.prefill,
            simulated.shape.decode,
        )
        assert step.boundary.grade == "simulated"
        assert step.boundary.start_ns == round(1e9 * simulated.start_s)
        assert step.boundary.end_ns == round(1e9 * simulated.end_s)


def test_its_time_is_wait_host_work_and_parts_of_steps(modelled: Outcome) -> None:
    account = explain(_trace(modelled))
    total = account.ranks[0].budget.total
    host_ns = sum(1 for _ in modelled.shown.steps) * 1_000_000
    assert total.exclusive_ns["host"] == pytest.approx(host_ns, rel=1e-3)
    ran = sum(step.end_s - step.start_s for step in modelled.shown.steps)
    assert (total.exclusive_ns["compute"] or 0) == pytest.approx(1e9 * ran, rel=1e-3)
    assert total.exclusive_ns["unknown"] == total.exclusive_ns["unmatched"] == 0
    families = {family for category, family in account.ranks[0].budget.step_families if category == "compute"}
    assert {"gemm", "experts", "attention", "norm"} <= families


def test_step_times_that_are_no_models_are_not_divided(plain: Outcome) -> None:
    total = explain(_trace(plain)).ranks[0].budget.total
    assert (total.exclusive_ns["unmatched"] or 0) > 0  # what follows the tokens
    assert (total.exclusive_ns["compute"] or 0) > 0  # what follows the history


def test_no_number_of_its_report_is_more_than_simulated(modelled: Outcome) -> None:
    document = to_document(explain(_trace(modelled)))
    assert {item["lane"] for item in document["inputs"]} == {"simulated"}
    assert document["coverage"]["reasons"] == []
    assert document["steps"]["grade"] == "simulated"
    assert {question["grade"] for question in document["questions"]} == {"simulated", "refused"}
    assert {finding["grade"] for finding in document["findings"]} <= {"simulated"}
    assert {chart.grade for chart in make_charts(document)} <= {"simulated", "refused"}
    page = render_html(document)
    shown = page[: page.index('id="method"')] if 'id="method"' in page else page
    for grade in ("recorded", "classified", "derived"):
        assert f'class="grade grade-{grade}" title' not in shown.split('<dl class="terms">')[0]


def test_stretches_hold_every_step_and_requests_every_request(plain: Outcome, tmp_path: Path) -> None:
    folder = write_simulated_run(plain, tmp_path / "run", DESCRIBED)
    steps = pq.read_table(folder / "simulated_steps.parquet").to_pylist()
    assert sum(row["num_repeats"] for row in steps) == plain.shown.num_steps
    assert len(steps) < plain.shown.num_steps
    assert sum(row["num_repeats"] * row["num_scheduled_tokens"] for row in steps) == plain.shown.num_scheduled_tokens
    for name, columns in SIMULATED_TABLES.items():
        assert pq.read_table(folder / f"{name}.parquet").column_names == [column.name for column in columns]
    described = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["inputs"][0]
    assert described["reader"] == "simulation"
    assert described["metadata"]["simulation"] == DESCRIBED


def test_its_requests_can_be_simulated_again(plain: Outcome, tmp_path: Path) -> None:
    rules = {"rules": {"block_size": 16, "max_num_seqs": 8}}
    load = read_recorded_load(write_simulated_run(plain, tmp_path / "run", rules))
    assert load.requests == plain.scenario.requests
    assert load.rules == rules["rules"]
    for read, request in zip(read_measured_times(tmp_path / "run"), plain.shown.requests, strict=True):
        assert read.ttft_s == pytest.approx(request.times.ttft_s)
        assert read.e2el_s == pytest.approx(request.times.e2el_s)


def test_the_same_simulation_gives_the_same_bytes(plain: Outcome, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_simulated_run(run_scenario(plain_scenario()), tmp_path / name, DESCRIBED)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def _trace(outcome: Outcome) -> Trace:
    return Trace(source="simulated", stores=(to_store(outcome, DESCRIBED),))


def test_every_rank_has_a_store_and_a_pipeline_has_none(tmp_path: Path) -> None:
    served = Served(model="qwen3-8b", hardware="h200", deployment=Deployment(plan=ParallelPlan(dp=2)))
    replicas = Scenario(requests=poisson_load(), engine=ENGINE, served=served)
    account = explain(str(write_simulated_run(run_scenario(replicas), tmp_path / "run", DESCRIBED)))
    assert [rank.rank for rank in account.ranks] == [0, 1]
    staged = replace(served, deployment=Deployment(plan=ParallelPlan(pp=2)))
    with pytest.raises(BadInput, match="steps of a pipeline overlap"):
        write_simulated_run(run_scenario(replace(replicas, served=staged)), tmp_path / "pipe", DESCRIBED)
    assert not (tmp_path / "pipe").exists()

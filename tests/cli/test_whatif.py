"""calibrate and whatif: a recorded load comes back as it was measured, and only then a change is answered."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.answers.recorded_load import read_recorded_load
from stepscope.cli.simulate_view import to_rules
from stepscope.cost.calibration_file import read_calibration, write_calibration
from stepscope.record.step_log import encode
from stepscope.simulate.run_store import write_simulated_run
from stepscope.simulate.scenario import Scenario, run_scenario
from tests.cli.program import EXAMPLE, done, run
from tests.join.evidence import START_NS, row
from tests.simulate.loads import plain_calibration, plain_scenario, poisson_load

TRUTH = EXAMPLE / "truth.jsonl"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step log that an engine with known step times would have written: the simulator's own schedule."""
    scenario = replace(plain_scenario(), requests=poisson_load(count=40))
    return write_log(tmp_path_factory.mktemp("log") / "steps", scenario)


@pytest.fixture(scope="module")
def fitted(recorded: Path) -> Path:
    """Its calibration's file."""
    file = recorded.parent / "cal.toml"
    assert "unseen steps, all" in done("calibrate", recorded, "-o", file)
    return file


def write_log(folder: Path, scenario: Scenario) -> Path:
    """A scheduler's log of a simulation: steps when they are scheduled, requests as they come and end."""
    outcome = run_scenario(scenario, steps="rows")
    engine = scenario.engine
    records: list[tuple[float, dict[str, Any]]] = []
    for number, step in enumerate(outcome.shown.steps):
        rows = [
            row(each.request_id or "", each.query_len, each.kv_len, each.phase, **_of(scenario, each.request_id, each))
            for each in step.shape.rows or ()
        ]
        at = step.start_s - outcome.costs.shown.host_s
        records.append(
            (at, {"kind": "step", "step_id": number, "num_scheduled_tokens": sum(r[1] for r in rows), "rows": rows})
        )
    for request in outcome.shown.requests:
        times = request.times
        assert times.last_token_s is not None
        common = {"kind": "request", "request_id": request.request_id, "prompt_len": request.prompt_len}
        records.append((times.arrival_s, common | {"event": "added"}))
        records.append((times.last_token_s, common | {"event": "finished", "num_output_tokens": times.output_len}))
    records.sort(key=lambda record: record[0])
    header = {
        "kind": "header", "format": "stepscope-step-log", "version": 1, "role": "scheduler", "stream_id": "s0",
        "file_index": 0, "first_seq": 0, "num_removed_files": 0, "dp_rank": 0, "engine": "vllm",
        "token_budget": engine.max_num_batched_tokens, "max_num_seqs": engine.max_num_seqs,
        "block_size": engine.block_size, "num_blocks": engine.num_blocks,
    }  # fmt: skip
    numbered = [
        {"seq": seq, "time_ns": START_NS + round(1e9 * at)} | record for seq, (at, record) in enumerate(records)
    ]
    folder.mkdir(parents=True)
    (folder / "scheduler-s0-0.steplog").write_bytes(b"".join(encode(record) for record in (header, *numbered)))
    return folder


def _of(scenario: Scenario, name: str | None, each: Any) -> dict[str, Any]:
    request = next(request for request in scenario.requests if request.request_id == name)
    return {"prompt_len": request.prompt_len, "prefix_hit_tokens": each.prefix_hit_tokens, "num_preemptions": 0}


def asked(*arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done("whatif", *arguments, "-f", "json"))
    return document


def test_a_log_gives_the_requests_back(recorded: Path) -> None:
    load = read_recorded_load(recorded)
    requests = poisson_load(count=40)
    assert load.num_left_out == 0
    begin = min(request.arrival_s for request in requests)
    for read, request in zip(load.requests, requests, strict=True):
        assert (read.request_id, read.prompt_len, read.output_len) == (
            request.request_id,
            request.prompt_len,
            request.output_len,
        )
        assert read.arrival_s == pytest.approx(request.arrival_s - begin, abs=1e-8)


def test_the_recorded_run_is_reproduced_and_a_change_is_answered(recorded: Path) -> None:
    document = asked(recorded, "--set", "max_num_seqs=2")
    assert document["is_reproduced"]
    rows = {(row["name"], row["statistic"]): row for row in document["reproduced"]}
    assert abs(rows["e2el", "p50"]["error"]) < 0.05
    assert document["rules"]["async_scheduling"] is False  # found out, for the log does not say
    figures = {(row["name"], row["statistic"]): row for row in document["figures"]}
    ttft = figures["ttft", "p90"]
    assert ttft["low"] <= ttft["difference"] <= ttft["high"]
    assert ttft["difference"] > 0
    assert ttft["difference"] == pytest.approx(ttft["after"] - ttft["before"])


def test_text_shows_both_and_the_difference(recorded: Path, fitted: Path) -> None:
    text = done("whatif", recorded, "--calibration", fitted, "--set", "max_num_seqs=2")
    for said in ("within 20% of the measured ones", "What if max_num_seqs=2", "refits of the calibration"):
        assert said in text


def test_nothing_changed_is_no_difference(recorded: Path, fitted: Path) -> None:
    document = asked(recorded, "--calibration", fitted, "--set", "max_num_seqs=8")
    assert {row["difference"] for row in document["figures"]} == {0.0, None}
    assert asked(recorded, "--calibration", fitted)["figures"] is None


def test_a_calibration_is_written_and_read(recorded: Path, fitted: Path) -> None:
    read = read_calibration(fitted)
    assert read.fixed["step_s"].value == pytest.approx(0.006, rel=0.1)  # the host's work is in it
    assert asked(recorded, "--calibration", fitted)["cost"] == f"calibration {read.name}"


def test_what_is_not_reproduced_is_not_changed(recorded: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow.toml"
    write_calibration(plain_calibration(fixed={"step_s": plain_calibration().fixed["step_s"]}, name="slow"), slow)
    outcome = run("whatif", recorded, "--calibration", slow, "--set", "max_num_seqs=2", "--within", "0.02")
    assert outcome.code == 1
    assert "REFUSED to say what a change would do" in outcome.out
    assert "What if" not in outcome.out
    assert "beyond --within 0.02" in outcome.err


def test_a_simulated_run_reproduces_itself(tmp_path: Path) -> None:
    outcome = run_scenario(plain_scenario())
    folder = write_simulated_run(outcome, tmp_path / "run", {"rules": to_rules(outcome)})
    file = tmp_path / "plain.toml"
    write_calibration(plain_calibration(), file)
    document = asked(folder, "--calibration", file, "--set", "rate=x2")
    assert all(abs(row["error"]) < 1e-9 for row in document["reproduced"] if row["error"] is not None)
    assert {row["name"]: row for row in document["figures"]}["requests"]["difference"] > 0


def test_a_report_of_a_run_is_no_source_of_its_calibration(tmp_path: Path) -> None:
    outcome = run_scenario(replace(plain_scenario(), requests=poisson_load(count=40)))
    folder = write_simulated_run(outcome, tmp_path / "run", {"rules": to_rules(outcome)})
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    done("calibrate", folder, "-o", first)
    done("explain", folder)
    assert any((folder / "answers").iterdir())
    done("calibrate", folder, "-o", second)
    assert read_calibration(first).source == read_calibration(second).source


def test_metrics_of_a_simulated_run_are_simulated(tmp_path: Path) -> None:
    outcome = run_scenario(plain_scenario())
    folder = write_simulated_run(outcome, tmp_path / "run", {"rules": to_rules(outcome)})
    found = json.loads(done("metrics", folder, "-f", "json"))["tables"]["metrics"]
    assert {row["grade"] for row in found if row["value"] is not None} == {"simulated"}


def test_a_comparison_with_a_simulated_run_is_simulated(tmp_path: Path) -> None:
    outcome = run_scenario(plain_scenario())
    folder = write_simulated_run(outcome, tmp_path / "run", {"rules": to_rules(outcome)})
    document = json.loads(done("compare", folder, folder, "-f", "json"))
    grades = set(re.findall(r'"grade": "(\w+)"', json.dumps(document)))
    assert "simulated" in grades
    assert grades <= {"simulated", "refused"}


def test_a_real_schedulers_requests_are_read(tmp_path: Path) -> None:
    """Of the recorded vLLM example: A's 1024 shared tokens are B's hit; what is asked is what the README tells."""
    records = [json.loads(line) for line in TRUTH.read_text(encoding="utf-8").splitlines()]
    lines: list[dict[str, Any]] = []
    outputs = {"A": 7, "B": 7, "C": 6}
    for step in records:
        lines += [
            {"kind": "request", "event": "added", "time_ns": step["t_ns"] - 1000, "request_id": each["id"],
             "prompt_len": each["prompt"]}
            for each in step["reqs"] if each["new"]
        ]  # fmt: skip
        rows = [
            row(each["id"], each["q"], each["k"], "prefill" if each["k"] <= each["prompt"] else "decode",
                prompt_len=each["prompt"], prefix_hit_tokens=1024 if each["id"][0] == "B" else 0, num_preemptions=0)
            for each in step["reqs"]
        ]  # fmt: skip
        lines.append({"kind": "step", "step_id": step["step"], "time_ns": step["t_ns"], "rows": rows,
                      "num_scheduled_tokens": step["total"]})  # fmt: skip
    names = {each["id"] for step in records for each in step["reqs"]}
    lines += [
        {"kind": "request", "event": "finished", "time_ns": records[-1]["t_ns"] + 10_000_000, "request_id": name,
         "num_output_tokens": outputs[name[0]]}
        for name in sorted(names)
    ]  # fmt: skip
    header = {"kind": "header", "format": "stepscope-step-log", "version": 1, "role": "scheduler", "stream_id": "s0",
              "file_index": 0, "first_seq": 0, "num_removed_files": 0, "token_budget": 512, "max_num_seqs": 8,
              "block_size": 128}  # fmt: skip
    log = tmp_path / "scheduler-s0-0.steplog"
    log.write_bytes(b"".join(encode(each) for each in (header, *({"seq": i} | line for i, line in enumerate(lines)))))
    load = read_recorded_load(log)
    assert [(request.request_id[0], request.prompt_len, request.output_len) for request in load.requests] == [
        ("A", 1100, 7),
        ("B", 1124, 7),
        ("C", 700, 6),
    ]
    a, b, c = load.requests
    assert b.text[0].source == a.text[0].source
    assert b.text[0].length == 1024
    assert c.text[0].source not in (a.text[0].source, b.text[-1].source)
    outcome = run("calibrate", log, "-o", tmp_path / "c.toml")
    outcome.assert_refused("steps can be fitted", "Record for longer")
    write_calibration(plain_calibration(), tmp_path / "plain.toml")
    outcome = run("whatif", log, "--calibration", tmp_path / "plain.toml")
    outcome.assert_refused("does not say num_blocks", "--as-recorded num_blocks=VALUE")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "speed=2"), "unknown setting 'speed'"),
        (("--set", "tp=2"), "Give --model and --hardware"),
        (("--model", "qwen3-8b"), "--model and --hardware go together"),
        (("--within", "0"), "--within 0"),
        (("--cost", "bound"), "give --model and --hardware"),
        (("--model", "qwen3-8b", "--hardware", "h200", "--set", "tp=2"), "counts alone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_asked_is_refused(recorded: Path, fitted: Path, options: tuple[str, ...], said: str) -> None:
    given = () if "--cost" in options else ("--calibration", fitted)
    run("whatif", recorded, *given, *options).assert_refused(said)


def test_a_trace_alone_has_no_requests(tmp_path: Path) -> None:
    run("whatif", EXAMPLE).assert_refused("--steps-log")
    run("calibrate", EXAMPLE, "-o", tmp_path / "c.toml").assert_refused("steps can be fitted")

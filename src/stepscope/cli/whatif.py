"""The commands on a recorded run: calibrate (its steps) and whatif (the run again, with something changed)."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stepscope
from stepscope.answers.recorded_load import RecordedLoad, read_recorded_load
from stepscope.answers.whatif import beyond, compare_latencies, find_figure_changes
from stepscope.calibrate.measured import steps_of_table
from stepscope.calibrate.recording import NOT_RECORDED, RecordedSteps, day_of, read_recorded_steps, source_of
from stepscope.calibrate.steps import About, Modelled, calibrate_steps
from stepscope.cli.join import StepLogFolder
from stepscope.cli.options import read_trace
from stepscope.cli.predict import Size
from stepscope.cli.predict_view import write_view
from stepscope.cli.simulate import CalibrationOption, FormatOption, TpotLimit, TtftLimit, make_limits, with_settings
from stepscope.cli.simulate_view import to_rules
from stepscope.cli.tabular import TableFormat
from stepscope.cli.whatif_view import calibration_sections, whatif_sections
from stepscope.cost.calibration_file import read_calibration, write_calibration
from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput, CheckFailed
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.readers.step_log import holds_step_log
from stepscope.record.step_log import SUFFIX
from stepscope.report.answers import FOLDER
from stepscope.simulate.scenario import Outcome, Scenario, run_scenario
from stepscope.simulate.settings import find_setting, split_setting
from stepscope.simulate.step_costs import Served
from stepscope.steps.step import find_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.cost.calibration import Calibration

SCHEMA = "stepscope.whatif/1"
WITHIN = 0.2
RunPath = Annotated[Path, typer.Argument(help="A trace, a run folder, or the folder of a step log.", metavar="RUN")]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model that ran, for a cost of model or bound.")]
HardwareOption = Annotated[str | None, typer.Option("--hardware", help="The device that it ran on.")]


class CalibratedOn(StrEnum):
    """What measured steps are set against."""

    model = "model"
    bound = "bound"
    none = "none"


CostOption = Annotated[
    CalibratedOn | None,
    typer.Option(
        "--cost", help="Scale the kernel models or the bounds, or fit counts alone (default without --model)."
    ),
]


def calibrate(
    run: RunPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The calibration file to write (TOML).")],
    *,
    model: ModelOption = None,
    hardware: HardwareOption = None,
    cost: CostOption = None,
    tp: Annotated[int, Size] = 1,
    ep: Annotated[int, Size] = 1,
    pp: Annotated[int, Size] = 1,
    cp: Annotated[int, Size] = 1,
    weights: Annotated[str | None, typer.Option(help="dtype of the projections (default: the checkpoint's).")] = None,
    experts: Annotated[str | None, typer.Option(help="dtype of the routed experts (default: as --weights).")] = None,
    kv: Annotated[str, typer.Option(help="Layout of the KV cache.")] = "bf16",
    steps_log: StepLogFolder = None,
    format_: FormatOption = TableFormat.text,
) -> None:
    """Fit a run's measured step times, so that a simulation can run on them; says how well unseen steps are told."""
    plan = ParallelPlan(tp=tp, ep=ep, pp=pp, cp=cp)
    served = _served(model, hardware, Deployment(plan=plan, weights=weights, experts=experts, kv=kv))
    fitted = fit_run(run, steps_log, served, cost, plan)
    write_calibration(fitted, output)
    document = asdict(replace(fitted, draws={})) | {"num_draws": fitted.num_draws, "file": str(output)}
    rows = [{"number": name, **asdict(factor)} for name, factor in fitted.numbers.items()]
    write_view(document, rows, format_, None, calibration_sections)


def _served(model: str | None, hardware: str | None, deployment: Deployment) -> Served | None:
    if (model is None) != (hardware is None):
        raise BadInput("--model and --hardware go together: the model's price is one on a device.")
    if model is None or hardware is None:
        return None
    deployment.check(read_model(model))
    load_hardware(hardware)
    return Served(model=model, hardware=hardware, deployment=deployment)


def fit_run(
    run: Path, steps_log: Path | None, served: Served | None, cost: CalibratedOn | None, plan: ParallelPlan
) -> Calibration:
    """The calibration of one run.

    Raises:
        BadInput: the cost asked for needs a model, or too few steps can be fitted.
    """
    cost = cost or (CalibratedOn.none if served is None else CalibratedOn.model)
    modelled = None
    if cost is not CalibratedOn.none:
        if served is None:
            raise BadInput(f"--cost {cost.value} scales what a model costs on a device: give --model and --hardware.")
        modelled = Modelled(
            architecture=read_model(served.model),
            hardware=load_hardware(served.hardware),
            deployment=served.deployment,
            cost="model" if cost is CalibratedOn.model else "bound",
        )
    recorded = _read_steps(run, steps_log)
    about = About(
        name=run.name.removesuffix(SUFFIX) or "run",
        model=served.model if served else "not named",
        hardware=served.hardware if served else None,
        engine=recorded.engine,
        engine_version=recorded.engine_version,
        source=recorded.source,
        plan=plan,
    )
    return calibrate_steps(recorded.steps, about, modelled)


def _read_steps(run: Path, steps_log: Path | None) -> RecordedSteps:
    """Steps with their times: of the scheduler's log where there is one, else of the trace's first rank."""
    log = steps_log or (run if holds_step_log(run) else None)
    if log is not None:
        return read_recorded_steps(log)
    trace = read_trace(str(run))
    tables = [(store, find_steps(store)) for store in trace.stores]
    found = next(((store, table) for store, table in tables if table.counted), None)
    if found is None:
        raise BadInput(f"{run}: no engine step is in it. Name a trace with step annotations, or a step log.")
    place = Path(found[0].origin.path)
    files = [place] if place.is_file() else _recorded_files(run)
    return RecordedSteps(
        steps=steps_of_table(found[1]),
        engine=str(found[0].origin.metadata.get("engine") or NOT_RECORDED),
        engine_version=NOT_RECORDED,
        source=source_of(files, day_of(files)),
    )


def _recorded_files(run: Path) -> list[Path]:
    """A run folder's files without the answers that `explain` keeps in it: they would change the hash."""
    kept = run / FOLDER
    return sorted(path for path in run.rglob("*") if path.is_file() and kept not in path.parents)


def whatif(
    run: RunPath,
    *,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="What to change, as name=value; may be repeated.")
    ] = None,
    steps_log: StepLogFolder = None,
    calibration: CalibrationOption = None,
    model: ModelOption = None,
    hardware: HardwareOption = None,
    cost: CostOption = None,
    tp: Annotated[int, Size] = 1,
    ep: Annotated[int, Size] = 1,
    as_recorded: Annotated[
        list[str] | None, typer.Option("--as-recorded", help="What the recording does not say, as name=value.")
    ] = None,
    within: Annotated[
        float, typer.Option(help="How far simulated latencies may be off the measured ones, as a fraction.")
    ] = WITHIN,
    ttft: TtftLimit = None,
    tpot: TpotLimit = None,
    format_: FormatOption = TableFormat.text,
) -> None:
    """Simulate a recorded run again, first as it was, then changed: the difference with its interval, or a refusal."""
    if not 0 < within < float("inf"):
        raise BadInput(f"--within {within}: a fraction above 0 was expected, such as 0.2.")
    for text in (*(settings or ()), *(as_recorded or ())):
        find_setting(split_setting(text)[0])  # before anything is read or run
    limits = make_limits(ttft, tpot)
    plan = ParallelPlan(tp=tp, ep=ep)
    served = _served(model, hardware, Deployment(plan=plan))
    load = read_recorded_load(run, steps_log)
    fitted = fit_run(run, steps_log, served, cost, plan) if calibration is None else read_calibration(calibration)
    before, note = _simulate_as_recorded(load, served, fitted, as_recorded or [])
    reproduced = compare_latencies(before, load.measured)
    off = beyond(reproduced, within)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": stepscope.__version__,
        "run": str(run),
        "requests": len(load.requests),
        "notes": [*load.notes, *note, *before.costs.notes],
        "cost": before.costs.source,
        "interval": before.costs.kind,
        "rules": to_rules(before),
        "within": within,
        "reproduced": [asdict(row) | {"error": row.error} for row in reproduced],
        "is_reproduced": not off,
        "changes": list(settings or ()),
        "figures": None,
    }
    if not off and settings:
        after = run_scenario(_changed(before.scenario, settings), steps="none")
        document["figures"] = [asdict(row) for row in find_figure_changes(before, after, limits)]
    write_view(document, document["figures"] or document["reproduced"], format_, None, whatif_sections)
    if off:
        told = ", ".join(f"{row.name} {row.statistic} {_percent(row.error)}" for row in off)
        raise CheckFailed(
            f"{run}: simulated as recorded, {told} of the measured value, beyond --within {within:g}: what a change "
            "would do is not answered. Calibrate on more steps, say what the recording does not (--as-recorded), or "
            "widen it."
        )


def _changed(scenario: Scenario, settings: Sequence[str]) -> Scenario:
    """On another plan or format the device holds another number of blocks: it is worked out anew, unless it is set."""
    asked = [find_setting(split_setting(text)[0]) for text in settings]
    if any(setting.needs == "model" for setting in asked):
        scenario = replace(scenario, engine=replace(scenario.engine, num_blocks=None))
    return with_settings(scenario, settings)


def _percent(error: float | None) -> str:
    return "is not known" if error is None else f"is {100 * error:+.0f} %"


def _simulate_as_recorded(
    load: RecordedLoad, served: Served | None, fitted: Calibration, said: Sequence[str]
) -> tuple[Outcome, tuple[str, ...]]:
    """With async scheduling on or off, whichever gives the measured latencies back, where nobody says which it was."""
    names = {find_setting(split_setting(text)[0]).name for text in said}
    base = Scenario(requests=load.requests, engine=load.engine(names), served=served, calibration=fitted)
    scenario = with_settings(base, said)
    if "async_scheduling" in load.rules or "async_scheduling" in names:
        return run_scenario(scenario), ()
    both = [
        run_scenario(replace(scenario, engine=replace(scenario.engine, async_scheduling=is_async)))
        for is_async in (True, False)
    ]
    chosen = min(both, key=lambda outcome: _distance(outcome, load))
    mode = "async" if chosen.scenario.engine.async_scheduling else "synchronous"
    note = (
        f"whether scheduling was async is not logged: {mode} gives the latencies back better (to say which it was: "
        "--as-recorded async_scheduling=on or off)"
    )
    return chosen, (note,)


def _distance(outcome: Outcome, load: RecordedLoad) -> float:
    errors = [row.error for row in compare_latencies(outcome, load.measured)]
    return sum(abs(error) for error in errors if error is not None)

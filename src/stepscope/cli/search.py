"""The command that searches a grid of settings: search."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import stepscope
from stepscope.cli.load_options import (
    OutputLenOption,
    PromptOption,
    RateOption,
    RequestsOption,
    SeedOption,
    WorkloadOption,
    read_load,
)
from stepscope.cli.predict import Model
from stepscope.cli.predict_view import write_view
from stepscope.cli.report import Charts
from stepscope.cli.search_view import search_sections
from stepscope.cli.simulate import (
    CalibrationOption,
    FormatOption,
    Hardware,
    TpotLimit,
    TtftLimit,
    make_limits,
    with_settings,
)
from stepscope.cli.tabular import TableFormat
from stepscope.cost.calibration_file import read_calibration
from stepscope.errors import BadInput
from stepscope.pool import map_tasks
from stepscope.report.model_charts import write_model_charts
from stepscope.report.search_charts import search_charts
from stepscope.simulate.scenario import EngineOptions, Scenario
from stepscope.simulate.search import KEPT, Point, find_frontier, keeps_limits, key_of, make_grid, run_point
from stepscope.simulate.settings import split_setting
from stepscope.simulate.step_costs import Served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.simulate.search import GridPoint

SCHEMA = "stepscope.search/1"
_BEGINNING = '{"settings": '  # of a kept point
_PARTS = ("settings", "key", "refused", "binding", "step_bound")
LATENCIES = ("ttft p50", "ttft p99", "tpot p50", "tpot p99", "e2el p50")


def search(
    model: Model,
    *,
    hardware: Hardware,
    over: Annotated[list[str], typer.Option("--over", help="What to vary, as name=value,value,...; may be repeated.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="What to hold fixed, as name=value; may be repeated.")
    ] = None,
    workload: WorkloadOption = "poisson",
    rate: RateOption = None,
    requests: RequestsOption = None,
    prompt_len: PromptOption = "1024",
    output_len: OutputLenOption = "128",
    seed: SeedOption = 0,
    calibration: CalibrationOption = None,
    ttft: TtftLimit = None,
    tpot: TpotLimit = None,
    against: Annotated[
        str, typer.Option(help="The latency that is weighed against cost, such as 'tpot p99'.")
    ] = "tpot p50",
    keep: Annotated[
        Path | None, typer.Option(help="Keep each result here as it comes (JSON lines), and take up what is there.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one a processor).")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster.")] = False,
    charts: Charts = None,
    format_: FormatOption = TableFormat.text,
) -> None:
    """Simulate a grid of settings: cost against latency, the frontier, and what binds each point."""
    if against not in LATENCIES:
        raise BadInput(f"--against '{against}': one of {', '.join(LATENCIES)} was expected.")
    limits = make_limits(ttft, tpot)
    load, told = read_load(
        workload, rate=rate, requests=requests, prompt_len=prompt_len, output_len=output_len, seed=seed
    )
    fitted = None if calibration is None else read_calibration(calibration)
    served = Served(model=model, hardware=hardware)
    base = Scenario(requests=load, engine=EngineOptions(), served=served, calibration=fitted)
    grid = make_grid(with_settings(base, settings or ()), [_split_over(text) for text in over], limits)
    points = run_grid(grid, keep, workers=workers, ray=ray)
    refused = [point["refused"] for point in points if point["refused"]]
    if len(refused) == len(points):
        raise BadInput(f"none of the {len(points)} points can run. The first: {refused[0]}")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": stepscope.__version__,
        "grade": "simulated",
        "model": model,
        "hardware": hardware,
        "load": {"source": told, "requests": len(load)},
        "fixed": list(settings or ()),
        "over": list(over),
        "latency": against,
        "limits": {"ttft_s": ttft, "tpot_s": tpot},
        "points": points,
        "frontier": find_frontier(points, against),
        "keeps_limits": [keeps_limits(point, limits) for point in points],
    }
    if charts is not None:
        write_model_charts(search_charts(document), charts)
    write_view(document, _rows(document), format_, None, search_sections)


def _split_over(text: str) -> tuple[str, tuple[str, ...]]:
    name, values = split_setting(text)
    parts = tuple(dict.fromkeys(part.strip() for part in values.split(",")))
    if not all(parts):
        raise BadInput(f"--over {text}: an empty value. Write name=value,value,...")
    return name, parts


def run_grid(grid: Sequence[GridPoint], keep: Path | None, *, workers: int | None, ray: bool) -> list[Point]:
    """Every point, in the order of the grid; kept ones are not run again, new ones are kept as they come."""
    kept = {} if keep is None else _read_kept(keep)
    if keep is not None:
        _append(keep, "")  # what cannot be written is known before hours of work
    keys = [key_of(grid_point) for grid_point in grid]
    missing = [grid_point for grid_point, key in zip(grid, keys, strict=True) if key not in kept]
    found = dict(kept)
    with closing(map_tasks(run_point, missing, workers=workers, ray=ray)) as results:  # type: ignore[type-var]
        for point in results:
            found[point["key"]] = point
            if keep is not None:
                _append(keep, json.dumps(point, ensure_ascii=False) + "\n")
    return [found[key] for key in keys]


def _append(keep: Path, text: str) -> None:
    try:
        with keep.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{keep}: cannot be written ({reason}). Choose another file.") from error


def _read_kept(keep: Path) -> dict[str, Point]:
    """Results of before; a last line that an interruption cut is run again.

    Raises:
        BadInput: the file holds something else; it is left as it is.
    """
    if not keep.exists():
        return {}
    if not keep.is_file():
        raise BadInput(f"{keep}: is no file. Name one that results can be kept in.")
    try:
        text = keep.read_text(encoding="utf-8")
        whole, cut = text[: text.rfind("\n") + 1], text[text.rfind("\n") + 1 :]
        points = [_read_point(line) for line in whole.splitlines()]
        if not (cut.startswith(_BEGINNING) or _BEGINNING.startswith(cut)):
            _refuse(f"its last line begins with {cut[:20]!r}")
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{keep}: holds something else than results of a search ({error}). Name another file."
        ) from error
    if cut:
        keep.write_text(whole, encoding="utf-8")
    return {point["key"]: point for point in points}


def _read_point(line: str) -> Point:
    point = json.loads(line, parse_constant=lambda name: _refuse(f"{name} is no number"))
    parts = ("figures", "low", "high")
    if not (isinstance(point, dict) and {*_PARTS, *parts} <= point.keys() and isinstance(point["key"], str)):
        _refuse("a line is no point")
    for part in parts:
        figures = point[part]
        if not isinstance(figures, dict) or not all(
            isinstance(figures.get(" ".join(key), ""), float | int | None) for key in KEPT
        ):
            _refuse(f"a point's {part} are not those of this version")
    return dict(point)


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for place, point in enumerate(document["points"]):
        row = dict(point["settings"])
        row |= {"_".join(key): point["figures"][" ".join(key)] for key in KEPT}
        row |= {
            "binding": point["binding"],
            "is_on_frontier": place in document["frontier"],
            "keeps_limits": document["keeps_limits"][place],
            "refused": point["refused"],
        }
        rows.append(row)
    return rows

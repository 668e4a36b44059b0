"""What the commands of simulation share to read a load: a trace file, or arrivals and lengths from a seed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.errors import BadInput
from stepscope.operators.shape import parse_count
from stepscope.simulate.settings import mean_rate_per_s
from stepscope.simulate.synthetic import Lengths, closed_loop, gamma_arrivals, poisson_arrivals, single_requests
from stepscope.simulate.workload import Workload, read_azure, read_burstgpt, read_csv, read_mooncake

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.simulate.request import Request

    Reader = Callable[..., Workload]

WorkloadOption = Annotated[
    str,
    typer.Option(
        "--workload",
        help="A Mooncake .jsonl, an Azure, BurstGPT or own .csv; or poisson, gamma:VARIATION, closed:CLIENTS.",
    ),
]
RateOption = Annotated[
    float | None, typer.Option("--rate", help="Requests per second; of a file, its own rate where left out.")
]
RequestsOption = Annotated[
    int | None, typer.Option("--requests", min=1, help="How many requests; of a file, its first (default: all; 200).")
]
PromptOption = Annotated[
    str, typer.Option("--prompt-len", help="Prompt tokens: MEDIAN or MEDIAN:SIGMA of a log-normal law.")
]
OutputLenOption = Annotated[str, typer.Option("--output-len", help="Output tokens: MEDIAN or MEDIAN:SIGMA.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Of arrivals and lengths.")]

MOST_REQUESTS = 5_000_000  # of a generated load; each takes about a kB
_FILES: tuple[tuple[str, str, Reader], ...] = (
    ("hash_ids", "Mooncake", read_mooncake),
    ("ContextTokens", "Azure", read_azure),
    ("Request tokens", "BurstGPT", read_burstgpt),
    ("prompt_len", "own CSV", read_csv),
)


def read_load(
    workload: str, *, rate: float | None, requests: int | None, prompt_len: str, output_len: str, seed: int
) -> tuple[tuple[Request, ...], str]:
    """The requests, and a line that says where they are from.

    Raises:
        BadInput: an unknown kind, a file that is none of the known ones, an impossible rate or length.
    """
    if Path(workload).is_file():
        return _from_file(Path(workload), rate, requests)
    kind, _, detail = workload.partition(":")
    if kind not in ("poisson", "gamma", "closed"):
        raise BadInput(
            f"--workload {workload}: there is no such file, and it is no kind of load. Give a .jsonl or .csv file, "
            "poisson, gamma:VARIATION or closed:CLIENTS."
        )
    _check_options(kind, detail, rate, requests)
    count = requests or 200
    rng = Random(seed)  # noqa: S311  # a load, no secret
    arrivals = _arrivals(rng, kind, detail, rate, count)
    lengths = {"prompt": _lengths("--prompt-len", prompt_len), "output": _lengths("--output-len", output_len)}
    load = single_requests(rng, arrivals, question=lengths["prompt"], answer=lengths["output"])
    if kind == "closed":
        load = closed_loop(load.requests, clients=parse_count(detail or "1", "--workload closed:CLIENTS"))
    told = (
        f"{workload}, seed {seed}"
        if kind == "closed"
        else f"{workload} at {_shown_rate(kind, detail, rate)}, seed {seed}"
    )
    return load.requests, f"{told}; prompts {prompt_len}, outputs {output_len} (median:sigma)"


def _check_options(kind: str, detail: str, rate: float | None, requests: int | None) -> None:
    """Refuse what would be left aside, and what no memory holds."""
    if rate is not None and kind == "closed":
        raise BadInput(f"--rate {rate:g} with closed: clients send when they have their answer. Leave --rate out.")
    if rate is not None and kind == "poisson" and detail:
        raise BadInput(f"--workload poisson:{detail} with --rate {rate:g}: give the rate once.")
    if requests is not None and requests > MOST_REQUESTS:
        raise BadInput(f"--requests {requests}: at most {MOST_REQUESTS:,} are made. Give fewer.")


def _shown_rate(kind: str, detail: str, rate: float | None) -> str:
    shown = rate if rate is not None or kind != "poisson" else detail
    return f"{shown} requests/s"


def _arrivals(rng: Random, kind: str, detail: str, rate: float | None, count: int) -> list[float]:
    if kind == "closed":
        return [0.0] * count
    if kind == "poisson" and detail and rate is None:
        rate = _number(detail, "--workload poisson:RATE")
    if rate is None:
        raise BadInput(f"--workload {kind} needs --rate, in requests per second.")
    if kind == "poisson":
        return poisson_arrivals(rng, rate_per_s=rate, count=count)
    return gamma_arrivals(
        rng, rate_per_s=rate, variation=_number(detail or "1", "--workload gamma:VARIATION"), count=count
    )


def _lengths(option: str, text: str) -> Lengths:
    median, _, sigma = text.partition(":")
    count, spread = parse_count(median, option), _number(sigma or "0", option)
    try:
        return Lengths(median=count, sigma=spread)
    except BadInput as error:
        raise BadInput(
            f"{option} {text}: MEDIAN or MEDIAN:SIGMA was expected, a median of 1 to 1,048,576 tokens and a sigma of 0 "
            "or more."
        ) from error


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(f"{option}: '{text}' is no number.") from error


def _from_file(path: Path, rate: float | None, requests: int | None) -> tuple[tuple[Request, ...], str]:
    if rate is not None and not rate > 0:
        raise BadInput(f"--rate {rate}: requests per second are above 0.")
    name, reader = _reader_of(path)
    load = reader(path, limit=requests)
    if not load.requests:
        raise BadInput(f"{path}: no request is in it ({load.num_left_out} lines without prompt or output).")
    said = f"{path.name} ({name})"
    if load.num_left_out:
        said += f", {load.num_left_out} lines without a prompt or an output left out"
    if rate is not None:
        own = mean_rate_per_s(load.requests)
        load = load.sped_up(rate / own)
        said += f", {rate / own:.4g} times as dense: {rate:g} requests/s"
    return load.requests, said


def _reader_of(path: Path) -> tuple[str, Reader]:
    """By the first line: the columns of a CSV, the keys of a JSON object."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(1 << 20)
    except UnicodeDecodeError:
        line = ""
    names = _keys(line)
    for key, name, reader in _FILES:
        if key in names:
            return name, reader
    raise BadInput(
        f"{path}: this is no trace of requests that is known. Expected Mooncake's JSON lines (hash_ids), a CSV of "
        "Azure (ContextTokens) or BurstGPT (Request tokens), or one with arrival_s, prompt_len and output_len."
    )


def _keys(line: str) -> set[str]:
    if line.lstrip().startswith("{"):
        try:
            return set(json.loads(line))
        except (ValueError, RecursionError):
            return set()
    try:
        return set(next(csv.reader([line]), []))
    except csv.Error:
        return set()

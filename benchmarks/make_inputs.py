"""Real Kineto traces, repeated with their times and ids shifted -> one big trace in Kineto's own layout.

Repeating real events keeps what a reader's speed depends on: names, argument lists, nesting, the text layout.
Standard library only. 1 MB = 10^6 bytes of uncompressed JSON. Same sources, same bytes: no clock, no randomness.

    python benchmarks/make_inputs.py --traces DIR --out DIR                      the inputs of reading.py
    python benchmarks/make_inputs.py --out DIR --name mine --megabytes 300 A.json.gz B.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]

ID_ARGS = ("External id", "correlation", "Python id", "Python parent id", "Record function id", "Ev Idx")
KEPT_PHASES = ("X", "s", "f", "i")  # complete events, both ends of flows, instants; names of processes are dropped
ID_SHIFT = 10_000_000  # added to every id once per repetition, so that no two copies share one
FIRST_START_US = 1.0e9
PAUSE_US = 100.0  # between two repetitions


class InputError(Exception):
    """A source trace is missing or has nothing to repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One input: its size and, as patterns below the traces folder, the traces that it repeats in turn."""

    name: str
    megabytes: float
    patterns: tuple[str, ...]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(  # nine events in ten are python functions; 1 % kernels
            name="big",
            megabytes=517,
            patterns=(
                "vllm-mi300x-mixed-piecewise/capture_traces/graph_capture_rank_0.*.json.gz",
                "vllm-b200-tp8-eager-prefill.json.gz",
                "sglang-mi300x-qwen3-8b-decode/sglang_Qwen3-8B_decode.json.gz",
            ),
        ),
        Recipe(  # more device work: 8 % kernels; still mostly python functions
            name="kern",
            megabytes=221,
            patterns=(
                "sglang-qwen3-30b-a3b-decode-B300.json.gz",
                "sglang-qwen3-30b-a3b-decode-MI300.json.gz",
                "vllm-mi300x-mixed-piecewise/graph_execution.json.gz",
            ),
        ),
        Recipe(  # next to nothing: what remains is a reader's start-up
            name="small",
            megabytes=1,
            patterns=("sglang-qwen3-30b-a3b-decode-B300.json.gz",),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which rank of how many an input says that it is."""

    rank: int = 0
    world_size: int = 1
    backend: str = "nccl"


ALONE = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The events of one source trace, in file order, and the time that one repetition of them takes."""

    device_properties: list[Any]
    events: list[Event]
    first_us: float
    span_us: float


def read_block(path: Path) -> Block:
    """Read one source trace; raises `InputError` when it holds no complete event."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
        trace = json.load(source)
    events = [event for event in trace["traceEvents"] if event.get("ph") in KEPT_PHASES]
    starts_us = [float(event["ts"]) for event in events if event["ph"] == "X"]
    if not starts_us:
        raise InputError(f"{path} has no complete event ('ph': 'X') to repeat; pass a torch-profiler trace.")
    first_us = min(starts_us)
    return Block(
        device_properties=trace.get("deviceProperties", []),
        events=events,
        first_us=first_us,
        span_us=max(starts_us) - first_us,
    )


def shift_event(event: Event, shift_us: float, id_shift: int) -> Event:
    """A copy of `event` with its time and all its ids moved; the event itself is not changed."""
    shifted = dict(event, ts=round(float(event["ts"]) + shift_us, 3))
    if "id" in shifted:
        shifted["id"] = int(shifted["id"]) + id_shift
    args = shifted.get("args")
    if args:
        shifted["args"] = {
            key: value + id_shift if key in ID_ARGS and isinstance(value, int) else value for key, value in args.items()
        }
    return shifted


def format_event(event: Event) -> str:
    """One event as Kineto prints it: head, times and args, each on lines of their own."""
    head = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "id", "s", "bp") if key in event}
    times = {key: event[key] for key in ("ts", "dur") if key in event}
    parts = [f"    {json.dumps(head)[1:-1]}", f"    {json.dumps(times)[1:-1]}"]
    if "args" in event:
        parts.append(f'    "args": {{\n      {json.dumps(event["args"])[1:-1]}\n    }}')
    return "  {\n" + ",\n".join(parts) + "\n  },\n"


def format_head(device_properties: list[Any], place: Place) -> str:
    """Everything before the first event."""
    info = {"backend": place.backend, "rank": place.rank, "world_size": place.world_size}
    return (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": {json.dumps(device_properties)},\n'
        f'  "distributedInfo": {json.dumps(info)},\n'
        '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1759348626000000000,\n  "traceEvents": [\n'
    )


def format_tail(end_us: float) -> str:
    """The event that ends a recording, and everything after it."""
    end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": round(end_us, 3)}
    return f'  {json.dumps(end)}\n  ],\n  "traceName": "big"\n}}\n'


def repeat_blocks(blocks: Sequence[Block]) -> Iterator[tuple[str, float]]:
    """For ever: the text of the next event, and the time at which its block's repetition ends."""
    now_us, id_shift = FIRST_START_US, 0
    while True:
        for block in blocks:
            end_us = now_us + (block.span_us + PAUSE_US)
            for event in block.events:
                yield format_event(shift_event(event, now_us - block.first_us, id_shift)), end_us
            now_us, id_shift = end_us, id_shift + ID_SHIFT


def write_trace(out: IO[str], blocks: Sequence[Block], megabytes: float, place: Place = ALONE) -> tuple[int, int]:
    """Write events until they fill `megabytes`; returns (characters of events, number of events)."""
    target, num_written, num_events, end_us = int(megabytes * 1e6), 0, 0, FIRST_START_US
    out.write(format_head(blocks[0].device_properties, place))
    if target > 0:
        for text, end_us in repeat_blocks(blocks):  # noqa: B007  the last block's end is written below
            out.write(text)
            num_written += len(text)
            num_events += 1
            if num_written >= target:
                break
    out.write(format_tail(end_us))
    return num_written, num_events


@contextmanager
def open_output(path: Path) -> Iterator[IO[str]]:
    """A text file, gzip by its name; a finished one replaces `path`, an interrupted one never does."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as raw:
        if path.suffix == ".gz":
            packed = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
            with io.TextIOWrapper(packed, encoding="utf-8") as text:
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8") as text:
                yield text
    partial.replace(path)


def find_sources(recipe: Recipe, traces: Path) -> list[Path]:
    """The recipe's traces, anywhere below `traces`; raises `InputError` unless each is there exactly once."""
    found = []
    for pattern in recipe.patterns:
        matches = sorted(traces.rglob(pattern))
        if len(matches) != 1:
            raise InputError(
                f"input '{recipe.name}' needs one file '{pattern}' below {traces}; found {len(matches)}. "
                "Pass another folder, or make an input from your own traces (see --help)."
            )
        found.append(matches[0])
    return found


def make_input(path: Path, sources: Sequence[Path], megabytes: float, place: Place = ALONE) -> None:
    """Make one input at `path` and print its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = [read_block(source) for source in sources]
    with open_output(path) as out:
        num_written, num_events = write_trace(out, blocks, megabytes, place)
    print(f"{path.name}: {num_written / 1e6:.0f} MB, {num_events} events", file=sys.stderr)


def make_from_recipe(name: str, traces: Path, out: Path) -> Path:
    """Make the input called `name` in the folder `out`."""
    recipe = RECIPES[name]
    path = out / f"{name}.json.gz"
    make_input(path, find_sources(recipe, traces), recipe.megabytes)
    return path


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module's docstring for its two forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, metavar="TRACE", help="your own traces, .json or .json.gz")
    parser.add_argument("--traces", type=Path, default=os.environ.get("STEPSCOPE_TRACES"), help="or STEPSCOPE_TRACES")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--name", default="mine", help="with TRACE: the input is written to OUT/NAME.json.gz")
    parser.add_argument("--megabytes", type=float, default=200, help="with TRACE: its size, uncompressed")
    arguments = parser.parse_args(argv)
    if not arguments.sources and arguments.traces is None:
        parser.error("no traces: pass --traces DIR, set STEPSCOPE_TRACES, or name traces of your own")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Make the inputs that were asked for."""
    arguments = parse_arguments(argv)
    try:
        if arguments.sources:
            make_input(arguments.out / f"{arguments.name}.json.gz", arguments.sources, arguments.megabytes)
        else:
            for name in RECIPES:
                make_from_recipe(name, Path(arguments.traces), arguments.out)
    except (InputError, OSError) as error:
        print(f"make_inputs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

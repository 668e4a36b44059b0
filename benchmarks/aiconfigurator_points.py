"""AIConfigurator's TPOT for a random part of its own silicon sample: two points of every deployment with 8 or more.

    python -m venv peer && peer/bin/pip install aiconfigurator==0.12.0
    peer/bin/python benchmarks/aiconfigurator_points.py serving_points.csv predictions.csv

For `serving_points.py --peer predictions.csv`. Needs nothing of stepscope; about one CPU second a point. Concurrency is
spread over attention-data-parallel ranks. A point that it cannot predict stays empty, with the reason. Two model ids
of the sample that it would have to download are given as those of the same size that it carries.
"""

from __future__ import annotations

import csv
import logging
import os
import random
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

DEPLOYMENT = (
    *("model_path", "system", "backend", "backend_version", "precision", "gemm_quant_mode", "moe_quant_mode"),
    *("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"),
)
CARRIED = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
}


def pick(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Concurrency and row of each point."""
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            told = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
            if row["mode"] == "agg" and told and float(row["silicon_tpot_ms"] or 0) > 0:
                groups[tuple(row[name] for name in DEPLOYMENT)].append((int(told[1]), row))
    rng = random.Random(1)
    return [point for points in groups.values() if len(points) >= 8 for point in rng.sample(points, 2)]


def arguments(concurrency: int, row: dict[str, str]) -> dict[str, Any]:
    """What `cli_estimate` is asked."""
    ranks = int(row["attention_dp_size"] or 0) or 1
    asked: dict[str, Any] = {
        "model_path": CARRIED.get(row["model_path"], row["model_path"]),
        "system_name": row["system"],
        "backend_name": row["backend"],
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
        "batch_size": max(1, round(concurrency / ranks)),
        "tp_size": int(row["tp_size"] or 0) or 1,
        "pp_size": int(row["pp_size"] or 0) or 1,
        "attention_dp_size": ranks,
    }
    asked |= {name: int(row[name]) for name in ("moe_tp_size", "moe_ep_size") if int(row[name] or 0)}
    return asked | {name: row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]}


def main() -> int:
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.CRITICAL)
    from aiconfigurator.cli.api import cli_estimate

    with Path(sys.argv[2]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "tpot_ms", "reason"])
        for concurrency, row in pick(Path(sys.argv[1])):
            try:
                answer: tuple[float | str, str] = (cli_estimate(**arguments(concurrency, row)).tpot, "")
            except Exception as error:  # noqa: BLE001 - whatever it raises is the reason
                answer = ("", f"{type(error).__name__}: {str(error)[:120]}")
            writer.writerow([row["id"], *answer])
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

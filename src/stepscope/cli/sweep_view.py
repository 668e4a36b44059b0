"""A sweep's document -> headed tables: cells, the three crossovers beside their predictions, what was held fixed."""

from __future__ import annotations

from typing import Any

from stepscope.report.section import Grid, Section
from stepscope.sweep.conditions import CONDITIONS
from stepscope.units import UNKNOWN

_FAMILIES = {
    "dense_gemm_s": "dense",
    "experts_s": "experts",
    "attention_s": "attention",
    "indexer_s": "indexer",
    "compressor_s": "compressor",
    "collective_s": "collective",
    "other_s": "other",
}


def sweep_sections(document: dict[str, Any]) -> list[Section]:
    """Everything; families that no cell has are left out of the table and named below it."""
    return [
        _cells(document),
        *_crossovers(document),
        *_predicted(document),
        _held(document),
    ]


def _number(value: float | None, digits: int = 4) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}g}"


def _ms(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{1000 * seconds:.4g}"


def _cells(document: dict[str, Any]) -> Section:
    cells = document["cells"]
    families = [name for name in _FAMILIES if any(row[name] is not None for row in cells)]
    has_prediction = any(row["predicted_step_s"] is not None for row in cells) and document["plan"]["engine"] != "cost"
    columns = ["cell", "status", ">M", ">step ms", ">5 %", ">95 %", ">tokens/s", ">mean M_e", ">most M_e"]
    columns += [f">{_FAMILIES[name]} ms" for name in families]
    columns += [">host gap ms"] if any(row["host_gap_s"] is not None for row in cells) else []
    columns += [f">{_priced(document)} ms"] if has_prediction else []
    rows = []
    for row in cells:
        line = [row["cell"], row["status"], _number(row["dense_m"], 6), _ms(row["step_s"] or row["tpot_s"])]
        line += [_ms(row["step_low_s"]), _ms(row["step_high_s"]), _number(row["tokens_per_s"])]
        line += [_number(row["mean_rows_per_expert"]), _number(row["max_rows_per_expert"])]
        line += [_ms(row[name]) for name in families]
        line += [_ms(row["host_gap_s"])] if ">host gap ms" in columns else []
        line += [_ms(row["predicted_step_s"])] if has_prediction else []
        rows.append(tuple(line))
    told = ", ".join(f"{count} {status}" for status, count in document["status"].items())
    plan = document["plan"]
    title = f"{plan['model']} on {plan['engine']}: {told or 'no cell ran'}"
    return Section(title=title, lines=tuple(_unknowns(document)), grid=Grid(columns=tuple(columns), rows=tuple(rows)))


def _priced(document: dict[str, Any]) -> str:
    """What the cost model's times are: a bound is no prediction."""
    return "bound" if document["plan"]["cost"] == "bound" else "predicted"


def _unknowns(document: dict[str, Any]) -> list[str]:
    """Each reason once, with the figures that it leaves unknown."""
    found: dict[str, dict[str, None]] = {}
    for row in document["graded"]:
        for name, reason in row["unknown"].items():
            found.setdefault(reason, {})[name] = None
    lines = [f"not known: {', '.join(names)}: {reason}" for reason, names in found.items()]
    lines += [f"{row['cell']} {row['status']}: {row['reasons']}" for row in document["cells"] if row["reasons"]]
    notes = dict.fromkeys(note for row in document["graded"] for note in row["notes"])
    missing = document["missing"]
    return [*lines, *notes, *([f"not run yet: {', '.join(missing)}"] if missing else [])]


def _where(row: dict[str, Any]) -> str:
    return row["crossover"] if row["context_len"] is None else f"{row['crossover']}, {row['context_len']:,} tokens"


def _answer(row: dict[str, Any]) -> str:
    if row["answer"] == "found":
        return _with_ends(row, "at", "low", "high")
    answer: str = row["answer"]
    return "no bend" if answer == "straight" else answer.replace("_", " ")


def _with_ends(row: dict[str, Any], value: str, low: str, high: str) -> str:
    ends = "" if row[low] is None else f" ({_number(row[low])} to {_number(row[high])})"
    return f"{_number(row[value])}{ends}"


def _crossovers(document: dict[str, Any]) -> list[Section]:
    predicted = (document["predicted"] or {}).get("bends") or []
    by_name = {_where(row): _answer(row) for row in predicted}
    rows, lines = [], []
    for row in document["crossovers"]:
        name = _where(row)
        ends = (
            _number(row["first_slope"], 2),
            _number(row["last_slope"], 2),
            _with_ends(row, "half", "half_low", "half_high"),
        )
        rows.append(
            (name, row["axis"], row["of"], _answer(row), by_name.get(name, UNKNOWN), str(row["num_points"]), *ends)
        )
        lines += [f"{name}: {row['reason']}"] if row["reason"] else []
    columns = (
        "crossover",
        "axis",
        "time of",
        "bends at (5 to 95 %)",
        _priced(document),
        ">points",
        ">slope, first",
        ">last",
        ">a = b x at",
    )
    lines.append(
        "slope: d log time / d log axis of a straight line at the grid's ends, 0 flat, 1 in proportion; a = b x: where "
        "it pays as much for x as at x = 0, which is the crossover where the terms add up instead of overlapping"
    )
    return [Section(title="three crossovers", lines=tuple(lines), grid=Grid(columns=columns, rows=tuple(rows)))]


def _predicted(document: dict[str, Any]) -> list[Section]:
    found = document["predicted"]
    if found is None:
        return []
    title = f"by formula, on {found['hardware']}"
    if found["refused"]:
        return [Section(title=title, lines=(f"refused: {found['refused']}",))]
    lines = [
        f"{what}: {_ends(found[key])}"
        for what, key in (("dense GEMMs, M", "dense_tokens"), ("one expert, M_e", "expert_rows"))
    ]
    for row in found["decode_batch"]:
        batch = "none of these" if row["batch"] is None else f"{row['batch']}"
        lines.append(f"decode at {row['context_len']:,} tokens, least compute-bound B: {batch}")
    return [Section(title=title, lines=tuple(lines))]


def _ends(ends: dict[str, Any] | None) -> str:
    if ends is None:
        return "the model has none"
    never = f", {ends['never']} of {ends['matrices']} never" if ends["never"] else ""
    return f"{_number(ends['low'])} to {_number(ends['high'])}{never}"


def _held(document: dict[str, Any]) -> Section:
    now = document["conditions"]
    rows = tuple((name, UNKNOWN if now.get(name) is None else str(now[name])) for name in CONDITIONS)
    window = document["plan"]["window"]
    said = ", ".join(f"{name} {value}" for name, value in window.items())
    return Section(title="held fixed", lines=(f"window: {said}",), grid=Grid(columns=("condition", "value"), rows=rows))

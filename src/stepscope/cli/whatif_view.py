"""The documents of whatif and calibrate -> sections. Nothing is computed here."""

from __future__ import annotations

from typing import Any

from stepscope.cli.simulate_view import TOTALS, reproduction_grid, show_number, show_with_ends
from stepscope.report.section import Grid, Section
from stepscope.units import UNKNOWN

Document = dict[str, Any]


def whatif_sections(document: Document) -> list[Section]:
    """The run as recorded, how well it is reproduced, and what the change does."""
    rules = document["rules"]
    mode = "async" if rules["async_scheduling"] else "synchronous"
    lines = (
        f"{document['requests']:,} requests; step times: {document['cost']}",
        (
            f"as recorded: max_num_batched_tokens {rules['max_num_batched_tokens']:,}, max_num_seqs "
            f"{rules['max_num_seqs']:,}, {rules['num_blocks']:,} blocks of {rules['block_size']} tokens, "
            f"{mode}, host work {1e3 * rules['host_s']:,.4g} ms a step"
        ),
        *document["notes"],
    )
    within = f"{document['within']:.0%}"
    verdict = (
        f"the latencies that decide are within {within} of the measured ones"
        if document["is_reproduced"]
        else f"a latency that decides is off by more than {within}: REFUSED to say what a change would do"
    )
    sections = [
        Section(title=f"The run as recorded: {document['run']}", lines=lines),
        Section(
            title="Measured and simulated, in seconds",
            lines=(verdict,),
            grid=reproduction_grid(document["reproduced"]),
        ),
    ]
    if document["figures"] is not None:
        sections.append(_changed(document))
    elif document["is_reproduced"]:
        sections.append(Section(title="What if", lines=("nothing was asked to change: --set name=value",)))
    return sections


def _changed(document: Document) -> Section:
    names = {name: title for name, title in TOTALS.items() if name != "duration"}
    rows = []
    for row in document["figures"]:
        if row["statistic"] == "max" or (row["statistic"] == "total" and row["name"] not in names):
            continue
        title = names.get(row["name"]) or f"{row['name'].upper()} {row['statistic']}, {row['unit']}"
        relative = row["difference"] / row["before"] if row["before"] and row["difference"] is not None else None
        rows.append(
            (
                title,
                show_number(row["before"]),
                show_number(row["after"]),
                show_with_ends(row, "difference"),
                UNKNOWN if relative is None else f"{100 * relative:+.1f} %",
            )
        )
    ends = "refits of the calibration" if document["interval"] == "draws" else "low and high end of the cost"
    return Section(
        title=f"What if {', '.join(document['changes'])}",
        lines=(
            f"both simulated under the same step times; the difference's interval is that of the {ends} [simulated]",
        ),
        grid=Grid(columns=("", ">before", ">after", ">difference (low to high)", ">relative"), rows=tuple(rows)),
    )


def calibration_sections(document: Document) -> list[Section]:
    """What was fitted, how well, and what was left out."""
    held = document["held_out"]
    where = f"on {document['hardware']}" if document["hardware"] else "(device not named)"
    model = "model not named" if document["model"] == "not named" else document["model"]
    lines = [
        f"{model} {where}, cost {document['cost']}; {document['num_draws']} refits kept for intervals",
        f"fitted to {', '.join(document['source']['files'])} ({document['source']['date']})",
        *(
            f"unseen steps, {name}: {100 * part['median']:.1f} % off in the median, {100 * part['p90']:.1f} % in one "
            f"of ten ({part['num_steps']} steps)"
            for name, part in held.items()
        ),
        *(f"left out: {count} steps, {why}" for why, count in document["left_out"].items()),
        *(f"not told apart by these steps, one factor: {', '.join(group)}" for group in document["tied"]),
        "families: measured / modelled seconds; fixed and host_s: seconds; low to high: the 90 % interval [modelled]",
        f"written: {document['file']}",
    ]
    numbers = {
        **{f"families.{name}": factor for name, factor in document["families"].items()},
        **{f"fixed.{name}": factor for name, factor in document["fixed"].items()},
        "host_s": document["host_s"],
    }
    rows = tuple(
        (name, *(f"{factor[key]:.4g}" for key in ("value", "low", "high"))) for name, factor in numbers.items()
    )
    grid = Grid(columns=("number", ">value", ">low", ">high"), rows=rows)
    return [Section(title=f"Calibration {document['name']}", lines=tuple(lines), grid=grid)]

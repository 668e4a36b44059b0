"""An account -> the report as data: every fact that any view shows, JSON-able and versioned.

Text, Markdown and CSV only format it. Unknown and withheld numbers are None; `questions` and `coverage` say why.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import stepscope
from stepscope.answers.findings import find_findings
from stepscope.answers.lateness import explain_lateness, skew_by_step, total_balance_ns
from stepscope.answers.questions import answer_questions
from stepscope.evidence import GRADES
from stepscope.join.graph_shapes import find_shapes, say_shapes, shapes_document
from stepscope.report.against_model import to_model_document
from stepscope.report.details import step_families, step_kernels
from stepscope.report.tables import family_rows, part_rows, signal_rows, step_rows
from stepscope.steps.ranks import ArrivalSkew
from stepscope.store.health import UNTIMED_CODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.against_model import AgainstModel
    from stepscope.answers.finding import Finding
    from stepscope.answers.lateness import Lateness
    from stepscope.answers.questions import Answer
    from stepscope.evidence import Grade
    from stepscope.messages import Message
    from stepscope.store.events import EventStore

SCHEMA = "stepscope.report/1"
SIMULATED = "simulated"


def to_document(account: Account, against: AgainstModel | None = None) -> dict[str, Any]:
    """The whole report; with a part `against_model` where the run was held against a model."""
    answers = answer_questions(account, None if against is None else against.kv_sentences)
    findings = find_findings(account)
    document = _document(account, answers, findings)
    if against is not None:
        document["against_model"] = to_model_document(against)
        document["messages"] |= to_message_table(against.messages)
    return document


def _document(account: Account, answers: Sequence[Answer], findings: Sequence[Finding]) -> dict[str, Any]:
    shapes = find_shapes([rank.store for rank in account.ranks], ())
    in_graphs = say_shapes(shapes, has_capture=False)
    return {
        "schema": SCHEMA,
        "version": stepscope.__version__,
        "source": account.source,
        "inputs": [
            *(
                _input(rank.store, "worker", SIMULATED if rank.store.is_simulated else rank.table.windows.lane)
                for rank in account.ranks
            ),
            *(_input(store, "other process", None) for store in account.others),
        ],
        "coverage": _coverage(account),
        "steps": _steps(account),
        "budget": _budget(account),
        "families": family_rows(account),
        "signals": signal_rows(account),
        "parts": part_rows(account),
        "step_families": step_families(account),
        "step_kernels": step_kernels(account),
        "skew": _skew(account),
        "supply_causes": [
            {"rank": rank.rank, "ns": rank.supply_causes} for rank in account.ranks if rank.supply_causes is not None
        ],
        "questions": [_question(answer) for answer in answers],
        "findings": [
            {
                "id": f.id,
                "layer": f.layer,
                "rank": f.rank,
                "text": str(f.text),
                "value_ns": f.value_ns,
                "grade": f.grade,
                "not_shown": str(f.not_shown),
            }
            for f in findings
        ],
        "graph_shapes": shapes_document(shapes, has_capture=False),
        "messages": _messages(account, answers, findings) | to_message_table(filter(None, [in_graphs])),
    }


def shown_grades(document: dict[str, Any]) -> dict[str, Grade]:
    """What each grade is shown as: in the report of a simulated run no number is more than simulated."""
    if all(item["lane"] != SIMULATED for item in document["inputs"]):
        return {name: name for name in GRADES}
    return {name: "refused" if name == "refused" else "simulated" for name in GRADES}


def _input(store: EventStore, role: str, lane: str | None) -> dict[str, Any]:
    origin = store.origin
    return {
        "path": origin.path,
        "reader": origin.reader,
        "role": role,
        "lane": lane,
        "rank": origin.rank,
        "rank_source": origin.rank_source,
        "world_size": origin.world_size,
        "parallel": dict(origin.parallel),
        "engine_version": origin.metadata.get("vllm_version"),
        "has_stacks": store.has_frames,
        "events_present": store.counts.present,
        "events_read": store.counts.read,
        "events_recovered": store.counts.recovered,
        "events_lost": store.counts.lost,
        "events_without_time": sum(row.count for row in store.health if row.code in UNTIMED_CODES),
        "health": [
            {"code": row.code, "severity": row.severity, "count": row.count, "detail": row.detail}
            for row in store.health
        ],
    }


def _coverage(account: Account) -> dict[str, Any]:
    """The gate over all ranks, and rank by rank."""
    parts = [rank.budget.coverage for rank in account.ranks]
    fractions = [c.matched_fraction for c in parts if c.matched_fraction is not None]
    return {
        "idle_claimable": bool(parts) and all(c.idle_claimable for c in parts),
        "reasons": [reason for rank in account.ranks for reason in _reasons(rank)],
        "kernels": sum(c.num_kernels for c in parts),
        "kernels_in_steps": sum(c.num_in_steps for c in parts),
        "kernels_unassigned": sum(c.num_unassigned for c in parts),
        "matched_fraction": min(fractions) if fractions else None,
        "ranks": [
            {
                "rank": rank.rank,
                "idle_claimable": rank.budget.coverage.idle_claimable,
                "kernels": rank.budget.coverage.num_kernels,
                "kernels_in_steps": rank.budget.coverage.num_in_steps,
                "kernels_unassigned": rank.budget.coverage.num_unassigned,
                "matched_fraction": rank.budget.coverage.matched_fraction,
            }
            for rank in account.ranks
        ],
    }


def _reasons(rank: RankAccount) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank.rank,
            "code": r.code,
            "withholds": r.withholds,
            "text": str(r.text),
            "record_with": str(r.record_with),
        }
        for r in rank.budget.coverage.reasons
    ]


def _steps(account: Account) -> dict[str, Any]:
    counted = [step for rank in account.ranks for step in rank.table.counted]
    first = counted[0].boundary if counted else None
    per_rank = {str(rank.rank): len(rank.table.counted) for rank in account.ranks}
    return {
        "count": max(per_rank.values(), default=0),
        "count_by_rank": per_rank,
        "empty": max((len(r.table.steps) - len(r.table.counted) for r in account.ranks), default=0),
        "source": first.source if first else None,
        "grade": first.grade if first else None,
        "rows": step_rows(account),
    }


def _budget(account: Account) -> list[dict[str, Any]]:
    return [
        {
            "rank": budget.rank,
            "step_id": budget.step_id,
            "start_ns": budget.start_ns,
            "window_ns": budget.window_ns,
            "exclusive_ns": budget.exclusive_ns,
            "busy_ns": budget.busy_ns,
        }
        for rank in account.ranks
        for budget in (*rank.budget.windows, rank.budget.total)
    ]


def _skew(account: Account) -> dict[str, Any]:
    """Arrival skew of matched collectives, or why it cannot be given."""
    skew = account.skew
    if not isinstance(skew, ArrivalSkew):
        return {"refused": skew}
    return {
        "collectives": skew.num_instances,
        "residual_ns": skew.residual_ns,
        "largest_ns": skew.largest_skew_ns,
        "residual_p95_ns": skew.residual_p95_ns,
        "method": skew.method,
        "offset_ns": {str(rank): ns for rank, ns in skew.offset_ns.items()},
        "drift_ppm": {str(rank): ppm for rank, ppm in skew.drift_ppm.items()},
        "awaited_ns": {str(rank): ns for rank, ns in skew.awaited_ns.items()},
        "transfer_ns": int(skew.instances.transfer_ns.sum()),
        "balance_ns": total_balance_ns(skew),
        "late": [_late(late) for late in explain_lateness(account)],
        "steps": [asdict(step) for step in skew_by_step(account)],
        "is_evidence": skew.is_evidence,
        "grade": "derived",
    }


def _late(late: Lateness) -> dict[str, Any]:
    return {
        "rank": late.rank,
        "instances": late.num_instances,
        "awaited_ns": late.awaited_ns,
        "behind_ns": late.behind_ns,
        "causes": [{"category": c, "family": f, "ns": ns} for (c, f), ns in late.causes],
        "uninstrumented_ns": late.uninstrumented_ns,
    }


def _question(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id,
        "title": answer.title,
        "status": answer.status,
        "answer": " ".join(str(sentence) for sentence in answer.sentences),
        "sentences": [str(sentence) for sentence in answer.sentences],
        "grade": answer.grade,
        "missing": [str(refusal.missing) for refusal in answer.refusals],
        "record_with": [str(refusal.record_with) for refusal in answer.refusals],
    }


def _messages(account: Account, answers: Sequence[Answer], findings: Sequence[Finding]) -> dict[str, Any]:
    """Every sentence of the report with the template and values that it was made from, for other languages."""
    said = [message for answer in answers for message in answer.sentences]
    said += [m for answer in answers for refusal in answer.refusals for m in (refusal.missing, refusal.record_with)]
    said += [m for finding in findings for m in (finding.text, finding.not_shown)]
    said += [m for rank in account.ranks for r in rank.budget.coverage.reasons for m in (r.text, r.record_with)]
    return to_message_table(said)


def to_message_table(messages: Iterable[Message]) -> dict[str, Any]:
    """English text -> template and values, for each message and those inside it."""
    parts = {str(part): part for message in messages for part in message.walk()}
    return {
        text: {"template": part.template, "values": {name: str(value) for name, value in part.values.items()}}
        for text, part in parts.items()
    }

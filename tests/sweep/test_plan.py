from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.sweep.plan import ENGINES, GRIDS, Held, Plan, Window, check_plan, make_plan, read_plan, to_yaml

if TYPE_CHECKING:
    from pathlib import Path

AXES = st.lists(st.integers(1, 4096), min_size=1, max_size=5, unique=True).map(lambda values: tuple(sorted(values)))


def plan(**rest: Any) -> Plan:
    return make_plan("small", **({"engine": "cost", "model": "demo", "hardware": "h200"} | rest))


def written(text: str, folder: Path) -> Plan:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_comes_back_from_its_file(grid: str, engine: str, tmp_path: Path) -> None:
    made = make_plan(grid, engine=engine, model="demo", hardware="h200", url="http://localhost:1")
    found = written(to_yaml(made), tmp_path)
    assert (found, found.hash, found.cells) == (made, made.hash, made.cells)


@given(
    prefill=AXES,
    batches=AXES,
    contexts=AXES,
    steps=st.integers(2, 99),
    arguments=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.one_of(st.integers(), st.booleans())),
)
def test_any_plan_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    prefill: tuple[int, ...],
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    steps: int,
    arguments: dict[str, Any],
) -> None:
    made = Plan(
        grid="own",
        engine="simulator",
        model="demo",
        hardware="h200",
        prefill_tokens=prefill,
        decode_batches=batches,
        decode_context_lens=contexts,
        window=Window(decode_steps=steps),
        held=Held(engine_args=arguments),
    )
    assert written(to_yaml(made), tmp_path_factory.mktemp("plan")) == made
    assert len({cell.name for cell in made.cells}) == len(prefill) + len(batches) * len(contexts)


def test_the_grids_are_those_of_the_note() -> None:
    assert GRIDS["prefill"]["prefill_tokens"] == (128, 512, 1024, 2048, 4096, 8192)
    assert GRIDS["decode"]["decode_batches"] == (1, 2, 4, 8, 16, 32, 64, 128)
    assert GRIDS["decode"]["decode_context_lens"] == (8192, 32768, 131072)


def test_the_file_says_what_each_part_is(tmp_path: Path) -> None:
    text = to_yaml(plan())
    assert "# held fixed: checked before and after every cell" in text
    assert "prefill_tokens: [32, 64]" in text
    assert written(text.replace("[32, 64]", "[32, 64, 96]"), tmp_path).prefill_tokens == (32, 64, 96)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("engine: cost", "engine: abacus", "Invalid enum value 'abacus'"),
        ("grid: small", "grit: small", "unknown field `grit`"),
        ("tp: 1", "tp: 0", "Expected `int` >= 1"),
        ("[32, 64]", "[64, 32]", "has to rise"),
        ("[32, 64]", "[32, two]", "Expected `int`"),
        ("decode_batches: [1, 2]", "decode_batches: []", "both decode_batches and decode_context_lens"),
        ("hardware: h200", "hardware: null", "needs hardware"),
        ("engine: cost", "engine: server", "needs its url"),
        ("max_model_len: null", "max_model_len: 100", "too short"),
        ("max_num_batched_tokens: null", "max_num_batched_tokens: 48", "cuts a prefill of 64"),
        ("max_num_seqs: null", "max_num_seqs: 1", "seats no 2 requests"),
        ("grid: small", "grid: [small", "is no YAML 1.2"),
        ("stepscope-sweep/1", "stepscope-sweep/9", "is no sweep plan"),
    ],
)
def test_what_cannot_be_is_refused(before: str, after: str, problem: str, tmp_path: Path) -> None:
    text = to_yaml(plan())
    assert before in text
    with pytest.raises(BadInput) as refused:
        written(text.replace(before, after), tmp_path)
    assert problem in str(refused.value)


def test_a_plan_without_a_cell_and_an_unknown_grid_are_refused() -> None:
    with pytest.raises(BadInput, match="there is no cell"):
        check_plan(Plan(grid="own", engine="cost", model="demo", hardware="h200"), "own")
    with pytest.raises(BadInput, match="no such grid"):
        make_plan("huge", engine="cost", model="demo", hardware="h200")


def test_another_window_is_another_plan() -> None:
    assert plan().hash == plan().hash
    assert plan().hash != plan(window=Window(decode_steps=17)).hash

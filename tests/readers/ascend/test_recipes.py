"""The recipes for Ascend are shell scripts that record what the seven questions need, apart from any benchmark."""

from __future__ import annotations

import json
import shlex

import pytest

from stepscope.record.recipes import EVIDENCE, load_recipes, render_recipe

NAMES = ("ascend-vllm", "ascend-sglang")


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_is_a_shell_script_with_valid_json(name: str) -> None:
    recipes = load_recipes(name, folder="out folder", steps=7)
    assert {recipe.evidence for recipe in recipes} == set(EVIDENCE)
    for recipe in recipes:
        text = render_recipe(recipe, "http://localhost:1")
        for word in shlex.split(text, comments=True):
            if word.startswith("{"):
                json.loads(word)
        assert "{folder}" not in text
        assert text.isascii()
        assert recipe.trace == "out folder/trace"


@pytest.mark.parametrize("name", NAMES)
def test_the_newest_full_recipe_says_how_ratios_are_recorded_and_profiles_analysed(name: str) -> None:
    recipe = load_recipes(name)[0]
    notes = " ".join(recipe.notes)
    assert "separate runs" in recipe.notes[0]
    assert "aic_metrics=PipeUtilization" in notes
    assert "from torch_npu.profiler.profiler import analyse" in notes

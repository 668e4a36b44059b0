"""The recipes for Nsight and ROCm are shell scripts that record what the account needs, graphs node by node."""

from __future__ import annotations

import json
import shlex

import pytest

from stepscope.record.recipes import EVIDENCE, load_recipes, render_recipe

NAMES = ("nsys-vllm", "nsys-sglang", "rocm-vllm", "rocm-sglang")


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_is_a_shell_script_with_valid_json(name: str) -> None:
    recipes = load_recipes(name, folder="out folder", steps=7)
    assert {recipe.evidence for recipe in recipes} == set(EVIDENCE)
    for recipe in recipes:
        text = render_recipe(recipe, "http://localhost:1")
        documents = [json.loads(word) for word in shlex.split(text, comments=True) if word.startswith("{")]
        assert any("7" in json.dumps(document) for document in documents)
        assert "{folder}" not in text
        assert text.isascii()
        assert "separate runs" in recipe.notes[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("nsys")])
def test_nsight_recipes_record_graphs_node_by_node_and_export(name: str) -> None:
    for recipe in load_recipes(name, folder="out folder"):
        words = shlex.split(recipe.command)
        assert words[:2] == ["nsys", "profile"]
        assert {"--cuda-graph-trace=node", "--trace=cuda,nvtx", "--export=sqlite"} <= set(words)
        assert "--output=out folder/report" in words
        assert recipe.trace == "out folder/report.sqlite"

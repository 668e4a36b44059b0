"""The examples in the docstrings of the model wing are what the code gives."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import stepscope.cost
import stepscope.models
import stepscope.operators

PACKAGES = (stepscope.models, stepscope.operators, stepscope.cost)
NAMES = [f"{package.__name__}.{info.name}" for package in PACKAGES for info in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0

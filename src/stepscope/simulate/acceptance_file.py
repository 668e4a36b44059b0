"""Files of measured mean accepted lengths: YAML of model -> mode -> {number of drafts: mean length}.

The form of InferenceX's golden curves (SemiAnalysisAI/InferenceX, golden_al_distribution, 2026-09): lengths count the
token that the model itself puts out, so with k drafts they lie between 1 and 1 + k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = "some-model: {thinking_on: {1: 1.79, 2: 2.27}}"


def read_mean_lengths(path: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Mean accepted lengths by model, mode and number of drafts.

    Raises:
        BadInput: it cannot be read, or a length is not one that so many drafts can have.
    """
    try:
        parsed = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        found = msgspec.convert(parsed, dict[str, dict[str, dict[int, float]]])
    except (OSError, ValueError, YAMLError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(
            f"{path}: no file of mean accepted lengths ({first}). Expected, for example: {EXAMPLE}"
        ) from error
    for model, modes in found.items():
        for mode, lengths in modes.items():
            for count, length in lengths.items():
                if count < 1 or not 1 <= length <= 1 + count:
                    raise BadInput(
                        f"{path}: {model}, {mode}: a mean length of {length} with {count} drafts. Expected 1 or more "
                        "drafts, and a length of 1 to 1 + drafts."
                    )
    return found

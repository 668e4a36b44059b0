"""Names as Nsight writes them -> the names that other recorders of the same work write.

`cudaLaunchKernel_v7000` is `cudaLaunchKernel`; copies are named as CUPTI's users name them; what PyTorch's emit_nvtx
adds to an operation (`, seq = 7, op_id = 9, sizes = [...]`) is taken off, else no two are alike. A layerwise marker
(vLLM, SGLang, TensorRT-LLM: a Python dict of module path and shapes) becomes the path and the input shapes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

from stepscope.annotations import parse_annotation
from stepscope.store.schema import OP, SCOPE

_API_VERSION = re.compile(r"(?:_v\d+)?(?:_ptsz|_ptds)?$")
_DIRECTIONS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
_UNIFIED = 11  # from here on: migrations of unified memory
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_OPERATION = re.compile(r"^(?P<op>.+?), (?:seq = -?\d+|op_id = \d+|sizes = )", re.DOTALL)
_IDENTIFIER = re.compile(r"^[A-Za-z_]\w*(?:::\w+)*$")
_MARKER = re.compile(r"^\{\s*'Module':")
_MAX_MARKER = 20_000


def call_name(name: str) -> str:
    """A runtime or driver call without the version of its entry point.

    >>> call_name("cudaStreamGetCaptureInfo_v2_v11030")
    'cudaStreamGetCaptureInfo_v2'
    """
    return _API_VERSION.sub("", name)


def copy_name(direction: int, source: int, target: int) -> str:
    """A copy by its direction and kinds of memory, as numbered by CUPTI."""
    way = _DIRECTIONS.get(direction, "Unknown")
    if direction >= _UNIFIED:
        return f"Memcpy {way} (Unified)"
    kinds = [_MEMORY[kind] if 0 <= kind < len(_MEMORY) else "Unknown" for kind in (source, target)]
    return f"Memcpy {way} ({kinds[0]} -> {kinds[1]})"


def fill_name(memory: int) -> str:
    """A fill by its kind of memory."""
    return f"Memset ({_MEMORY[memory] if 0 <= memory < len(_MEMORY) else 'Unknown'})"


@lru_cache(maxsize=65536)
def range_name(text: str) -> tuple[str, int]:
    """(name, kind) of an NVTX range: a framework's operation, or a scope."""
    if _MARKER.match(text):
        marker = parse_marker(text)
        return (marker.label, SCOPE) if marker else (text, SCOPE)
    operation = _OPERATION.match(text)
    name = operation["op"] if operation else text
    is_op = ("::" in name or operation) and _IDENTIFIER.match(name) and not parse_annotation(name)
    return name, OP if is_op else SCOPE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMarker:
    """A layerwise marker. Shapes as recorded: one list of sizes a tensor."""

    module: str
    inputs: object
    outputs: object

    @property
    def label(self) -> str:
        """Module path, and the input shapes where there are any."""
        return f"{self.module} {self.inputs}" if self.inputs else self.module


def parse_marker(text: str) -> LayerMarker | None:
    """A layerwise marker's parts, or None where the text is no whole dict.

    >>> parse_marker("{'Module': 'model.layers.0.mlp', 'Inputs': [[16, 4096]]}").label
    'model.layers.0.mlp [[16, 4096]]'
    """
    if len(text) > _MAX_MARKER:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("Module"), str):
        return None
    return LayerMarker(module=found["Module"], inputs=found.get("Inputs"), outputs=found.get("Outputs"))

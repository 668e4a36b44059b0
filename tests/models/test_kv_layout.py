from __future__ import annotations

import pytest

from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.kv_layout import (
    cache_row,
    kv_bytes_per_token,
    layouts_of,
    state_bytes_per_request,
    window_bytes_per_request,
)

PER_TOKEN = [
    ("deepseek-v4-flash", "bf16", 6880),
    ("deepseek-v4-flash", "fp8", 3850.25),
    ("deepseek-v4-flash-0731", "fp8-mxfp4-index", 3514.25),
    ("deepseek-v4-flash", "ascend-910c", 6218.5),
    ("deepseek-v4-flash", "ascend-arch35", 4153),
    ("deepseek-v4-pro", "bf16", 9848),
    ("deepseek-v4-pro", "fp8", 5511.4375),
    ("deepseek-v4-pro", "ascend-910c", 8903),
    ("glm-5.2", "bf16", 92_628),
    ("glm-5.2", "fp8", 53_940),
    ("glm-5.2", "nvfp4", 30_228),
    ("glm-5", "fp8", 61_464),
    ("glm-5.1", "fp8", 61_464),
    ("deepseek-v3.2", "bf16", 78_324),
    ("deepseek-v3.2", "fp8", 48_068),
    ("deepseek-v3.2", "nvfp4", 29_524),
    ("deepseek-v3", "bf16", 70_272),
    ("deepseek-v3", "fp8", 35_136),
    ("deepseek-r1", "bf16", 70_272),
    ("qwen3-next-80b-a3b", "bf16", 24_576),
    ("qwen3.5-397b-a17b", "bf16", 30_720),
    ("qwen3-30b-a3b", "bf16", 98_304),
    ("qwen3-235b-a22b", "bf16", 192_512),
    ("llama-3.1-8b", "bf16", 131_072),
    ("llama-3.1-70b", "bf16", 327_680),
    ("gpt-oss-120b", "bf16", 36_864),
]


@pytest.mark.parametrize(("name", "layout", "expected"), PER_TOKEN)
def test_cache_bytes_per_token(name: str, layout: str, expected: float) -> None:
    assert float(kv_bytes_per_token(read_model(name), layout)) == expected


def test_v4_rows_in_every_layout() -> None:
    c4 = next(x.attention for x in read_model("deepseek-v4-flash").layers if x.layer_type == "csa_c4")
    rows = {layout: cache_row(c4, layout) for layout in layouts_of(read_model("deepseek-v4-flash"))}
    assert {name: (row.kv, row.index) for name, row in rows.items()} == {
        "bf16": (1024, 256),
        "fp8": (584, 132),
        "fp8-mxfp4-index": (584, 68),
        "ascend-910c": (1024, 130),
        "ascend-arch35": (640, 132),
    }


def test_what_does_not_grow_with_context() -> None:
    flash = read_model("deepseek-v4-flash")
    assert state_bytes_per_request(flash) == 12_206_080
    assert state_bytes_per_request(read_model("deepseek-v4-pro")) == 18_710_528
    assert window_bytes_per_request(flash, "fp8") == 3_214_336
    assert state_bytes_per_request(read_model("qwen3-next-80b-a3b")) == 77_266_944
    assert window_bytes_per_request(read_model("gpt-oss-20b"), "bf16") == 3_145_728


def test_a_layout_that_does_not_exist_says_which_do() -> None:
    with pytest.raises(BadInput, match=r"unknown KV layout 'int3'\. Known: bf16, fp8"):
        kv_bytes_per_token(read_model("llama-3.1-8b"), "int3")
    with pytest.raises(BadInput, match=r"'ascend-910c' does not exist for GQA\. Known for it: bf16, fp8"):
        kv_bytes_per_token(read_model("llama-3.1-8b"), "ascend-910c")

from __future__ import annotations

import pytest

from stepscope.errors import BadInput
from stepscope.operators.gemm import gemm_row


def test_bytes_are_each_operand_once() -> None:
    """[2, 3] x [3, 5]: 60 flop; bf16 6 + 15 + 10 elements; fp8 weights 15 + 2 x 16 bytes."""
    assert (gemm_row(2, 3, 5).flop, gemm_row(2, 3, 5).bytes) == (60, 62)
    assert gemm_row(2, 3, 5, weights="fp8").bytes == 47


def test_intensity_saturates_where_weights_no_longer_count() -> None:
    assert gemm_row(10**9, 4096, 1024).intensity == pytest.approx(819.2, rel=1e-5)
    assert gemm_row(10**9, 4096, 4096).intensity == pytest.approx(2048, rel=1e-5)


def test_a_mean_of_rows_may_be_a_fraction() -> None:
    row = gemm_row(1.5, 4096, 4096)
    assert (row.flop, row.bytes) == (50_331_648.0, 33_579_008.0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="have to be positive"):
        gemm_row(0, 4096, 1024)
    with pytest.raises(BadInput, match="unknown dtype 'int7'"):
        gemm_row(1, 4096, 1024, dtype="int7")

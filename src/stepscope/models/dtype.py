"""Number formats: how many bytes a matrix takes, its block scales included.

bits: of one element; block: elements that share one scale of scale_bits (0: none, or so few that they are left out).
Sources: OCP Microscaling Formats 1.0 (mxfp4: blocks of 32, 8-bit scale); NVIDIA Blackwell nvfp4 (blocks of 16, e4m3
scale); DeepSeek-V3 technical report, section 3.3 (fp8_block: 128 x 128 tiles, fp32 scale). 2026-11.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """One dtype. `activation`: what a GEMM with weights of this dtype usually takes as its input."""

    name: str
    bits: int
    activation: str
    block: int = 0
    scale_bits: int = 0


FORMATS: dict[str, NumberFormat] = {
    f.name: f
    for f in (
        NumberFormat(name="fp32", bits=32, activation="fp32"),
        NumberFormat(name="bf16", bits=16, activation="bf16"),
        NumberFormat(name="fp16", bits=16, activation="fp16"),
        NumberFormat(name="fp8", bits=8, activation="fp8"),
        NumberFormat(name="fp8_block", bits=8, activation="fp8", block=128 * 128, scale_bits=32),
        NumberFormat(name="int8", bits=8, activation="int8"),
        NumberFormat(name="int4", bits=4, activation="bf16", block=128, scale_bits=16),
        NumberFormat(name="mxfp4", bits=4, activation="bf16", block=32, scale_bits=8),
        NumberFormat(name="nvfp4", bits=4, activation="nvfp4", block=16, scale_bits=8),
    )
}


def number_format(name: str) -> NumberFormat:
    """The format of a dtype's name.

    Raises:
        BadInput: nobody knows the name.
    """
    known = FORMATS.get(name)
    if known is None:
        raise BadInput(f"unknown dtype '{name}'. Known: {', '.join(FORMATS)}.")
    return known


def bits_with_scales(name: str) -> tuple[int, int]:
    """(numerator, denominator) of bytes per element, scales included.

    >>> bits_with_scales("bf16"), bits_with_scales("mxfp4")
    ((2, 1), (17, 32))
    """
    known = number_format(name)
    if not known.block:
        numerator, denominator = known.bits, 8
    else:
        numerator, denominator = known.bits * known.block + known.scale_bits, 8 * known.block
    while numerator % 2 == 0 and denominator % 2 == 0:
        numerator, denominator = numerator // 2, denominator // 2
    return numerator, denominator


def matrix_bytes(name: str, elements: int) -> int:
    """Bytes of a matrix with its scales, rounded up to a whole byte.

    >>> matrix_bytes("bf16", 1024), matrix_bytes("mxfp4", 64)
    (2048, 34)
    """
    numerator, denominator = bits_with_scales(name)
    return -(-elements * numerator // denominator)


def element_bytes(name: str) -> float:
    """Bytes of one element without scales: what the notes' tables count.

    >>> element_bytes("bf16"), element_bytes("mxfp4")
    (2.0, 0.5)
    """
    return number_format(name).bits / 8

"""The products of SDOT in the instructions of an Arm core that has no dot products.

Bytes are multiplied in 16 bits (SMULL, SMULL2), neighbours added in 32 (SADDLP, ADDP): what a
compiler for Neon makes of the same kernel, exactly, since no sum of two products leaves 32 bits.
"""

from __future__ import annotations

from dataclasses import replace

from cpembed.targets.arm.target import SDOT

_NAME = "cpembed_neon_products"

_HALVES = (
    "<i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>",
    "<i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>",
)

_FUNCTION = f"""
declare <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)
declare <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)
declare <4 x i32> @llvm.aarch64.neon.addp.v4i32(<4 x i32>, <4 x i32>)

define <4 x i32> @{_NAME}(<4 x i32> %sums, <16 x i8> %a, <16 x i8> %b) alwaysinline {{
  %a0 = shufflevector <16 x i8> %a, <16 x i8> poison, <8 x i32> {_HALVES[0]}
  %a1 = shufflevector <16 x i8> %a, <16 x i8> poison, <8 x i32> {_HALVES[1]}
  %b0 = shufflevector <16 x i8> %b, <16 x i8> poison, <8 x i32> {_HALVES[0]}
  %b1 = shufflevector <16 x i8> %b, <16 x i8> poison, <8 x i32> {_HALVES[1]}
  %p0 = call <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8> %a0, <8 x i8> %b0)
  %p1 = call <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8> %a1, <8 x i8> %b1)
  %s0 = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16> %p0)
  %s1 = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16> %p1)
  %s = call <4 x i32> @llvm.aarch64.neon.addp.v4i32(<4 x i32> %s0, <4 x i32> %s1)
  %result = add <4 x i32> %sums, %s
  ret <4 x i32> %result
}}
"""


def _call(sums: str, first: str, second: str, _: bool) -> str:
    return f'T.call_extern("int32x4", "{_NAME}", {sums}, {first}, {second})'


NEON_PRODUCTS = replace(
    SDOT,
    name="neon",
    feature="asimd",
    backend="arm.neon",
    call=_call,
    functions=_FUNCTION,
    attributes=(),
)
"""Stands for SDOT in a kernel; schedules are ranked as those of SDOT are."""

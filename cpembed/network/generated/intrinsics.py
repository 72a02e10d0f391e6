"""Operations that are written as LLVM's own, since TVM's would not be vectorised or not kept."""

from __future__ import annotations


def nearest(value: str, dtype: str = "float32") -> str:
    """A float rounded to the nearest whole number, to the even one of two."""
    return _intrinsic("nearbyint", value, dtype)


def rounded_product(value: str, dtype: str = "float32") -> str:
    """A product that is rounded by itself: a sum is not contracted with what is canonicalized."""
    return _intrinsic("canonicalize", value, dtype)


def _intrinsic(name: str, value: str, dtype: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.{name}")'
    return f'T.call_llvm_pure_intrin({number}, {value}, dtype="{dtype}")'

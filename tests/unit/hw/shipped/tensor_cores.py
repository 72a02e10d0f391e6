"""NVIDIA's Tensor Cores, from the PTX ISA and the white papers."""

from __future__ import annotations

from tests.unit.hw.shipped.facts import Array, Model, facts

BACKEND = "cuda"

FLOATS = {
    "f16": "float16 float16 float32",
    "f16_f16": "float16 float16 float16",
    "bf16": "bfloat16 bfloat16 float32",
}

SHAPES = {"": (16, 16, 16), "_32x8x16": (32, 8, 16), "_8x32x16": (8, 32, 16)}
"""Of WMMA, by what names end in."""


def mma(m: int, n: int, k: int) -> Model:
    """mma.sync: A in rows (.row), B in columns (.col)."""

    def model(a: Array, b: Array, c: Array) -> None:
        c += (a.reshape(m, k) @ b.reshape(n, k).T).ravel()

    return model


def wmma(m: int, n: int, k: int) -> Model:
    """Fragments that are row_major, of the least leading dimension."""

    def model(a: Array, b: Array, c: Array) -> None:
        c += (a.reshape(m, k) @ b.reshape(k, n)).ravel()

    return model


EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")

WARP_GROUPS: dict[str, tuple[int, str]] = {
    "wgmma_f16": (16, FLOATS["f16"]),
    "wgmma_f16_f16": (16, FLOATS["f16_f16"]),
    "wgmma_bf16": (16, FLOATS["bf16"]),
    "wgmma_s8": (32, "int8 int8 int32, int8 uint8 int32, uint8 int8 int32, uint8 uint8 int32"),
    "wgmma_f8": (32, ", ".join(f"{a} {b} float32" for a in EIGHT_BITS for b in EIGHT_BITS)),
    "wgmma_f8_f16": (32, ", ".join(f"{a} {b} float16" for a in EIGHT_BITS for b in EIGHT_BITS)),
}
"""Depth and element types of wgmma.mma_async, with eight columns; both factors K-major."""

MODELS: dict[str, Model] = {
    **{f"mma_{types}": mma(16, 8, 16) for types in FLOATS},
    **dict.fromkeys(("mma_s8", "mma_f8", "mma_f8_f16"), mma(16, 8, 32)),
    **{
        f"wmma_{types}{end}": wmma(*shape)
        for types in (*FLOATS, "s8")
        for end, shape in SHAPES.items()
    },
    **{name: mma(64, 8, depth) for name, (depth, _) in WARP_GROUPS.items()},
}

BYTES = "int8 int8 int32, int8 uint8 int32, uint8 int8 int32, uint8 uint8 int32"

_SMALL = ("float8_e4m3fn", "float8_e5m2")


def small_floats(sums: str) -> str:
    """Types of 8-bit floats: either factor may be of either."""
    return ", ".join(f"{a} {b} {sums}" for a in _SMALL for b in _SMALL)


FACTS = {
    **{
        f"mma_{name}": facts("x 16, y 8, z 16", BACKEND, "", types, "A.x, B.y, C.x")
        for name, types in FLOATS.items()
    },
    **{
        name: facts("x 16, y 8, z 32", BACKEND, "", types, "A.x, B.y, C.x")
        for name, types in (
            ("mma_s8", BYTES),
            ("mma_f8", small_floats("float32")),
            ("mma_f8_f16", small_floats("float16")),
        )
    },
    **{
        f"wmma_{name}{end}": facts(f"x {m}, y {n}, z {k}", BACKEND, "", types, "A.x, B.z, C.x")
        for name, types in {**FLOATS, "s8": "int8 int8 int32"}.items()
        for end, (m, n, k) in SHAPES.items()
    },
    **{
        name: facts(f"x 64, y 8, z {depth}", "hopper", "", types, "A.x, B.y, C.x")
        for name, (depth, types) in WARP_GROUPS.items()
    },
}


def _machines(name: str) -> tuple[str, ...]:
    if name in WARP_GROUPS:
        return ("h100", "h200")
    return (*(("a100", "h100", "h200") if "f8" not in name else ()), *_PEAKS)


# Dense TFLOPS and TOPS of the white papers, two operations to a product: 312 and 624 of the A100;
# 989.4 and 1978.9 of the H100 and H200, of which mma reaches 62.9 %.
_HOPPER = (0.629 * 989.4e3, 0.629 * 1978.9e3)
# Of the others by the types of factors and sums: bytes, 8-bit floats, and those of 16 bits.
_TYPES = ("s8", "f8_f16", "f8", "f16_f16", "f16", "bf16")
_PEAKS = {
    "rtx_5090": (838e3, 838e3, 419e3, 419e3, 209.5e3, 209.5e3),
    "rtx_pro_6000": (1007.6e3, 1007.6e3, 1007.6e3, 503.8e3, 503.8e3, 503.8e3),
    # A quarter, and an eighth, of 1000 TOPS of FP4 with sparsity.
    "dgx_spark": (250e3, 250e3, 250e3, 125e3, 125e3, 125e3),
    "rtx_4090": (660.6e3, 660.6e3, 330.3e3, 330.3e3, 165.2e3, 165.2e3),
    # Of the data sheet's 366 at 2520 MHz, 362 are stated.
    "l40s": (733e3, 733e3, 733e3, 366.4e3, 366.4e3, 366.4e3),
}


MACHINES = {name: _machines(name) for name in FACTS}


def _peak(name: str, machine: str) -> float:
    if machine in _PEAKS:
        peaks = zip(_TYPES, _PEAKS[machine], strict=True)
        return next(peak for types, peak in peaks if f"mma_{types}" in name)
    if name in WARP_GROUPS:
        return 989.4e3 if WARP_GROUPS[name][0] == 16 else 1978.9e3
    halves, bytes_ = (312e3, 624e3) if machine == "a100" else _HOPPER
    return bytes_ if "s8" in name else halves


PEAKS = {(name, machine): _peak(name, machine) / 2 for name in FACTS for machine in MACHINES[name]}

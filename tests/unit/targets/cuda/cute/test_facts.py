"""Fragments, images, descriptors and corners beside CuTe's own definitions.

``facts.json`` holds what the templates of CUTLASS 4.7.0 (commit 7107b055) evaluate to on the host;
``facts.cu`` is the program that evaluates them:

    nvcc -std=c++17 -arch=sm_90a -I CUTLASS/include --expt-relaxed-constexpr -o facts facts.cu
    ./facts facts.json > /dev/null
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.instructions import INSTRUCTIONS, fragments
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.tma.boxes import Image, walk_digits
from cpembed.targets.cuda.tma.factors import accesses
from cpembed.targets.cuda.tma.tensor_maps import Im2colBox, TensorMap
from cpembed.targets.cuda.warp_specialized.layouts import SharedImage

FACTS: dict[str, Any] = json.loads(Path(__file__).with_name("facts.json").read_text("utf-8"))


@pytest.mark.parametrize("fact", FACTS["fragments"], ids=lambda fact: fact["name"])
def test_fragments_of_warp_products(fact: dict[str, Any]) -> None:
    name, matrix = fact["name"].split(".")
    instruction = next(i for i in INSTRUCTIONS if i.name == name)
    fragment = instruction.fragments["abc".index(matrix)]
    for lane in range(fact["threads"]):
        for element in range(fact["values"]):
            linear = fact["positions"][lane * fact["values"] + element]
            # CuTe's second factor is the transpose: columns, then depth.
            expected = (linear % fact["rows"], linear // fact["rows"])
            row, column = fragments()[fragment].position(lane, element)
            assert expected == ((column, row) if matrix == "b" else (row, column))


@pytest.mark.parametrize("fact", FACTS["warp_group_fragments"], ids=lambda fact: fact["name"])
def test_fragments_of_warp_group_products(fact: dict[str, Any]) -> None:
    shape, matrix = fact["name"].split(".")
    depth = shape.removeprefix("m64k")
    fragment = f"m16n8k{depth}.a" if matrix == "a" else "m16n8k16.c"
    each = 4 if matrix == "c" else fact["values"]
    for thread in range(128):
        for element in range(fact["values"]):
            linear = fact["positions"][thread * fact["values"] + element]
            row, column = fragments()[fragment].position(thread % 32, element % each)
            placed = (thread // 32 * 16 + row, element // each * 8 + column)
            assert placed == (linear % 64, linear // 64)


@pytest.mark.parametrize("fact", FACTS["ldmatrix"], ids=lambda fact: fact["name"])
def test_ldmatrix(fact: dict[str, Any]) -> None:
    """A fact has the lane whose row an element is of, and its place in the row."""
    transposed = fact["name"].endswith(".trans")
    fragment = fragments()["ldmatrix.trans" if transposed else "ldmatrix"]
    values = fact["values"]
    for lane in range(32):
        for element in range(values):
            matrix, i = divmod(element, 2)
            row, column = fragment.position(lane, i)
            assert fact["positions"][lane * values + element] == [matrix * 8 + row, column]


def image_of(fact: dict[str, Any]) -> SharedImage:
    return SharedImage(fact["rows"], fact["depth"] * fact["bits"] // 8, fact["major"])


def image_name(fact: dict[str, Any]) -> str:
    return f"{fact['major']}-{fact['bits']}-{fact['rows']}x{fact['depth']}-{fact['span']}"


@pytest.mark.parametrize("fact", FACTS["images"], ids=image_name)
def test_elements_of_an_image(fact: dict[str, Any]) -> None:
    image, size = image_of(fact), fact["bits"] // 8
    assert image.span == fact["span"]
    for row, deep, offset in fact["offsets"]:
        assert image.offset(row, deep * size) == offset


@pytest.mark.parametrize("fact", FACTS["images"], ids=image_name)
def test_descriptors_of_an_image(fact: dict[str, Any]) -> None:
    image, size = image_of(fact), fact["bits"] // 8
    bits = image.descriptor.bits
    for row, deep, distance, leading, stride, base, swizzle in fact["matrices"]:
        assert image.matrix_offset(row, deep * size) == distance
        assert (bits >> 49 & 7, bits >> 62) == (base, swizzle)
        # Fields are not read where there is one atom: CuTe has what its layout says.
        if fact["rows"] > 8 or fact["major"] == "mn":
            assert bits >> 32 & 0x3FFF == stride
        if fact["major"] == "k" or fact["rows"] * 2 > fact["span"]:
            assert bits >> 16 & 0x3FFF == leading


def im2col_maps(words: str) -> Iterator[TensorMap]:
    """Yield the maps of the image, those of the best embeddings first."""
    spec = hardware_spec("wgmma_f16")
    computation = workload(words, target=spec)
    for top in (1, 40):
        for embedding in solve(computation, spec, constraints="fused", top=top).embeddings:
            for access in accesses(lower(embedding.candidate.program, spec), 0):
                try:
                    walk = walk_digits(access.row_parts(1), access.stored_rows)
                    image = Image(access, 16, walk)
                    yield image.tensor_map(image.dimensions(), 64)[0]
                except LoweringError:
                    continue


LETTERS = {1: ("w", "s", "NWC"), 2: ("hw", "rs", "NHWC")}


def words_of(fact: dict[str, Any]) -> str:
    rank = len(fact["size"])
    image, taps, layout = LETTERS[rank]
    sizes = zip((*image, *taps), (*fact["size"], *fact["filter"]), strict=True)
    text = " ".join(f"{name}={size}" for name, size in sizes)
    lists = ("pad", "stride", "dilation")
    steps = " ".join(f"{name}={','.join(map(str, fact[name]))}" for name in lists)
    return f"conv{rank}d n={fact['n']} c=16 k=16 {text} {steps} layout={layout}"


@pytest.mark.parametrize("fact", FACTS["im2col"], ids=words_of)
def test_corners_of_convolutions(fact: dict[str, Any]) -> None:
    """The view whose dimensions are those of the image has CUTLASS's corners.

    Its upper corners may be smaller by less than a stride, which leaves as many bases.
    """
    dimensions = (16, *fact["size"][::-1], fact["n"])
    tensor_map = next(
        (each for each in im2col_maps(words_of(fact)) if each.global_dims == dimensions), None
    )
    assert tensor_map is not None
    box = tensor_map.box
    assert isinstance(box, Im2colBox)
    assert list(box.lower) == fact["lower_whd"]
    assert list(tensor_map.bases) == fact["output"][::-1]
    assert list(tensor_map.element_strides) == [1, *fact["stride"][::-1], 1]
    for upper, expected, stride in zip(
        box.upper, fact["upper_whd"], fact["stride"][::-1], strict=True
    ):
        assert 0 <= expected - upper < stride

"""Factors that are packed ahead as images of shared memory, and the kernel that packs them.

A bulk copy moves an image as it is: swizzled, and with zeros where the factor has no elements. The
images of a block's stages follow each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.lower import GlobalOperand, original_access
from cpembed.targets.cuda.packing import Location, gathering, original_location
from cpembed.targets.cuda.warp_specialized.layouts import CHUNK, PATTERN_ROWS, SharedImage
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    Functions,
    Writer,
    digits,
    factor_values,
    quotient,
    remainder,
)
from cpembed.transform.program import Loop


@dataclass(frozen=True)
class PackedImages:
    """All images of a factor, in the order batch, block, stage."""

    plan: SpecializedPlan
    number: int
    """Number of the factor."""

    @property
    def image(self) -> SharedImage:
        return self.plan.images[self.number]

    @property
    def operand(self) -> GlobalOperand:
        return self.plan.operand(self.number)

    @property
    def dtype(self) -> str:
        return self.operand.layout.dtype

    @property
    def image_elements(self) -> int:
        return self.image.content_bytes // size_bytes(self.dtype)

    @property
    def batch(self) -> tuple[Loop, ...]:
        """Loops of the batch that move the factor."""
        used = {name for index in self.operand.layout.access for name in index.iterators}
        return tuple(loop for loop in self.plan.product.batch if loop.name in used)

    @property
    def blocks(self) -> int:
        return self.plan.blocks[self.number]

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def elements(self) -> int:
        batch = math.prod(loop.extent for loop in self.batch)
        return batch * self.blocks * self.steps * self.image_elements

    def start(self, batch: str, block: str, step: str) -> str:
        """Return TVMScript of the first element of an image."""
        values, number = digits(batch, self.plan.product.batch), "0"
        for loop in self.batch:
            number = f"({number}) * {loop.extent} + {values[loop.name]}"
        image = f"(({number}) * {self.blocks} + {block}) * {self.steps} + {step}"
        return f"({image}) * {self.image_elements}"


def image_packing(images: PackedImages) -> Functions:
    """Return the kernel ``(original, images)`` that packs a factor."""
    extents = images.plan.product.program.extents

    def locate(writer: Writer) -> Location:
        conditions, values = _located(writer, images)
        coordinates = original_access(images.operand.layout)
        inside, address = original_location(images.operand, coordinates, values, extents)
        return [*conditions, *inside], address

    return gathering(images.operand, PARAMETERS[images.number], images.elements, locate)


def _located(writer: Writer, images: PackedImages) -> tuple[list[str], dict[str, str]]:
    """Write which element of which image a thread moves; return conditions and iterators."""
    plan, image, product = images.plan, images.image, images.plan.product
    number, size = images.number, size_bytes(images.dtype)
    extent = (product.instruction.m, product.instruction.n)[number]
    chunks = image.span // CHUNK
    turn = "image_row" if chunks == PATTERN_ROWS else f"image_row // {PATTERN_ROWS // chunks}"
    stage, all_steps = (
        quotient("number", images.image_elements),
        images.image_elements * images.steps,
    )
    writer.script.lines(
        (
            f"image_byte = {remainder('number', images.image_elements)} * {size}",
            f"step = {remainder(stage, images.steps)}",
            f"block = {remainder(quotient('number', all_steps), images.blocks)}",
            f"batch = {quotient('number', all_steps * images.blocks)}",
            f"image_row = image_byte // {image.span}",
            f"chunk = T.bitwise_xor(image_byte % {image.span} // {CHUNK}, {turn} % {chunks})",
            f"element = (chunk * {CHUNK} + image_byte % {CHUNK}) // {size}",
            f"tile = block * {plan.schedule.block[number]} + image_row // {extent}",
            f"deep = step * {plan.schedule.depth} + element // {product.instruction.k}",
        )
    )
    values = factor_values(product, number, "tile", "deep") | digits("batch", images.batch)
    values[product.axes[number]] = remainder("image_row", extent)
    values[product.axes[2]] = remainder("element", product.instruction.k)
    return [f"tile < {product.tiles[1 + number]}", f"deep < {product.tiles[3]}"], values

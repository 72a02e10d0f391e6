"""Factors that are packed ahead as images of shared memory, and the kernel that packs them.

A bulk copy moves an image as it is: swizzled, and with zeros where the factor has no elements. The
images of a block's stages follow each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cpembed.codegen.plan import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.hopper.layouts import CHUNK, PATTERN_ROWS, SharedImage
from cpembed.targets.cuda.hopper.schedule import HopperPlan
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.writer import (
    PACKING_THREADS,
    PARAMETERS,
    Writer,
    digits,
    guarded_place,
    index_script,
    quotient,
    register_pointer,
    remainder,
)
from cpembed.transform.program import Loop


@dataclass(frozen=True)
class PackedImages:
    """All images of a factor, in the order batch, block, stage."""

    plan: HopperPlan
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


def original_coordinates(operand: GlobalOperand) -> tuple[IndexExpr, ...]:
    """Return the coordinates of an element in the original layout, over loops and axes."""
    layout = operand.layout
    places = dict(zip((d.name for d in layout.dimensions), layout.access, strict=True))
    return tuple(source.substitute(places) for source in layout.source)


def images_kernel(images: PackedImages) -> Writer:
    """Return the function ``(original, images)`` that packs a factor.

    Each thread moves an element; an element without an original is zero.
    """
    layout, name = images.operand.layout, PARAMETERS[images.number]
    writer, blocks = Writer(), packing_blocks(images)
    script, original = writer.script, math.prod(layout.original_shape)
    declared = [
        buffer(f"{name}_original", original, layout.dtype),
        buffer(name, images.elements, layout.dtype),
    ]
    script.line(HEADER)
    with (
        script.nested(f"def main({', '.join(declared)}):"),
        script.nested(
            f'for bx in T.thread_binding({blocks}, thread="blockIdx.x"):',
            f'for tx in T.thread_binding({PACKING_THREADS}, thread="threadIdx.x"):',
            'with T.sblock("packing"):',
        ),
    ):
        script.line(f"group = T.axis.spatial({blocks}, bx)")
        script.line(f"thread = T.axis.spatial({PACKING_THREADS}, tx)")
        script.line(f"T.reads({name}_original[0 : {original}])")
        script.line(f"T.writes({name}[0 : {images.elements}])")
        script.line(f"number = group * {PACKING_THREADS} + thread")
        _write_element(writer, images)
    script.drop_unread()
    return writer


def packing_blocks(images: PackedImages) -> int:
    """Return the number of blocks of the packing kernel."""
    return -(-images.elements // PACKING_THREADS)


def _write_element(writer: Writer, images: PackedImages) -> None:
    layout, name, script = images.operand.layout, PARAMETERS[images.number], writer.script
    size = size_bytes(layout.dtype)
    conditions, values = _located(writer, images)
    extents = images.plan.product.program.extents
    address, stride = "0", 1
    # Row-major in the original: the last dimension has stride 1.
    coordinates = original_coordinates(images.operand)
    for index, extent in reversed(list(zip(coordinates, layout.original_shape, strict=True))):
        coordinate = index_script(index, values, extents)
        low, high = index.bounds(extents)
        conditions += [f"0 <= {coordinate}"] * (low < 0)
        conditions += [f"{coordinate} < {extent}"] * (high >= extent)
        address = f"{address} + ({coordinate}) * {stride}"
        stride *= extent
    script.lines(guarded_place(conditions, address))
    # Through a register, as device functions take pointers to registers.
    script.line(f'one = T.alloc_buffer((1,), "{storage_dtype(layout.dtype)}", scope="local")')
    register = register_pointer("one", "0")
    writer.call(f"cpembed_load_{size}", register, f"T.address_of({name}_original[place])", "valid")
    # Elements without an original are stored as well: the load made them zero.
    script.line(f"exists = T.Select(number < {images.elements}, 1, 0)")
    script.line("target = T.Select(exists == 1, number, 0)")
    writer.call(f"cpembed_store_{size}", f"T.address_of({name}[target])", register, "exists")


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
    loops = (product.rows, product.columns)[number]
    _, rows, columns, deep = product.tiles
    values = {
        **dict.fromkeys((loop.name for loop in product.program.loops), "0"),
        **digits("batch", images.batch),
        **digits("tile", loops),
        **digits("deep", product.depth),
        product.axes[number]: remainder("image_row", extent),
        product.axes[2]: remainder("element", product.instruction.k),
    }
    conditions = [f"number < {images.elements}", f"tile < {(rows, columns)[number]}"]
    return [*conditions, f"deep < {deep}"], values

"""Statements of the producers, which fill a stage with the images of both factors.

Images that were packed ahead come by bulk copies, views of a tensor map by TMA, and any other
factor by the copies of 128 threads, which put each vector where the swizzle has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.codegen.plan import buffer
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import WARP_GROUP
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.tile_copies import copy_vector
from cpembed.targets.cuda.tma.views import ImageCopy
from cpembed.targets.cuda.warp_specialized.device import tensor_load_name
from cpembed.targets.cuda.warp_specialized.packing import PackedImages
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.tiles import multicast_mask
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    Writer,
    factor_values,
    guarded_place,
    index_script,
    inside_conditions,
    shared_pointer,
)

MAX_UNROLLED_COPIES = 8
"""Maximum number of copies of a thread that are unrolled."""

BLOCKS = ("row_block", "column_block")
"""Variables of the number of a block along rows and columns."""


def factor_parameter(plan: SpecializedPlan, number: int) -> str:
    """Return the declaration of a factor's parameter."""
    name, operand = PARAMETERS[number], plan.operand(number)
    load = plan.schedule.loads[number]
    if load == "tensor":
        return f"{map_name(name)}: T.TensorMap()"
    elements = operand.layout.elements
    if load == "bulk":
        elements = PackedImages(plan, number).elements
    return buffer(name, elements, operand.layout.dtype)


def map_name(name: str) -> str:
    """Return the name of the parameter that is a tensor map of a factor, or of the result."""
    return f"{name}_map"


def copied_bytes(plan: SpecializedPlan) -> int:
    """Return the number of bytes of a stage that mbarriers count as they arrive."""
    return sum(factor_bytes(plan, number) for number in range(2))


def factor_bytes(plan: SpecializedPlan, number: int) -> int:
    """Return the bytes of a factor's image that asynchronous copies write."""
    view = plan.views[number]
    if view is not None:
        return view.transaction_bytes
    return plan.images[number].content_bytes if plan.schedule.loads[number] == "bulk" else 0


def write_asynchronous(
    writer: Writer, plan: SpecializedPlan, step: str, places: tuple[str, str]
) -> None:
    """Write the copies of a stage that one thread issues.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, in which ``barrier`` is the byte of the stage's mbarrier.
    plan : SpecializedPlan
    step : str
        Expression of the number of the stage in the whole reduction.
    places : tuple of str and str
        Expressions of the first byte of each image.
    """
    for number, load in enumerate(plan.schedule.loads):
        if load == "bulk":
            _write_bulk(writer, plan, number, step, places[number])
        elif load == "tensor":
            _write_tensor(writer, plan, number, step, places[number])


def _write_tensor(
    writer: Writer, plan: SpecializedPlan, number: int, step: str, place: str
) -> None:
    view = plan.views[number]
    assert view is not None
    first = f"{BLOCKS[number]} * {plan.schedule.block[number]}"
    deep = f"{step} * {plan.schedule.depth}"
    sharers = plan.schedule.sharers(number)
    mask = [multicast_mask(plan.schedule.cluster, number)] * (sharers > 1)
    columns = plan.schedule.cluster[1]
    place_in_group = f"rank % {columns}" if number == 0 else f"rank // {columns}"
    for turn, copy in enumerate(view.copies):
        # Each of the blocks that share an image issues some of its copies.
        condition = [f"if {place_in_group} == {turn % sharers}:"] * (sharers > 1)
        with writer.script.nested(*condition):
            write_tensor_copy(
                writer, copy, plan.product, number, (first, deep), place,
                map_name(PARAMETERS[number]), mask,
            )  # fmt: skip


def write_tensor_copy(
    writer: Writer,
    copy: ImageCopy,
    product: TiledProduct,
    number: int,
    tiles: tuple[str, str],
    place: str,
    name: str,
    mask: Sequence[str] = (),
) -> None:
    """Write a copy of a view.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, in which ``barrier`` is the byte of the mbarrier, and ``batch`` the
        number of the batch.
    copy : ImageCopy
    product : TiledProduct
    number : int
        Number of the factor.
    tiles : tuple of str and str
        Expressions of the image's first instruction tile along rows or columns, and along the
        depth.
    place : str
        Expression of the first byte of the image.
    name : str
        Name of the tensor map.
    mask : sequence of str
        Expression of the mask of blocks of a multicast, or nothing.
    """
    (first, deep), extents = tiles, product.program.extents
    tile = f"{first} + {copy.tile}" if copy.tile else first
    values = factor_values(product, number, tile, deep)
    coordinates = [index_script(index, values, extents) for index in copy.coordinates]
    offsets = [index_script(index, values, extents) for index in copy.filter]
    writer.call(
        tensor_load_name(len(coordinates), len(offsets), multicast=bool(mask)),
        shared_pointer(f"{place} + {copy.offset}"),
        f"T.address_of({name})",
        shared_pointer("barrier"),
        *coordinates,
        *offsets,
        *mask,
    )


def _write_bulk(writer: Writer, plan: SpecializedPlan, number: int, step: str, place: str) -> None:
    images = PackedImages(plan, number)
    start = images.start("batch", BLOCKS[number], step)
    writer.call(
        "cpembed_bulk_load",
        shared_pointer(place),
        f"T.address_of({PARAMETERS[number]}[{start}])",
        str(images.image.content_bytes),
        shared_pointer("barrier"),
    )


def write_by_threads(
    writer: Writer, plan: SpecializedPlan, number: int, step: str, place: str
) -> None:
    """Write the copies of a factor's image by all threads of the producers.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, in which ``producer`` is the number of the thread.
    plan : SpecializedPlan
    number : int
        Number of the factor.
    step : str
        Expression of the number of the stage in the whole reduction.
    place : str
        Expression of the first byte of the image.
    """
    image, operand, script = plan.images[number], plan.operand(number), writer.script
    width = operand.length * size_bytes(operand.layout.dtype)
    vectors = image.content_bytes // width
    turns, rest = -(-vectors // WARP_GROUP), vectors % WARP_GROUP
    # Many short accesses in parallel would need more registers than there are.
    loop = "unroll" if width >= 4 and turns <= MAX_UNROLLED_COPIES else "serial"
    with script.nested(f"for turn in T.{loop}({turns}):"):
        script.line(f"slot = turn * {WARP_GROUP} + producer")
        with script.nested(*[f"if slot < {vectors}:"] * bool(rest)):
            _locate_vector(writer, plan, number, step)
            copy_vector(writer, PARAMETERS[number], operand, "image_row", image.place, place)


def _locate_vector(writer: Writer, plan: SpecializedPlan, number: int, step: str) -> None:
    """Write ``place``, the number of a slot's vector in its factor, and ``valid``."""
    product, operand = plan.product, plan.operand(number)
    extent = (product.instruction.m, product.instruction.n)[number]
    vectors = plan.images[number].span // (operand.length * size_bytes(operand.layout.dtype))
    block = plan.schedule.block[number]
    writer.script.lines(
        (
            f"image_row = slot // {vectors}",
            f"element = slot % {vectors} * {operand.length}",
            f"tile = {BLOCKS[number]} * {block} + image_row // {extent}",
            f"deep = {step} * {plan.schedule.depth} + element // {product.instruction.k}",
        )
    )
    extents = product.program.extents
    values = factor_values(product, number, "tile", "deep") | {
        product.axes[number]: f"image_row % {extent}",
        product.axes[2]: f"element % {product.instruction.k}",
    }
    conditions = [f"tile < {product.tiles[1 + number]}", f"deep < {product.tiles[3]}"]
    conditions += inside_conditions(operand, values, extents)
    address = index_script(operand.address, values, extents)
    writer.script.lines(guarded_place(conditions, address))

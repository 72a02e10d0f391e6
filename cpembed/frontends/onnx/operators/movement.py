"""Operators that move elements, and those that are decided while the model is read.

Elements at indices are gathered by their numbers in row-major order. Constants, shapes and branches
need no operator of the graph.
"""

from __future__ import annotations

import math

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import LARGEST_CONSTANT
from cpembed.frontends.expressions import X, Y, Z, add, equal, mul, where
from cpembed.frontends.narrow import bytes_of
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.elementwise import element_type
from cpembed.graph.kinds import Gather
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.index import row_major_strides


def _dropout(call: Call) -> list[str]:
    """Return the input and a mask of ones; reject training, unless its ratio is 0."""
    if _drops(call):
        call.reject("it drops elements, as in training: export the model for inference")
    x = call.input()
    if not any(call.is_read[1:]):
        return [x]
    dtype = "bool" if call.version >= 10 else call.dtype(x)
    return [x, call.tensor(np.ones(call.shape(x), dtype))]


def _drops(call: Call) -> bool:
    """Return True in training with a ratio above 0."""
    # Training is a flag before version 7 and an input from version 12 on.
    if call.version < 7:
        return not call.flag("is_test") and call.number("ratio", 0.5) != 0
    if call.version < 12 or call.optional(2) is None:
        return False
    ratio = call.optional_constant(1, "the ratio")
    ratio = 0.5 if ratio is None else ratio.item()
    return bool(call.constant(2, "training_mode").item()) and ratio != 0


# -- shapes and axes ------------------------------------------------------------------------------


def _reshape(call: Call) -> str:
    sizes = call.list_or_input("shape", 1)
    if sizes is None:
        call.reject("no shape is given")
    current = call.type().shape
    error = WorkloadError(f"{list(current)} cannot be reshaped to {list(sizes)}")
    shape = list(sizes)
    # A size of 0 stands for the input's size of the same axis, and -1 for what is left.
    if not call.flag("allowzero"):
        if any(size == 0 and k >= len(current) for k, size in enumerate(shape)):
            raise error
        shape = [current[k] if size == 0 else size for k, size in enumerate(shape)]
    if shape.count(-1) == 1:
        rest = -math.prod(shape)
        shape[shape.index(-1)] = call.type().elements // rest if rest else 0
    if min(shape, default=0) < 0:
        raise error
    return call.reshaped(call.input(), shape)


def _flatten(call: Call) -> str:
    shape = call.type().shape
    axis = call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise WorkloadError(f"axis {axis} of a tensor of {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return call.reshaped(call.input(), (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(call: Call) -> str:
    shape = call.type().shape
    axes = call.list_or_input("axes", 1)
    if axes is None:
        axes = tuple(k for k, size in enumerate(shape) if size == 1)
    removed = {axis_of(axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in removed):
        raise WorkloadError(f"axes {sorted(removed)} of {list(shape)} are not all of size 1")
    return call.reshaped(call.input(), [s for k, s in enumerate(shape) if k not in removed])


def _unsqueeze(call: Call) -> str:
    axes = call.list_or_input("axes", 1) or ()
    rank = call.rank() + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise WorkloadError(f"axes {list(axes)} are named twice")
    rest = iter(call.type().shape)
    return call.reshaped(call.input(), [1 if k in new else next(rest) for k in range(rank)])


def _transpose(call: Call) -> str:
    order = call.list_of("perm", tuple(reversed(range(call.rank()))))
    if sorted(order) != list(range(call.rank())):
        raise WorkloadError(f"{list(order)} is no order of {call.rank()} axes")
    return call.transposed(call.input(), order)


def _expand(call: Call) -> str:
    current, sizes = call.type().shape, call.integers(1, "the shape")
    try:
        shape = np.broadcast_shapes(current, sizes)
    except ValueError:
        raise WorkloadError(f"{list(current)} does not broadcast to {list(sizes)}") from None
    return call.expanded(call.input(), shape)


def _tile(call: Call) -> str:
    shape, repeats = call.type().shape, call.integers(1, "the repeats")
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        raise WorkloadError(f"repeats {list(repeats)} of {list(shape)}: give one for each axis")
    return call.repeated(call.input(), repeats)


def _depth_to_space(call: Call) -> str:
    _, c, _, _ = call.type().shape
    block = call.integer("blocksize", 0)
    if block < 1 or c % (block * block):
        raise WorkloadError(f"blocks of {block} of {c} channels: the blocks have to be whole")
    blocks_first = call.text("mode", "DCR", ("DCR", "CRD")) == "DCR"
    return call.blocks_to_pixels(call.input(), block, blocks_first=blocks_first)


def _space_to_depth(call: Call) -> str:
    _, _, h, w = call.type().shape
    block = call.integer("blocksize", 0)
    if block < 1 or h % block or w % block:
        raise WorkloadError(f"blocks of {block} of {h} by {w}: the blocks have to be whole")
    blocks_first = call.text("mode", "DCR", ("DCR", "CRD")) == "DCR"
    return call.pixels_to_blocks(call.input(), block, blocks_first=blocks_first)


# -- parts ----------------------------------------------------------------------------------------


def _split(call: Call) -> list[str]:
    axis, x = call.axis(), call.input()
    size = call.type().shape[axis]
    parts = call.list_or_input("split", 1)
    if parts is None:
        count = call.integer("num_outputs", len(call.node.outputs))
        # Equal parts, of which the last may be smaller or, of more parts than elements, empty.
        each = -(-size // max(1, count))
        parts = tuple(max(0, min(each, size - k * each)) for k in range(count))
    if sum(parts) != size or min(parts, default=0) < 0:
        raise WorkloadError(f"parts {list(parts)} of an axis of {size}")
    ends = np.cumsum(parts).tolist()
    return [call.part(x, axis, end - n, end) for n, end in zip(parts, ends, strict=True)]


def _slice(call: Call) -> str:
    shape = call.type().shape
    # Until version 10 the numbers were attributes.
    if call.version < 10:
        begins, ends = call.list_of("starts"), call.list_of("ends")
        axes, steps = call.optional_list("axes"), None
    else:
        begins, ends = call.integers(1, "starts"), call.integers(2, "ends")
        axes = None if call.optional(3) is None else call.integers(3, "axes")
        steps = None if call.optional(4) is None else call.integers(4, "steps")
    axes = tuple(range(len(begins))) if axes is None else axes
    steps = (1,) * len(begins) if steps is None else steps
    if not len(begins) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise WorkloadError("starts, ends, axes and steps do not go together")
    x = call.input()
    for axis, part in zip(axes, map(slice, begins, ends, steps), strict=True):
        # ONNX counts from the end and clips as Python's slices do.
        place = axis_of(axis, len(shape))
        x = call.part(x, place, *part.indices(shape[place]))
    return x


def _pad(call: Call) -> str:
    x, rank = call.input(), call.rank()
    pads = call.optional_list("paddings") if call.version < 2 else call.list_or_input("pads", 1)
    value = call.number("value", 0.0) if call.version < 11 else 0.0
    if call.version >= 11 and (constant := call.optional_constant(2, "the value")) is not None:
        value = constant.reshape(-1)[0].item()
    axes = tuple(range(rank))
    if (numbers := call.optional_constant(3, "axes")) is not None:
        axes = tuple(axis_of(int(axis), rank) for axis in numbers.reshape(-1))
    if pads is None or len(pads) != 2 * len(axes):
        raise WorkloadError(f"pads do not name two numbers for each of {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    mode = call.text("mode", "constant", ("constant", "edge", "reflect", "wrap"))
    return call.padded(x, before, after, mode, value)


def _trilu(call: Call) -> str:
    shape, dtype = call.type().shape, call.type().dtype
    if len(shape) < 2:
        call.reject(f"a triangle of {call.type()}: give matrices")
    diagonal = 0 if call.optional(1) is None else call.integers(1, "the diagonal")[0]
    triangle = np.triu if call.flag("upper", True) else np.tril
    mask = triangle(np.ones(shape[-2:], bool), diagonal)
    zero = call.tensor(0, dtype)
    return call.elementwise(where(X, Y, Z), call.tensor(mask), call.input(0), zero, dtype=dtype)


# -- indices --------------------------------------------------------------------------------------


def _gather(call: Call) -> str:
    axis = call.axis()
    call.check_indices(call.input(1), call.shape(call.input(0))[axis])
    return call.emit(Gather(axis), call.input(0), call.input(1))


def _gather_nd(call: Call) -> str:
    shape, index_shape = call.type(0).shape, call.type(1).shape
    batch, depth = call.integer("batch_dims", 0), index_shape[-1]
    if not 0 <= batch < len(index_shape) or batch + depth > len(shape):
        raise WorkloadError(f"indices {list(index_shape)} of a tensor {list(shape)}")
    steps = row_major_strides(shape)
    total: str | None = None
    last = len(index_shape) - 1
    for k in range(depth):
        column = call.reshaped(call.part(call.input(1), last, k, k + 1), index_shape[:-1])
        call.check_indices(column, shape[batch + k])
        index = call.from_front(column, shape[batch + k])
        term = call.elementwise(mul(X, steps[batch + k]), index)
        total = term if total is None else call.elementwise(add(X, Y), total, term)
    if total is None:
        raise WorkloadError(f"indices {list(index_shape)} name no axis")
    # Numbers of the first elements of the batches, plus those inside a gathered part: both are
    # known now, so that only the terms of the indices are computed in every call.
    rows, tail = np.indices(index_shape[:batch], sparse=True), shape[batch + depth :]
    offset = np.zeros((*index_shape[:-1], *tail), np.int64)
    for k, places in enumerate(rows):
        offset = offset + (places * steps[k]).reshape(*places.shape, *(1,) * (offset.ndim - batch))
    if tail:
        offset = offset + np.arange(math.prod(tail)).reshape(tail)
    starts = call.reshaped(total, (*index_shape[:-1], *(1,) * len(tail)))
    places = call.elementwise(add(X, Y), starts, call.tensor(offset))
    return call.flat_gather(call.input(0), places)


def _one_hot(call: Call) -> str:
    depth = call.integers(1, "the depth")[0]
    rank = call.rank(0)
    axis = axis_of(call.integer("axis", -1), rank + 1)
    shape = [*call.type(0).shape]
    shape.insert(axis, 1)
    if not 0 < depth <= 1 << 24:
        raise WorkloadError(f"a depth of {depth}: give 1 to 2^24")
    index = call.reshaped(call.from_front(call.input(0), depth), shape)
    # The result is a comparison of the indices with all numbers along the new axis.
    steps = np.arange(depth).reshape([-1 if k == axis else 1 for k in range(rank + 1)])
    is_hot = call.elementwise(equal(X, Y), index, call.tensor(steps), dtype="bool")
    off, on = (call.reshaped(call.part(call.input(2), 0, k, k + 1), ()) for k in range(2))
    return call.elementwise(where(X, Y, Z), is_hot, on, off, dtype=call.type(2).dtype)


def _constant(call: Call) -> str:
    if (value := call.attribute("value")) is not None:
        return call.tensor(bytes_of(value))
    for name, dtype in (("float", "float32"), ("int", "int64")):
        for attribute in (f"value_{name}", f"value_{name}s"):
            if (value := call.attribute(attribute)) is not None:
                return call.tensor(value, dtype)
    call.reject("its value is no dense tensor of numbers: use one")


def _shape(call: Call) -> str:
    part = slice(call.attribute("start"), call.attribute("end"))
    return call.tensor(call.type().shape[part], "int64")


def _constant_of_shape(call: Call) -> str:
    sizes = call.integers(0, "the shape")
    value = call.attribute("value")
    value = np.zeros(1, np.float32) if value is None else bytes_of(value)
    if min(sizes, default=1) < 0 or math.prod(sizes) * value.itemsize > LARGEST_CONSTANT:
        raise WorkloadError(
            f"a constant of {list(sizes)} is of more than {LARGEST_CONSTANT >> 20} MiB"
        )
    return call.tensor(np.full(sizes, value.reshape(-1)[0], value.dtype))


def _range(call: Call) -> str:
    start, limit, step = (call.constant(k, "the range").reshape(-1)[0] for k in range(3))
    if not step or abs((float(limit) - float(start)) / float(step)) * 8 > LARGEST_CONSTANT:
        raise WorkloadError(f"a range from {start} to {limit} by {step}")
    count = max(0, math.ceil((limit.item() - start.item()) / step.item()))
    return call.tensor((start + np.arange(count) * step).astype(start.dtype))


def _eye_like(call: Call) -> str:
    rows, columns = call.type().shape
    dtype = element_type(call, "dtype", call.type().dtype)
    return call.tensor(np.eye(rows, columns, call.integer("k", 0)), dtype)


TABLE: dict[str, Translation] = {
    "Identity": lambda call: call.input(),
    "Dropout": _dropout,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Concat": lambda call: call.joined(call.all_inputs(), call.axis(1 if call.version < 4 else 0)),
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Trilu": _trilu,
    "Gather": _gather,
    "GatherElements": lambda call: call.gathered_elements(
        call.input(0), call.input(1), call.axis()
    ),
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Constant": _constant,
    "Shape": _shape,
    "Size": lambda call: call.tensor(call.type().elements, "int64"),
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
}

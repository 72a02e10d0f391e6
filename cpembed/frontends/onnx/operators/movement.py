"""Operators that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.movements import check_indices, padded, repeated
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Concat, Gather
from cpembed.graph.kinds.base import axis_of


def identity(site: Site) -> str:
    return site.input()


def dropout(site: Site) -> list[str]:
    """The input itself, and a mask that keeps everything. In training elements are thrown away at
    random, which is refused, but for a ratio of 0."""
    if _drops(site):
        site.refuse("it throws elements away, as in training: export the model for inference")
    x = site.input()
    if not any(site.wanted[1:]):
        return [x]
    dtype = "bool" if site.version >= 10 else site.dtype(x)
    return [x, site.tensor(np.ones(site.shape(x), dtype))]


def _drops(site: Site) -> bool:
    """Whether a Dropout is in training: by a flag before version 7, by an input from 12 on."""
    if site.version < 7:
        return not site.flag("is_test") and site.number("ratio", 0.5) != 0
    if site.version < 12 or site.optional(2) is None:
        return False
    ratio = site.optional_constant(1, "the ratio")
    ratio = 0.5 if ratio is None else ratio.item()
    return bool(site.constant(2, "training_mode").item()) and ratio != 0


def reshape(site: Site) -> str:
    asked = site.list_or_input("shape", 1)
    if asked is None:
        site.refuse("no shape is given")
    given = site.type().shape
    shape = list(asked)
    if not site.flag("allowzero"):
        if any(size == 0 and k >= len(given) for k, size in enumerate(shape)):
            raise WorkloadError(f"{list(given)} cannot be reshaped to {list(asked)}")
        shape = [given[k] if size == 0 else size for k, size in enumerate(shape)]
    if shape.count(-1) == 1:
        rest = -math.prod(shape)
        shape[shape.index(-1)] = site.type().elements // rest if rest else 0
    if min(shape, default=0) < 0:
        raise WorkloadError(f"{list(given)} cannot be reshaped to {list(asked)}")
    return site.reshaped(site.input(), shape)


def flatten(site: Site) -> str:
    shape = site.type().shape
    axis = site.whole("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise WorkloadError(f"axis {axis} of a tensor of {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return site.reshaped(site.input(), (math.prod(shape[:axis]), math.prod(shape[axis:])))


def squeeze(site: Site) -> str:
    shape = site.type().shape
    axes = site.list_or_input("axes", 1)
    if axes is None:
        axes = tuple(k for k, size in enumerate(shape) if size == 1)
    gone = {axis_of(axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in gone):
        raise WorkloadError(f"axes {sorted(gone)} of {list(shape)} are not all of size 1")
    return site.reshaped(site.input(), [s for k, s in enumerate(shape) if k not in gone])


def unsqueeze(site: Site) -> str:
    axes = site.list_or_input("axes", 1) or ()
    rank = site.rank() + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise WorkloadError(f"axes {list(axes)} are named twice")
    rest = iter(site.type().shape)
    return site.reshaped(site.input(), [1 if k in new else next(rest) for k in range(rank)])


def transpose(site: Site) -> str:
    order = site.list_of("perm", tuple(reversed(range(site.rank())))) or ()
    if sorted(order) != list(range(site.rank())):
        raise WorkloadError(f"{list(order)} is no order of {site.rank()} axes")
    return site.transposed(site.input(), order)


def concat(site: Site) -> str:
    tensors = site.all_inputs()
    return concat_along(site, tensors, site.axis(1 if site.version < 4 else 0))


def concat_along(site: Site, tensors: Sequence[str], axis: int) -> str:
    return tensors[0] if len(tensors) == 1 else site.emit(Concat(axis), *tensors)


def split(site: Site) -> list[str]:
    axis, x = site.axis(), site.input()
    size = site.type().shape[axis]
    parts = site.list_or_input("split", 1)
    if parts is None:
        count = site.whole("num_outputs", len(site.node.outputs))
        each = -(-size // max(1, count))
        parts = tuple(max(0, min(each, size - k * each)) for k in range(count))
    if sum(parts) != size or min(parts, default=0) < 0:
        raise WorkloadError(f"parts {list(parts)} of an axis of {size}")
    ends = np.cumsum(parts).tolist()
    return [site.part(x, axis, end - n, end) for n, end in zip(parts, ends, strict=True)]


def slice_(site: Site) -> str:
    shape = site.type().shape
    if site.version < 10:
        begins, ends = site.list_of("starts") or (), site.list_of("ends") or ()
        axes, steps = site.list_of("axes"), None
    else:
        begins, ends = site.integers(1, "starts"), site.integers(2, "ends")
        axes = None if site.optional(3) is None else site.integers(3, "axes")
        steps = None if site.optional(4) is None else site.integers(4, "steps")
    axes = tuple(range(len(begins))) if axes is None else axes
    steps = (1,) * len(begins) if steps is None else steps
    if not len(begins) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise WorkloadError("starts, ends, axes and steps do not go together")
    x = site.input()
    for axis, part in zip(axes, map(slice, begins, ends, steps), strict=True):
        place = axis_of(axis, len(shape))
        x = site.part(x, place, *part.indices(shape[place]))
    return x


def pad(site: Site) -> str:
    x, rank = site.input(), site.rank()
    pads = site.list_of("paddings") if site.version < 2 else site.list_or_input("pads", 1)
    value = site.number("value", 0.0) if site.version < 11 else 0.0
    if site.version >= 11 and (given := site.optional_constant(2, "the value")) is not None:
        value = given.reshape(-1)[0].item()
    axes = tuple(range(rank))
    if (named := site.optional_constant(3, "axes")) is not None:
        axes = tuple(axis_of(int(axis), rank) for axis in named.reshape(-1))
    if pads is None or len(pads) != 2 * len(axes):
        raise WorkloadError(f"pads do not name two numbers for each of {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    mode = site.text("mode", "constant", ("constant", "edge", "reflect", "wrap"))
    return padded(site, x, before, after, mode, value)


def expand(site: Site) -> str:
    given, asked = site.type().shape, site.integers(1, "the shape")
    try:
        shape = np.broadcast_shapes(given, asked)
    except ValueError:
        raise WorkloadError(f"{list(given)} does not broadcast to {list(asked)}") from None
    return site.expanded(site.input(), shape)


def tile(site: Site) -> str:
    x, shape = site.input(), site.type().shape
    repeats = site.integers(1, "the repeats")
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        raise WorkloadError(f"repeats {list(repeats)} of {list(shape)}: give one for each axis")
    return repeated(site, x, repeats)


def gather(site: Site) -> str:
    axis = site.axis()
    check_indices(site, site.input(1), site.shape(site.input(0))[axis])
    return site.emit(Gather(axis), site.input(0), site.input(1))


def depth_to_space(site: Site) -> str:
    n, c, h, w = site.type().shape
    b = site.whole("blocksize", 0)
    if b < 1 or c % (b * b):
        raise WorkloadError(f"blocks of {b} of {c} channels: the blocks have to be whole")
    if site.text("mode", "DCR", ("DCR", "CRD")) == "DCR":
        x, order = site.reshaped(site.input(), (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2)
    else:
        x, order = site.reshaped(site.input(), (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3)
    return site.reshaped(site.transposed(x, order), (n, c // b**2, h * b, w * b))


def space_to_depth(site: Site) -> str:
    n, c, h, w = site.type().shape
    b = site.whole("blocksize", 0)
    if b < 1 or h % b or w % b:
        raise WorkloadError(f"blocks of {b} of {h} by {w}: the blocks have to be whole")
    x = site.reshaped(site.input(), (n, c, h // b, b, w // b, b))
    order = (
        (0, 3, 5, 1, 2, 4)
        if site.text("mode", "DCR", ("DCR", "CRD")) == "DCR"
        else (0, 1, 3, 5, 2, 4)
    )
    return site.reshaped(site.transposed(x, order), (n, c * b * b, h // b, w // b))


TABLE: dict[str, Translation] = {
    "Identity": identity,
    "Dropout": dropout,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Expand": expand,
    "Tile": tile,
    "Gather": gather,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}

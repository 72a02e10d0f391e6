"""Operators whose result is the same in every call: constants, and what only shapes decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import LARGEST_CONSTANT
from cpembed.frontends.onnx.model import in_bytes
from cpembed.frontends.onnx.operators.elementwise import element_type
from cpembed.frontends.onnx.site import Site, Translation


def constant(site: Site) -> str:
    if (value := site.attribute("value")) is not None:
        return site.tensor(in_bytes(value))
    for names, dtype in ((("value_float", "value_floats"), "float32"),
                         (("value_int", "value_ints"), "int64")):  # fmt: skip
        for name in names:
            if (value := site.attribute(name)) is not None:
                return site.tensor(value, dtype)
    site.refuse("its value is no dense tensor of numbers: use one")


def shape(site: Site) -> str:
    sizes = site.type().shape
    part = slice(site.attribute("start"), site.attribute("end"))
    return site.tensor(sizes[part], "int64")


def size(site: Site) -> str:
    return site.tensor(site.type().elements, "int64")


def constant_of_shape(site: Site) -> str:
    sizes = site.integers(0, "the shape")
    value = site.attribute("value")
    value = np.zeros(1, np.float32) if value is None else in_bytes(value)
    _check_size(sizes, value.itemsize)
    return site.tensor(np.full(sizes, value.reshape(-1)[0], value.dtype))


def range_(site: Site) -> str:
    start, limit, step = (site.constant(k, "the range").reshape(-1)[0] for k in range(3))
    if not step or abs((float(limit) - float(start)) / float(step)) * 8 > LARGEST_CONSTANT:
        raise WorkloadError(f"a range from {start} to {limit} by {step}")
    count = max(0, math.ceil((limit.item() - start.item()) / step.item()))
    return site.tensor((start + np.arange(count) * step).astype(start.dtype))


def _check_size(sizes: Sequence[int], bytes_each: int) -> None:
    if min(sizes, default=1) < 0 or math.prod(sizes) * bytes_each > LARGEST_CONSTANT:
        raise WorkloadError(
            f"a constant of {list(sizes)} is of more than {LARGEST_CONSTANT >> 20} MiB"
        )


def eye_like(site: Site) -> str:
    rows, columns = site.type().shape
    dtype = element_type(site, "dtype", site.type().dtype)
    return site.tensor(np.eye(rows, columns, site.whole("k", 0)), dtype)


def non_zero(site: Site) -> str:
    return site.tensor(np.asarray(np.nonzero(site.constant(0, "its input"))), "int64")


TABLE: dict[str, Translation] = {
    "Constant": constant,
    "Shape": shape,
    "Size": size,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "EyeLike": eye_like,
    "NonZero": non_zero,
}

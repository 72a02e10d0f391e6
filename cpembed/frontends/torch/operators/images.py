"""What images are made larger or smaller by: padding, other sizes, pixels that become channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cpembed.frontends.emitter import is_float
from cpembed.frontends.movements import padded
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Gather, Resize
from cpembed.graph.kinds.base import Array


def _pad(call: Call, mode: str, widths: Sequence[int], value: float = 0) -> str:
    """``widths``: before and after each axis, the last one first, below 0 where it is cut."""
    x = call["self"]
    none = [0] * (len(call.shape(x)) - len(widths) // 2)
    before, after = ([*none, *widths[side::2][::-1]] for side in (0, 1))
    return padded(call, x, before, after, mode, value)


def _constant_pad(call: Call) -> str:
    return _pad(call, "constant", call["pad"], call["value"])


def _reflection_pad(call: Call) -> str:
    return _pad(call, "reflect", call["padding"])


def _replication_pad(call: Call) -> str:
    return _pad(call, "edge", call["padding"])


def _any_pad(call: Call) -> str:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    value = call["value"]
    return _pad(call, modes[call["mode"]], call["pad"], value or 0)


def _pixel_shuffle(call: Call) -> str:
    x, factor = call["self"], call["upscale_factor"]
    *lead, c, h, w = call.shape(x)
    n = len(lead)
    apart = call.reshaped(x, (*lead, c // factor**2, factor, factor, h, w))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return call.reshaped(call.transposed(apart, order), call.result.shape)


def _pixel_unshuffle(call: Call) -> str:
    x, factor = call["self"], call["downscale_factor"]
    *lead, c, h, w = call.shape(x)
    n = len(lead)
    apart = call.reshaped(x, (*lead, c, h // factor, factor, w // factor, factor))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return call.reshaped(call.transposed(apart, order), call.result.shape)


def _channel_shuffle(call: Call) -> str:
    x, groups = call["self"], call["groups"]
    n, c, *image = call.shape(x)
    apart = call.reshaped(x, (n, groups, c // groups, *image))
    order = (0, 2, 1, *range(3, 3 + len(image)))
    return call.reshaped(call.transposed(apart, order), call.result.shape)


def _scales(call: Call, axes: int) -> list[float | None]:
    """Scale factors that were given, of each axis of the image."""
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
    given = [call.get(name) for name in names[axes]]
    return given if call.get("scale_factors") is None else list(call["scale_factors"])


def _steps(call: Call, axes: int) -> list[float]:
    """Pixels of the image from one of the result to the next, by the factor where one is given."""
    x = call.get("input") or call["self"]
    sizes = zip(_scales(call, axes), call.shape(x)[-axes:], call.result.shape[-axes:], strict=True)
    return [size / result if not scale else 1 / scale for scale, size, result in sizes]


def _linear(axes: int) -> Handler:
    def handler(call: Call) -> str:
        x = call.get("input") or call["self"]
        if not is_float(call.dtype(x)):
            raise call.error(f"a linear interpolation of {call.dtype(x)}: convert it to float32")
        sizes = call.shape(x)[-axes:], call.result.shape[-axes:]
        aligned, scales = bool(call.get("align_corners")), _scales(call, axes)
        if not aligned:
            for scale, size, result in zip(scales, *sizes, strict=True):
                if scale is not None and abs(size * scale - result) > 1e-6:
                    raise call.error(
                        f"an axis of {size} is resized by {scale}, which is no whole size: give "
                        "the size, or recompute_scale_factor=True"
                    )
        return call.emit(
            Resize(sizes[1], "linear", "align_corners" if aligned else "half_pixel"), x
        )

    return handler


def _nearest(axes: int, middle: float) -> Handler:
    """The pixel in which a pixel of the result lies: its corner, or its ``middle`` of 0.5. Places
    are computed in float32, as PyTorch does: where they meet a pixel's border it matters."""

    def handler(call: Call) -> str:
        x = call.get("input") or call["self"]
        rank, image, sizes = len(call.shape(x)), call.shape(x)[-axes:], call.result.shape[-axes:]
        tables: list[Array] = []
        for size, result, step in zip(image, sizes, _steps(call, axes), strict=True):
            at = np.arange(result, dtype=np.float32) + np.float32(middle)
            places = np.floor(at * np.float32(step)).astype(np.int64)
            tables.append(np.minimum(places, size - 1))
        plain = Resize(sizes, "nearest", "asymmetric", "floor")
        pairs = zip(image, sizes, tables, strict=True)
        if all(np.array_equal(plain.indices(size, result), t) for size, result, t in pairs):
            return call.emit(plain, x)
        for axis, table in enumerate(tables, rank - axes):
            x = call.emit(Gather(axis), x, call.tensor(table))
        return x

    return handler


OPERATORS: Mapping[str, Handler] = {
    "aten.constant_pad_nd.default": _constant_pad,
    "aten.pad.default": _any_pad,
    **{f"aten.reflection_pad{n}d.default": _reflection_pad for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d.default": _replication_pad for n in (1, 2, 3)},
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.channel_shuffle.default": _channel_shuffle,
    **{
        f"aten.upsample_{name}.{overload}": _linear(axes)
        for name, axes in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3))
        for overload in ("default", "vec")
    },
    **{
        f"aten.{name}{n}d.{overload}": _nearest(n, middle)
        for name, middle in (("upsample_nearest", 0.0), ("_upsample_nearest_exact", 0.5))
        for n in (1, 2, 3)
        for overload in ("default", "vec")
    },
}

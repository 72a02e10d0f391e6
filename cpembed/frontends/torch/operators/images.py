"""What images are made larger or smaller by: padding, other sizes, pixels that become channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cpembed.frontends.movements import padded
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Gather, Resize


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
    return _pad(call, modes[call["mode"]], call["pad"], call["value"] or 0)


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
    if call.get("scale_factors") is not None:
        return list(call["scale_factors"])
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
    return [call.get(name) for name in names[axes]]


def _upsample(mode: str, axes: int) -> Handler:
    def handler(call: Call) -> str:
        x = call.get("input") or call["self"]
        sizes = call.shape(x)[-axes:], call.result.shape[-axes:]
        aligned = bool(call.get("align_corners"))
        if not aligned:
            for scale, size, result in zip(_scales(call, axes), *sizes, strict=True):
                if scale is not None and abs(size * scale - result) > 1e-6:
                    raise call.error(
                        f"an axis of {size} is resized by {scale}, which is no whole size: give "
                        "the size, or recompute_scale_factor=True"
                    )
        if mode == "nearest":
            return call.emit(Resize(sizes[1], "nearest", "asymmetric", "floor"), x)
        places = "align_corners" if aligned else "half_pixel"
        return call.emit(Resize(sizes[1], "linear", places), x)

    return handler


def _nearest_exact(axes: int) -> Handler:
    def handler(call: Call) -> str:
        x = call.get("input") or call["self"]
        for axis in range(len(call.shape(x)) - axes, len(call.shape(x))):
            size, result = call.shape(x)[axis], call.result.shape[axis]
            places = np.floor((np.arange(result) + 0.5) * (size / result))
            index = call.tensor(np.clip(places, 0, size - 1).astype(np.int64))
            x = call.emit(Gather(axis), x, index)
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
        f"aten.{name}.{overload}": _upsample(mode, axes)
        for name, mode, axes in (
            ("upsample_nearest1d", "nearest", 1),
            ("upsample_nearest2d", "nearest", 2),
            ("upsample_nearest3d", "nearest", 3),
            ("upsample_linear1d", "linear", 1),
            ("upsample_bilinear2d", "linear", 2),
            ("upsample_trilinear3d", "linear", 3),
        )
        for overload in ("default", "vec")
    },
    **{
        f"aten._upsample_nearest_exact{n}d.{overload}": _nearest_exact(n)
        for n in (1, 2, 3)
        for overload in ("default", "vec")
    },
}

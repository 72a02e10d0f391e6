"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cpembed.frontends.emitter import is_float
from cpembed.frontends.expressions import X, mul
from cpembed.frontends.torch.call import Call, Handler, Results, per_axis
from cpembed.frontends.windows import Window, pooled
from cpembed.graph.kinds import Reduce


def _check_mean(call: Call) -> None:
    """Raise :class:`ModelError` for a mean of integers, which PyTorch rounds towards zero."""
    if not is_float(call.dtype(call["self"])):
        raise call.error("means of integers are not known: convert the image to float32")


def _pool(call: Call, what: str, axes: int, counts_padding: bool = False) -> str:
    taps = per_axis(call["kernel_size"], axes)
    padding = per_axis(call["padding"], axes)
    strides = per_axis(call["stride"], axes, taps)
    window = Window(taps, strides, per_axis(call.get("dilation") or 1, axes), padding, padding)
    return pooled(
        call,
        what,
        call["self"],
        window,
        ceil_mode=bool(call["ceil_mode"]),
        counts_padding=counts_padding,
    )


def _max_pool(axes: int) -> Handler:
    def handler(call: Call) -> Results:
        return call.first_of(_pool(call, "max", axes))

    return handler


def _average_pool(axes: int) -> Handler:
    def handler(call: Call) -> str:
        _check_mean(call)
        divisor = call.get("divisor_override")
        counts = bool(call["count_include_pad"])
        if divisor is None:
            padded = any(per_axis(call["padding"], axes))
            return _pool(call, "mean", axes, counts and padded)
        if call["ceil_mode"]:
            raise call.error("divisor_override together with ceil_mode: leave one of them out")
        mean = _pool(call, "mean", axes, True)
        count = math.prod(per_axis(call["kernel_size"], axes))
        return call.elementwise(mul(X, count / divisor), mean)

    return handler


def _adaptive(what: str, axes: int) -> Handler:
    """To one element an axis, or windows that are all alike."""

    def handler(call: Call) -> Results:
        x = call["self"]
        if what == "mean":
            _check_mean(call)
        sizes = call.shape(x)[-axes:]
        results = call.result.shape[-axes:]
        value: Any
        if all(size == 1 for size in results):
            rank = len(call.shape(x))
            value = call.emit(Reduce(what, tuple(range(rank - axes, rank)), True), x)
        else:
            for size, result in zip(sizes, results, strict=True):
                if size % result:
                    raise call.error(
                        f"adaptive pooling of an axis of {size} to {result}, whose windows are not "
                        f"all alike: choose a size that divides {size}"
                    )
            window = tuple(s // r for s, r in zip(sizes, results, strict=True))
            none = (0,) * axes
            value = pooled(call, what, x, Window(window, window, (1,) * axes, none, none))
        return call.first_of(value)

    return handler


OPERATORS: Mapping[str, Handler] = {
    **{f"aten.max_pool{n}d.default": _max_pool(n) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices.default": _max_pool(n) for n in (1, 2, 3)},
    **{f"aten.avg_pool{n}d.default": _average_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": _adaptive("mean", n) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": _adaptive("mean", n) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": _adaptive("max", n) for n in (1, 2, 3)},
}

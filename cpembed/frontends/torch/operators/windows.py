"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cpembed.frontends.expressions import X, mul
from cpembed.frontends.torch.call import Call, Handler, Results, per_axis
from cpembed.graph.kinds import Pad, Pool, Reduce


def _after(
    call: Call,
    x: str,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Padding after each axis such that the windows end where the last one does: more than before
    it with ``ceil_mode``, and less where windows do not reach it."""
    axes = len(window)
    return tuple(
        (result - 1) * stride + step * (taps - 1) + 1 - size - before
        for size, result, taps, stride, before, step in zip(
            call.shape(x)[-axes:], call.result.shape[-axes:], window, strides, padding, dilation,
            strict=True,
        )
    )  # fmt: skip


def _pool(call: Call, what: str, x: str, axes: int, counts: bool) -> str:
    window = per_axis(call["kernel_size"], axes)
    strides = per_axis(call["stride"], axes, window)
    padding = per_axis(call["padding"], axes)
    dilation = per_axis(call.get("dilation") or 1, axes)
    last = _after(call, x, window, strides, padding, dilation)
    beyond = tuple(max(0, end - before) for end, before in zip(last, padding, strict=True))
    if counts and any(beyond):
        # Windows that reach beyond the padding count what is within it.
        lead = (0,) * (len(call.shape(x)) - axes)
        x = call.add(Pad((*lead, *padding), (*lead, *padding)), x)
        return call.add(Pool(what, window, strides, (0,) * axes, beyond, dilation), x)
    after = tuple(b + more for b, more in zip(padding, beyond, strict=True))
    return call.add(Pool(what, window, strides, padding, after, dilation, counts), x)


def _max_pool(axes: int) -> Handler:
    def handler(call: Call) -> Results:
        value = _pool(call, "max", call["self"], axes, False)
        return call.first_of(value)

    return handler


def _average_pool(axes: int) -> Handler:
    def handler(call: Call) -> str:
        divisor = call.get("divisor_override")
        counts = bool(call["count_include_pad"])
        if divisor is None:
            padded = any(per_axis(call["padding"], axes))
            return _pool(call, "mean", call["self"], axes, counts and padded)
        if call["ceil_mode"]:
            raise call.error("divisor_override together with ceil_mode: leave one of them out")
        mean = _pool(call, "mean", call["self"], axes, True)
        count = math.prod(per_axis(call["kernel_size"], axes))
        return call.elementwise(mul(X, count / divisor), mean)

    return handler


def _adaptive(what: str, axes: int) -> Handler:
    """To one element an axis, or windows that are all alike."""

    def handler(call: Call) -> Results:
        x = call["self"]
        sizes = call.shape(x)[-axes:]
        results = call.result.shape[-axes:]
        value: Any
        if all(size == 1 for size in results):
            rank = len(call.shape(x))
            value = call.add(Reduce(what, tuple(range(rank - axes, rank)), True), x)
        else:
            for size, result in zip(sizes, results, strict=True):
                if size % result:
                    raise call.error(
                        f"adaptive pooling of an axis of {size} to {result}, whose windows are not "
                        f"all alike: choose a size that divides {size}"
                    )
            window = tuple(s // r for s, r in zip(sizes, results, strict=True))
            none = (0,) * axes
            value = call.add(Pool(what, window, window, none, none, (1,) * axes), x)
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

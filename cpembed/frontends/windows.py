"""Windows that move over an image, of convolutions and of pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.frontends.emitter import Emitter
from cpembed.graph.kinds import Pad, Pool


@dataclass(frozen=True)
class Window:
    """Of each image axis: the window's ``taps``, its step, the distance of its taps, and the
    padding ``before`` and ``after`` the image."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def reach(self, axis: int) -> int:
        """Pixels from the first tap to the last."""
        return self.dilations[axis] * (self.taps[axis] - 1) + 1

    def rounded_up(self, image: Sequence[int]) -> Window:
        """Padding added after the image, so that a last window that is partly inside counts, if it
        begins in the image or in the padding before it."""
        more: list[int] = []
        for axis, size in enumerate(image):
            stride = self.strides[axis]
            padded = size + self.before[axis] + self.after[axis]
            outputs = -(-(padded - self.reach(axis)) // stride) + 1
            if (outputs - 1) * stride >= size + self.before[axis]:
                outputs -= 1
            needed = (outputs - 1) * stride + self.reach(axis) - padded
            more.append(self.after[axis] + max(0, needed))
        return replace(self, after=tuple(more))


def pooled(
    emitter: Emitter,
    what: str,
    x: str,
    window: Window,
    *,
    ceil_mode: bool = False,
    counts_padding: bool = False,
) -> str:
    """The ``max`` or ``mean`` of a window over the last axes of a tensor. ``ceil_mode``: the
    number of windows is rounded up (:meth:`Window.rounded_up`)."""
    axes, shape = len(window.taps), emitter.shape(x)
    moving = window.rounded_up(shape[-axes:]) if ceil_mode else window
    if counts_padding and moving != window:
        # Padding that the model names counts, what rounding up adds to it does not.
        none, lead = (0,) * axes, (0,) * (len(shape) - axes)
        x = emitter.emit(Pad((*lead, *window.before), (*lead, *window.after)), x)
        more = tuple(a - b for a, b in zip(moving.after, window.after, strict=True))
        moving, counts_padding = replace(window, before=none, after=more), False
    kind = Pool(
        what, moving.taps, moving.strides, moving.before, moving.after, moving.dilations,
        counts_padding,
    )  # fmt: skip
    return emitter.emit(kind, x)

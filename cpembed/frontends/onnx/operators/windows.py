"""What convolutions and pooling share: windows that move over an image, as attributes say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.frontends.onnx.site import Site


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


def window(site: Site, taps: Sequence[int], image: Sequence[int]) -> Window:
    """The window of an operator over an image of these sizes, from its attributes."""
    axes = len(taps)
    strides = site.list_of("strides", (1,) * axes) or ()
    dilations = site.list_of("dilations", (1,) * axes) or ()
    pads = site.list_of("pads", (0,) * 2 * axes) or ()
    if len(strides) != axes or len(dilations) != axes or len(pads) != 2 * axes:
        site.refuse(f"strides, dilations or pads are not of {axes} image axes")
    if min((*strides, *dilations, *taps), default=1) < 1:
        site.refuse("strides, dilations and windows are at least 1")
    if max((*strides, *dilations, *taps, *map(abs, pads)), default=1) > 1 << 20:
        site.refuse("strides, dilations, windows and pads are below a million")
    found = Window(tuple(taps), strides, dilations, pads[:axes], pads[axes:])
    match site.text("auto_pad", "NOTSET"):
        case "NOTSET" | "":
            return found
        case "VALID":
            return replace(found, before=(0,) * axes, after=(0,) * axes)
        case "SAME_UPPER" | "SAME_LOWER" as mode:
            total = [
                max(0, (-(-size // strides[k]) - 1) * strides[k] + found.reach(k) - size)
                for k, size in enumerate(image)
            ]
            small = tuple(t // 2 for t in total)
            large = tuple(t - t // 2 for t in total)
            upper = mode == "SAME_UPPER"
            return replace(found, before=small if upper else large, after=large if upper else small)
        case other:
            site.refuse(f"auto_pad {other} is not known: use NOTSET, VALID or SAME_UPPER")

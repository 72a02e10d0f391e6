"""Windows of convolutions and of pooling, as attributes say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpembed.frontends.onnx.site import Site
from cpembed.frontends.windows import Window


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
    if min(pads, default=0) < 0:
        site.refuse(f"pads {list(pads)}: windows are padded by 0 or more; cut with Slice before")
    if max((*strides, *dilations, *taps, *pads), default=1) > 1 << 20:
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

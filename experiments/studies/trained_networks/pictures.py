"""Photographs that scikit-image and scikit-learn ship, as networks of images take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Labelled:
    """A photograph, and the class of ImageNet that it shows."""

    name: str
    label: int
    words: str


PHOTOGRAPHS = (
    Labelled("chelsea", 285, "Egyptian cat"),
    Labelled("coffee", 967, "espresso"),
    Labelled("rocket", 657, "missile"),
    Labelled("camera", 872, "tripod"),
    Labelled("motorcycle", 665, "moped"),
    Labelled("china", 698, "palace"),
    Labelled("flower", 985, "daisy"),
)


def photograph(name: str) -> Picture:
    """Return a photograph as (height, width, 3)."""
    import skimage.data
    import skimage.io

    if name in ("china", "flower"):
        from sklearn.datasets import load_sample_image

        return load_sample_image(f"{name}.jpg")
    if name == "motorcycle":
        return skimage.io.imread(Path(skimage.data.__file__).parent / "motorcycle_left.png")
    return coloured(getattr(skimage.data, name)())


def coloured(picture: Picture) -> Picture:
    """Return a picture with three colours."""
    return np.stack([picture] * 3, -1) if picture.ndim == 2 else picture[..., :3]


def resized(picture: Picture, height: int, width: int) -> NDArray[np.float32]:
    """Return a picture scaled bilinearly, smoothed if it shrinks; still 0 to 255."""
    from skimage.transform import resize

    smooth = height < picture.shape[0]
    scaled = resize(
        picture, (height, width), order=1, preserve_range=True, anti_aliasing=smooth
    )  # fmt: skip
    return scaled.astype(np.float32)


def planes(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a picture as (1, 3, height, width)."""
    return np.ascontiguousarray(picture.transpose(2, 0, 1)[None])


def for_classification(picture: Picture, size: int = 224) -> NDArray[np.float32]:
    """Return the middle square, as EfficientNet-Lite was trained: (x - 127) / 128."""
    height, width = picture.shape[:2]
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    middle = picture[top : top + edge, left : left + edge]
    return planes((resized(middle, size, size) - 127) / 128)


def for_text(picture: Picture, height: int, width: int) -> NDArray[np.float32]:
    """Return a picture of ``height`` rows, filled up to ``width`` with grey: x / 127.5 - 1.

    Parameters
    ----------
    picture : Picture
        Photograph of a line of text.
    height : int
        Rows of the network's input.
    width : int
        Columns of the network's input.
    """
    within = min(width, round(picture.shape[1] * height / picture.shape[0]))
    canvas = np.zeros((1, 3, height, width), np.float32)
    canvas[..., :within] = planes(resized(coloured(picture), height, within) / 127.5 - 1)
    return canvas


@dataclass(frozen=True)
class Line:
    """A part of scikit-image's photograph of a printed page, and what is printed there."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    text: str

    @property
    def picture(self) -> Picture:
        return page()[slice(*self.rows), slice(*self.columns)]


LINES = (
    Line((14, 32), (150, 290), "segmentation"),
    Line((50, 67), (0, 182), "Let us first determine m"),
)
LINES_BETWEEN = ((34, 36), (164, 166))
"""Rows of the page on which nothing is printed."""


def page() -> Picture:
    """Return the photograph of a printed page as (191, 384), grey."""
    import skimage.data

    return skimage.data.page()


def printed(parts: int) -> list[Picture]:
    """Return strips of two photographs of text, upright and upside down.

    Each photograph is cut into so many strips.
    """
    import skimage.data

    photographs = (page(), skimage.data.text())
    strips = [strip for picture in photographs for strip in np.array_split(picture, parts)]
    return [each for strip in strips for each in (strip, strip[::-1, ::-1])]


Batches = list[dict[str, NDArray[Any]]]


def calibration(name: str, take: Callable[[Picture], NDArray[np.float32]]) -> Batches:
    """Return inputs for calibration: all photographs flipped, and four as they are.

    All others are tested in a form that the calibration does not have.
    """
    pictures = [photograph(each.name) for each in PHOTOGRAPHS]
    return [{name: take(p)} for p in (*pictures[:4], *(p[:, ::-1] for p in pictures))]

"""The document of ``cpembed explore --json`` as values that its page shows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import msgspec

from cpembed.errors import InvariantError


class Tile(msgspec.Struct, frozen=True):
    """Tile that the memories of a level hold."""

    memories: list[str]
    tile: dict[str, int]
    order: list[str]
    units: int


class Level(msgspec.Struct, frozen=True):
    """Bytes that a memory exchanges with those below it."""

    memory: str
    read_bytes: float
    written_bytes: float
    cycles: float


class Details(msgspec.Struct, frozen=True):
    """Details of a layer's software, as far as a family has them."""

    mapping: str | None = None
    constraints: str | None = None
    executions: int | None = None
    utilisation: float | None = None
    us: float | None = None
    packing_us: dict[str, float] = {}
    bound: str | None = None
    exact: bool | None = None
    levels: list[Level] = []
    tiling: list[Tile] = []
    bound_cycles: float | None = None
    instructions: dict[str, int] = {}
    energy_pj: dict[str, float] = {}
    main_bytes: tuple[float, float] | None = None
    conversions: list[str] = []


class LayerRow(msgspec.Struct, frozen=True):
    """A layer at a point."""

    index: int
    cycles: float
    energy_pj: float | None
    provenance: str
    choice: str
    software: str
    counts: dict[str, float] = {}
    details: Details = Details()


class LeftOutRow(msgspec.Struct, frozen=True):
    """A layer without software at a point."""

    index: int
    layer: str
    reason: str


class PointRow(msgspec.Struct, frozen=True):
    """An evaluated point."""

    number: int
    parameters: dict[str, int | float | str]
    objectives: dict[str, float]
    clock_mhz: float
    area_um2: float | None
    beyond: str | None
    layers: list[LayerRow]
    left_out: list[LeftOutRow] = []


class Space(msgspec.Struct, frozen=True):
    """The space of an exploration."""

    name: str
    description: str
    family: str
    combinations: int
    parameters: dict[str, list[int | float | str]]
    fixed: dict[str, int | float | str] = {}
    derived: dict[str, str] = {}
    where: list[str] = []


class Layer(msgspec.Struct, frozen=True):
    """A layer of the suite."""

    index: int
    layer: str
    count: int


class Exploration(msgspec.Struct, frozen=True):
    """An exploration with its evaluated points."""

    space: Space
    suite: str
    layers: list[Layer]
    method: str
    objectives: list[str]
    limits: dict[str, float]
    status: str
    front: list[int]
    rows: list[PointRow]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Pairs of objectives that are drawn; a single one over the numbers of the points."""
        pairs = list(combinations(self.objectives, 2))
        return pairs or [("", self.objectives[0])]

    def layer(self, index: int) -> Layer:
        """Return a layer by its number in the suite."""
        return next(layer for layer in self.layers if layer.index == index)


def read(document: Mapping[str, Any]) -> Exploration:
    """Read a document; raise :class:`InvariantError` for any that ``explore --json`` did not write.

    Members that the page does not show are ignored.
    """
    try:
        return msgspec.convert(document, Exploration)
    except msgspec.ValidationError as error:
        raise InvariantError(f"the page of an exploration cannot be made: {error}") from None

"""Results of a pack's run on a machine with a GPU, read back and checked."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec

from cpembed.errors import SpecError

FORMAT = 2


class _Times(msgspec.Struct, frozen=True):
    us: float
    spread: float
    samples: list[float]


class _Program(msgspec.Struct, frozen=True):
    embedding: dict[str, Any]
    rank: int
    constraints: str
    schedule: dict[str, Any]
    text: str


class _Storing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    output: str | None
    shift: int | None
    bias: bool
    scale: bool
    relu: bool


class _Variant(msgspec.Struct, frozen=True):
    name: str
    also: list[str]
    schedule: str
    embedding: str
    estimated_us: float
    family: dict[str, list[str]]
    program: _Program | None = None


class _Layer(msgspec.Struct, frozen=True):
    suite: str
    name: str
    words: str
    target: str
    machine: str
    macs: int
    variants: list[_Variant]
    rules: list[dict[str, Any]]
    times: dict[str, _Times]
    wrong: dict[str, str]
    failed: dict[str, str]
    trouble: str | None
    storing: _Storing | None = None
    constraints: str | None = None


class _Device(msgspec.Struct, frozen=True):
    device: str
    capability: tuple[int, int]
    multiprocessors: int
    clock_mhz: float
    cuda_driver: str
    ceilings: dict[str, float]


class _Results(msgspec.Struct, frozen=True):
    format: int
    date: str
    pack: dict[str, Any]
    device: _Device
    layers: list[_Layer]


def read_results(document: object) -> dict[str, Any]:
    """Return a document of results, all of whose members that reports use were checked.

    Raises :class:`SpecError` if a member is missing or of another type, or a time is no time.
    """
    try:
        results = msgspec.convert(document, _Results)
    except msgspec.ValidationError as error:
        raise SpecError(f"the document holds no results of a pack: {error}") from error
    if results.format != FORMAT:
        raise SpecError(f"the document holds results of format {results.format}, not {FORMAT}")
    for layer in results.layers:
        for implementation, times in layer.times.items():
            numbers = (times.us, *times.samples)
            if not times.samples or not all(math.isfinite(n) and n > 0 for n in numbers):
                raise SpecError(f"the document: {layer.name}, {implementation}: times are positive")
    return cast("dict[str, Any]", document)

"""What an exploration has found out, kept as soon as it is there: analyses and evaluations.

None of it depends on the space, the objectives or the method: other explorations of the same layers
by the same family use it too. Rows are data and nothing else, so a file of anybody may be read.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import platformdirs

from cpembed.measure.environment import versions
from cpembed.measure.results import ResultStore
from cpembed.provenance import Provenance
from cpembed.stores import NotARow, Time, decoded
from cpembed.targets.family import Activity, Family


class AnalysisRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="analysis"):
    """Of a layer on a group of machines: the family's own value as :func:`packed` writes it, or why
    there is none."""

    group: str
    layer: str
    value: str | None
    error: str | None

    def flaw(self) -> str | None:
        if (self.value is None) == (self.error is None):
            return "error: there is a value or an error"
        return None


class ActivityRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="activity"):
    """Of a choice of software for a layer on a group of machines, or why it has no program."""

    group: str
    layer: str
    choice: str
    cycles: Time | None
    provenance: Provenance | None
    counts: dict[str, Time]
    error: str | None

    def flaw(self) -> str | None:
        if (self.cycles is None) == (self.error is None):
            return "error: there are cycles or an error"
        if (self.cycles is None) != (self.provenance is None):
            return "provenance: cycles have one"
        return None

    def activity(self) -> Activity | None:
        if self.cycles is None or self.provenance is None:
            return None
        return Activity(self.cycles, self.provenance, self.counts)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file."""

    found: AnalysisRow | ActivityRow


LARGEST_ANALYSIS = 2**26
"""Bytes of JSON; those of large layers have some 100,000."""


def packed(analysis: Any) -> str:
    """An analysis as compressed JSON, in characters that need no escape."""
    document = msgspec.json.encode(analysis, enc_hook=_numbers)
    return base64.b85encode(zlib.compress(document)).decode("ascii")


def unpacked(family: Family, text: str) -> Any:
    """An analysis that :func:`packed` wrote.

    Raises :class:`NotARow` for any other text.
    """
    stream = zlib.decompressobj()
    try:
        document = stream.decompress(base64.b85decode(text), LARGEST_ANALYSIS)
    except (ValueError, zlib.error):
        raise NotARow("value: cannot be unpacked") from None
    if not stream.eof:
        raise NotARow(f"value: more than {LARGEST_ANALYSIS:,} bytes, or cut off")
    return decoded(document, family.analysis, hook=_vector)


def _numbers(value: Any) -> Any:
    """A vector as a list, which msgspec does not make by itself."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"no JSON is made of {type(value).__name__}")


def _vector(kind: Any, value: Any) -> Any:
    """A vector of what :func:`_numbers` made of it."""
    if getattr(kind, "__origin__", kind) is not np.ndarray:
        raise NotImplementedError(f"no {kind} is made of JSON")
    numbers = msgspec.convert(value, list[float])
    return np.array(numbers, np.float64)


Method = Literal["exact", "gp", "tpe", "nsga2", "random"]


def default_directory() -> Path:
    return platformdirs.user_cache_path("cpembed") / "explore"


def store_for(
    family: Family, suite: str, layers: str | None, directory: Path | None
) -> ResultStore[Row]:
    """The file of a family's costs for a suite; ``layers`` is the digest of a user's own."""
    key = {
        "family": family.name,
        "identity": family.identity(),
        "version": versions()["cpembed"],
        "suite": suite,
        "layers": layers,
    }

    def flaw(row: Row) -> str | None:
        if isinstance(row.found, AnalysisRow) and row.found.value is not None:
            try:
                unpacked(family, row.found.value)
            except NotARow as error:
                return str(error)
        return row.found.flaw()

    return ResultStore(directory or default_directory(), (family.name, suite), key, Row, flaw)

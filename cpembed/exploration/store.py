"""The store of an exploration's analyses and evaluations, each written as soon as it is there.

None of them depends on the space, the objectives or the method, so other explorations of the same
layers by the same family use them too. Rows are data and nothing else, so that files from anybody
may be read.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import platformdirs

from cpembed.provenance import Provenance
from cpembed.runtime.measurement.environment import versions
from cpembed.stores import NotARow, ResultStore, Time, decoded
from cpembed.targets.family import Activity, Family


class AnalysisRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="analysis"):
    """The analysis of a layer on a group of machines, as :func:`packed` writes it, or the reason
    why there is none."""

    group: str
    layer: str
    value: str | None
    error: str | None

    def flaw(self) -> str | None:
        """Return the field whose value contradicts others, with the reason, or None."""
        if (self.value is None) == (self.error is None):
            return "error: there is a value or an error"
        return None


class ActivityRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="activity"):
    """The activity of a choice of software for a layer on a group of machines, or the reason why it
    has no program."""

    group: str
    layer: str
    choice: str
    cycles: Time | None
    provenance: Provenance | None
    counts: dict[str, Time]
    error: str | None

    def flaw(self) -> str | None:
        """Return the field whose value contradicts others, with the reason, or None."""
        if (self.cycles is None) == (self.error is None):
            return "error: there are cycles or an error"
        if (self.cycles is None) != (self.provenance is None):
            return "provenance: cycles have one"
        return None

    def activity(self) -> Activity | None:
        """Return the activity, if there is one."""
        if self.cycles is None or self.provenance is None:
            return None
        return Activity(self.cycles, self.provenance, self.counts)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file."""

    answer: AnalysisRow | ActivityRow = msgspec.field(name="found")


MAX_ANALYSIS_BYTES = 2**26
"""Maximum size of an analysis in bytes of JSON; those of large layers have some 100,000."""


def packed(analysis: Any) -> str:
    """Return an analysis as compressed JSON, in characters that need no escape."""
    document = msgspec.json.encode(analysis, enc_hook=_numbers)
    return base64.b85encode(zlib.compress(document)).decode("ascii")


def unpacked(family: Family, text: str) -> Any:
    """Return the analysis that :func:`packed` wrote.

    Raises :class:`NotARow` for any other text.
    """
    stream = zlib.decompressobj()
    try:
        document = stream.decompress(base64.b85decode(text), MAX_ANALYSIS_BYTES)
    except (ValueError, zlib.error):
        raise NotARow("value: cannot be unpacked") from None
    if not stream.eof:
        raise NotARow(f"value: more than {MAX_ANALYSIS_BYTES:,} bytes, or cut off")
    return decoded(document, family.analysis, hook=_vector)


def _numbers(value: Any) -> Any:
    """Return an array as a list, which msgspec does not do by itself."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"no JSON is made of {type(value).__name__}")


def _vector(kind: Any, value: Any) -> Any:
    """Return the array that :func:`_numbers` made a list of."""
    if getattr(kind, "__origin__", kind) is not np.ndarray:
        raise NotImplementedError(f"no {kind} is made of JSON")
    numbers = msgspec.convert(value, list[float])
    return np.array(numbers, np.float64)


Method = Literal["exact", "gp", "tpe", "nsga2", "random"]
"""The proven search of a space, and the methods that sample it."""


def store_for(
    family: Family, suite: str, layers: str | None, directory: Path | None
) -> ResultStore[Row]:
    """Return the file of a family's costs for a suite.

    Parameters
    ----------
    family
        The family of machines.
    suite
        The name of the suite.
    layers
        The digest of a user's own layers; None for a shipped suite.
    directory
        The folder; None for the user's cache.
    """
    key = {
        "family": family.name,
        "identity": family.identity(),
        "version": versions()["cpembed"],
        "suite": suite,
        "layers": layers,
    }

    def flaw(row: Row) -> str | None:
        if isinstance(row.answer, AnalysisRow) and row.answer.value is not None:
            try:
                unpacked(family, row.answer.value)
            except NotARow as error:
                return str(error)
        return row.answer.flaw()

    folder = directory or platformdirs.user_cache_path("cpembed") / "explore"
    return ResultStore(folder, (family.name, suite), key, Row, flaw)

"""What an exploration has found out, kept as soon as it is there: analyses and evaluations.

None of it depends on the space, the objectives or the method: other explorations of the same layers
by the same family use it too.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec
import platformdirs

from cpembed.measure.environment import versions
from cpembed.measure.results import ResultStore
from cpembed.provenance import Provenance
from cpembed.stores import Time
from cpembed.targets.family import Activity, Family


class AnalysisRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="analysis"):
    """Of a layer on a group of machines: the family's own value, or why there is none."""

    group: str
    layer: str
    value: str | None
    error: str | None

    def flaw(self) -> str | None:
        if (self.value is None) == (self.error is None):
            return "error: there is a value or an error"
        if self.value is not None:
            try:
                unpacked(self.value)
            except Exception:  # What a damaged pickle raises is anything.
                return "value: cannot be unpacked"
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

    def flaw(self) -> str | None:
        return self.found.flaw()


def packed(value: Any) -> str:
    return base64.b85encode(zlib.compress(pickle.dumps(value))).decode("ascii")


def unpacked(text: str) -> Any:
    return pickle.loads(zlib.decompress(base64.b85decode(text)))


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
    return ResultStore(directory or default_directory(), (family.name, suite), key, Row, Row.flaw)

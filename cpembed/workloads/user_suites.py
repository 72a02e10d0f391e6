"""Suites of a user's own: tables of layers as CSV files, and layers that are computations."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cpembed.errors import WorkloadError
from cpembed.files import read_regular
from cpembed.ir.computation import Computation
from cpembed.workloads.family import Dtypes
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.suites import DEFAULT_LAYOUT, Layer
from cpembed.workloads.suites import layer as shipped

COLUMNS = ("layer", "count", "application")
"""``layer``: a workload in the naming of the command line; ``count``: how often the network has it,
1 where the column is missing or empty; ``application``: a name of your own."""

_OF_SUITE = re.compile(r"[^\s:]+:\d+", re.ASCII)
"""A layer of a shipped suite as it is."""


@dataclass(frozen=True)
class ComputedLayer(Layer):
    """A layer that no operator's sizes make: an expression, or a product of a model."""

    computation: Computation = field(kw_only=True)

    def workload(self, dtypes: Dtypes = None, layout: str = DEFAULT_LAYOUT) -> Computation:
        """The computation, whose element types are its own.

        Raises :class:`WorkloadError` for another layout: its indices are what they are.
        """
        if layout != DEFAULT_LAYOUT:
            raise WorkloadError(
                f"{self.suite}:{self.index}: an expression, or a product of a model, has no layout "
                f"{layout}; leave layout out"
            )
        return self.computation


LARGEST_TABLE = 2**24
"""Bytes of a table."""

MOST_LAYERS = 100_000
"""Lines of a table. Networks have hundreds of layers."""

_COUNT = re.compile(r"0*[1-9][0-9]{0,14}", re.ASCII)


def is_table(name: str) -> bool:
    """Whether the name of a suite is that of a CSV file."""
    return name.lower().endswith(".csv")


def read_suite(path: Path) -> tuple[Layer, ...]:
    """The layers of a CSV file with a head line, in the order of its lines.

    Raises :class:`WorkloadError`, with the line, for what cannot be read.
    """
    try:
        text = read_regular(path, LARGEST_TABLE).decode("utf-8-sig")
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path} is not text in UTF-8: save it as CSV in UTF-8") from error
    reader = csv.DictReader(io.StringIO(text), restkey="", skipinitialspace=True)
    if text.count("\n") > MOST_LAYERS:
        raise WorkloadError(f"{path}: more than {MOST_LAYERS:,} lines: divide it into suites")
    try:
        _check_head(path, reader.fieldnames or ())
        layers = [
            _layer(path, reader.line_num, index, row)
            for index, row in enumerate(row for row in reader if any(row.values()))
        ]
    except csv.Error as error:
        raise WorkloadError(f"{path}:{reader.line_num}: {error}") from error
    if not layers:
        raise WorkloadError(f"{path} has no layers: add lines below the head {','.join(COLUMNS)}")
    return tuple(layers)


def _check_head(path: Path, names: Iterable[str]) -> None:
    known = ", ".join(COLUMNS)
    names = [name.strip() for name in names]
    if "layer" not in names:
        raise WorkloadError(f"{path}:1: no column named layer: the first line names {known}")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise WorkloadError(f"{path}:1: unknown column {unknown[0]!r}: columns are {known}")


def _layer(path: Path, line: int, index: int, row: dict[str, str | None]) -> Layer:
    cells = {name.strip(): (text or "").strip() for name, text in row.items() if name}
    where = f"{path}:{line}"
    if "" in row:
        raise WorkloadError(f"{where}: more cells than columns: quote a cell that has commas")
    label, count = cells["layer"], cells.get("count") or "1"
    if not label:
        raise WorkloadError(f"{where}: the layer is empty: name a workload")
    if not _COUNT.fullmatch(count):
        raise WorkloadError(f"{where}: count {count!r} is no integer from 1 to 10^15")
    try:
        computation = parse_workload(label.split())
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from error
    application, number = cells.get("application", ""), int(count)
    if _OF_SUITE.fullmatch(label):
        suite, _, place = label.partition(":")
        label = shipped(suite, int(place)).label
    elif "[" in label or ":" in label.split()[0]:
        return ComputedLayer(path.name, index, application, label, number, computation=computation)
    return Layer(path.name, index, application, label, number)

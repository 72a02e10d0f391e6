"""Suites of a user: tables of layers as CSV files, and layers that are computations."""

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
from cpembed.workloads.suites import layer as shipped_layer

COLUMNS = ("layer", "count", "application")
"""Columns of a table: ``layer`` is a workload as the command line names it, ``count`` the number of
such layers in the network (1 if missing or empty), ``application`` any name."""

_SUITE_LAYER = re.compile(r"[^\s:]+:\d+", re.ASCII)
"""Pattern of an unchanged layer of a shipped suite, such as ``deepbench:3``."""


@dataclass(frozen=True)
class ComputedLayer(Layer):
    """A layer that is not an operator at fixed sizes: an expression, or a product of a model."""

    computation: Computation = field(kw_only=True)

    def workload(self, dtypes: Dtypes = None, layout: str = DEFAULT_LAYOUT) -> Computation:
        """Return the computation, which has element types already.

        Raises :class:`WorkloadError` for any layout but the default: its indices are fixed.
        """
        if layout != DEFAULT_LAYOUT:
            raise WorkloadError(
                f"{self.suite}:{self.index}: an expression, or a product of a model, has no layout "
                f"{layout}; leave layout out"
            )
        return self.computation


_MAX_TABLE_BYTES = 2**24
"""Maximum size of a table's file."""

# Networks have hundreds of layers.
_MAX_LINES = 100_000
"""Maximum number of lines of a table."""

_COUNT = re.compile(r"0*[1-9][0-9]{0,14}", re.ASCII)


def is_table(name: str) -> bool:
    """True if the name of a suite is that of a CSV file."""
    return name.lower().endswith(".csv")


def read_suite(path: Path) -> tuple[Layer, ...]:
    """Read the layers of a CSV file with a header line, in the order of its lines.

    Raises :class:`WorkloadError`, with the line, for a table that cannot be read.
    """
    try:
        # Spreadsheets begin a file in UTF-8 with a byte order mark.
        text = read_regular(path, _MAX_TABLE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path} is not text in UTF-8: save it as CSV in UTF-8") from error
    reader = csv.DictReader(io.StringIO(text), restkey="", skipinitialspace=True)
    if text.count("\n") > _MAX_LINES:
        raise WorkloadError(f"{path}: more than {_MAX_LINES:,} lines: divide it into suites")
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
    columns = ", ".join(COLUMNS)
    names = [name.strip() for name in names]
    if "layer" not in names:
        raise WorkloadError(f"{path}:1: no column named layer: the first line names {columns}")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise WorkloadError(f"{path}:1: unknown column {unknown[0]!r}: columns are {columns}")


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
    # Every layer is parsed at once, so that a wrong one is reported with its line.
    try:
        computation = parse_workload(label.split())
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from error
    application, repetitions = cells.get("application", ""), int(count)
    if _SUITE_LAYER.fullmatch(label):
        suite, _, number = label.partition(":")
        label = shipped_layer(suite, int(number)).label
    elif "[" in label or ":" in label.split()[0]:
        return ComputedLayer(
            path.name, index, application, label, count=repetitions, computation=computation
        )
    return Layer(path.name, index, application, label, count=repetitions)

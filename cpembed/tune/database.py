"""What tuning measured, kept: a file of JSON lines for each workload, machine and constraint set.

A trial is appended as soon as it is measured. A file's first line is its key: everything that
cycles depend on, so that trials of another specification or version are never mistaken for these.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import platformdirs

from cpembed.backends.vta.schedule import Schedule
from cpembed.backends.vta.tail import Tail
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.measure.environment import versions
from cpembed.measure.results import ResultStore

DIRECTORY_VARIABLE = "CPEMBED_TUNE_DIR"

_MODEL = Path(__file__).resolve().parents[1] / "backends" / "vta"
"""Lowering and timing: under one version of the package, cycles change with these sources only."""


class Trial(msgspec.Struct, frozen=True):
    """A schedule of an embedding and its simulated cycles, None where it has no program
    (``error`` says why).

    ``rank`` is the embedding's place in the ranking of the set ``constraints``; ``lower_bound`` the
    larger of its GEMM and DMA cycles, ``busiest_module`` the cycles that its busiest module needs.
    """

    embedding: dict[str, Any]
    identifier: str
    rank: int
    constraints: str
    schedule: Schedule
    estimate: float
    cycles: int | None
    error: str | None
    lower_bound: int
    busiest_module: int

    @property
    def key(self) -> str:
        return trial_key(self.identifier, self.schedule)


def trial_key(identifier: str, schedule: Schedule) -> str:
    """What no two trials of a file share."""
    return f"{identifier} {schedule!r}"


def default_directory() -> Path:
    """The folder that ``CPEMBED_TUNE_DIR`` names, else one of the user's data folder."""
    told = os.environ.get(DIRECTORY_VARIABLE)
    return Path(told) if told else platformdirs.user_data_path("cpembed") / "tune"


def best_of(trials: list[Trial]) -> Trial | None:
    """The trial of fewest cycles, the first measured one of equals."""
    measured = [trial for trial in trials if trial.cycles is not None]
    return min(measured, key=lambda trial: trial.cycles or 0, default=None)


def result_form(tail: Tail) -> str:
    """What of a tail cycles depend on: operations of each phase, and dimensions of the bias.

    >>> from cpembed.backends.vta.tail import Exact, Requantized
    >>> result_form(Requantized(9)), result_form(Exact())
    ('requantized: SHR MIN MAX', 'exact:; SHR; SHR; SHR')
    """
    phases = ";".join(" ".join(("", *(op.name for op, _ in phase))) for phase in tail.phases)
    bias = f" with bias over {', '.join(map(str, tail.bias))}" if tail.bias else ""
    return f"{type(tail).__name__.lower()}{bias}:{phases}"


def workload_key(workload: Computation) -> dict[str, Any]:
    """A workload without its name: text, extents, operands."""
    return {
        "expression": str(workload),
        "extents": dict(workload.extents),
        "operands": {
            operand.name: f"{operand.dtype} {list(operand.shape)}"
            + (" zero outside" if operand.zero_outside else "")
            for operand in workload.operands
        },
    }


def key_of(
    workload: Computation, spec: HardwareSpec, tail: Tail, constraints: ConstraintSet
) -> dict[str, Any]:
    """Everything that the trials of a file depend on; of a specification and a set, what they say,
    not where they are."""
    return {
        "workload": workload_key(workload),
        "target": spec.name,
        "spec": _digest(repr((spec.instruction, spec.memories, spec.machine))),
        "constraints": constraints.name,
        "constraint_set": _digest(repr(constraints)),
        "form": result_form(tail),
        "version": versions()["cpembed"],
        "model": _model_digest(),
    }


def store_of(directory: Path, key: dict[str, Any]) -> ResultStore[Trial]:
    """The file of a key; it is made by ``open``."""
    names = (key["target"], _workload_digest(key), key["constraints"])
    return ResultStore(directory, names, key, Trial)


@dataclass(frozen=True)
class Stored:
    """A file of the database."""

    path: Path
    key: dict[str, Any]
    trials: list[Trial]

    @property
    def best(self) -> Trial | None:
        return best_of(self.trials)


def stored(directory: Path, key: dict[str, Any] | None = None) -> Iterator[Stored]:
    """The files of a folder, by name; with a key, those of the same workload, machine, form and
    version, whatever their constraint set."""
    pattern = "*.jsonl" if key is None else f"*-{_workload_digest(key)}-*.jsonl"
    for path in sorted(directory.glob(pattern)):
        found = _header(path)
        if found is None or (key is not None and _but_set(found) != _but_set(key)):
            continue
        yield Stored(path, found, store_of(directory, found).load())


def is_current(key: dict[str, Any]) -> bool:
    """Whether cycles of a file are those of this version."""
    return (key["version"], key["model"]) == (versions()["cpembed"], _model_digest())


def _workload_digest(key: dict[str, Any]) -> str:
    """Part of a file's name."""
    return _digest(json.dumps(key["workload"], sort_keys=True))[:12]


def _but_set(key: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if not name.startswith("constraint")}


def _header(path: Path) -> dict[str, Any] | None:
    """The key of a file; None for a file that is none of the database."""
    try:
        with path.open("rb") as file:
            document: object = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    key = cast(dict[str, Any], document).get("key")
    whole = isinstance(key, dict) and {"workload", "target", "constraints", "version"} <= set(
        cast(dict[str, Any], key)
    )
    return cast(dict[str, Any], key) if whole else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _model_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(_MODEL.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

"""What tuning measured, kept: a file of JSON lines for each workload, machine and constraint set.

A trial is appended as soon as it is measured. A file's first line is its key: everything that its
trials depend on, so that those of another specification or version are never mistaken for these.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import msgspec
import platformdirs

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.measure.results import ResultStore

DIRECTORY_VARIABLE = "CPEMBED_TUNE_DIR"

NOT_COMPARED = ("constraints", "constraint_set", "objective")
"""Parts of a key that say what was searched and for what: trials that differ in them only are of
one workload and machine."""


class Trial(msgspec.Struct, frozen=True):
    """A schedule of an embedding as it was measured.

    ``identifier`` is the candidate's; ``rank`` is the embedding's place in the ranking of the set
    ``constraints``; ``error`` says why a schedule has no program.
    """

    embedding: dict[str, Any]
    identifier: str
    rank: int
    constraints: str
    error: str | None

    @property
    def key(self) -> str:
        """What no two proposals of a file share."""
        raise NotImplementedError

    @property
    def operands_in_place(self) -> tuple[str, ...]:
        """Which operands the candidate's program keeps in the layouts they come in."""
        return ()

    @property
    def cost(self) -> float | None:
        """What tuning minimises, in the unit of the file; None where it was not measured."""
        raise NotImplementedError

    @property
    def decision(self) -> int:
        """The number of the decision that the trial is part of: once there is one, only it and what
        was measured since count; 0 for none."""
        return 0

    @property
    def is_measured(self) -> bool:
        """Whether it can be the best."""
        return self.cost is not None

    @classmethod
    def best_of(cls, trials: Sequence[Self]) -> Self | None:
        """The fastest of a file's trials, which are in the order of the file."""
        last = max((trial.decision for trial in trials), default=0)
        since = next((n for n, trial in enumerate(trials) if trial.decision == last), 0)
        measured = [trial for trial in trials[since:] if trial.is_measured]
        return min(measured, key=lambda trial: trial.cost or 0, default=None)

    @classmethod
    def describes(cls, key: Mapping[str, Any]) -> bool:
        """Whether a file of this key holds trials of this kind."""
        raise NotImplementedError

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        """Whether what such a file holds is what this version would measure."""
        raise NotImplementedError


T = TypeVar("T", bound=Trial)


def default_directory() -> Path:
    """The folder that ``CPEMBED_TUNE_DIR`` names, else one of the user's data folder."""
    told = os.environ.get(DIRECTORY_VARIABLE)
    return Path(told) if told else platformdirs.user_data_path("cpembed") / "tune"


def workload_key(workload: Computation) -> dict[str, Any]:
    """A workload without its name: text, extents, operands."""
    return {
        "expression": str(workload),
        "extents": dict(workload.extents),
        "operands": {
            operand.name: f"{operand.dtype} {list(operand.shape)}"
            + (" zero outside" if operand.zero_outside else "")
            + (" varies" if operand.varies else "")
            for operand in workload.operands
        },
    }


def problem_key(
    workload: Computation, spec: HardwareSpec, constraints: ConstraintSet
) -> dict[str, Any]:
    """The part of a key that says what is embedded, in what, and how; of a specification and a set,
    what they say, not where they are."""
    return {
        "workload": workload_key(workload),
        "target": spec.name,
        "spec": digest(repr((spec.instruction, spec.memories, spec.machine))),
        "constraints": constraints.name,
        "constraint_set": digest(repr(constraints)),
    }


def store_of(directory: Path, key: Mapping[str, Any], kind: type[T]) -> ResultStore[T]:
    """The file of a key; it is made by ``open``."""
    names = (key["target"], _workload_digest(key), key["constraints"])
    return ResultStore(directory, names, key, kind)


@dataclass(frozen=True)
class Stored(Generic[T]):
    """A file of the database."""

    path: Path
    key: dict[str, Any]
    kind: type[T]
    trials: list[T]

    @property
    def best(self) -> T | None:
        return self.kind.best_of(self.trials)

    @property
    def count(self) -> int:
        """Schedules that were tried."""
        return len({trial.key for trial in self.trials})

    @property
    def is_current(self) -> bool:
        return self.kind.is_current(self.key)


def stored(
    directory: Path, kind: type[T], key: Mapping[str, Any] | None = None
) -> Iterator[Stored[T]]:
    """The files of a folder with trials of a kind, by name; with a key, those that differ from it
    in :data:`NOT_COMPARED` only."""
    pattern = "*.jsonl" if key is None else f"*-{_workload_digest(key)}-*.jsonl"
    for path in sorted(directory.glob(pattern)):
        found = _header(path)
        if found is None or not kind.describes(found):
            continue
        if key is None or _compared(found) == _compared(key):
            yield Stored(path, found, kind, store_of(directory, found, kind).load())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sources_digest(paths: Iterable[Path]) -> str:
    """Of what these files hold."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()


def _workload_digest(key: Mapping[str, Any]) -> str:
    """Part of a file's name."""
    return digest(json.dumps(key["workload"], sort_keys=True))[:12]


def _compared(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if name not in NOT_COMPARED}


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

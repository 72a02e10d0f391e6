"""The files of tuning: JSON lines, a file for each workload, machine and constraint set.

A trial is appended as soon as it is measured. A file's first line is its key: everything that its
trials depend on, so that those of another specification or version are never mistaken for these.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar

import msgspec

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.environment import versions
from cpembed.stores import (
    Count,
    Positive,
    ResultStore,
    Time,
    key_digest,
    store_folder,
    warn_damaged,
)
from cpembed.wording import amount

# For this store alone; CPEMBED_STORE_DIR moves all stores.
DIRECTORY_VARIABLE = "CPEMBED_TUNE_DIR"

SEARCHED = ("constraints", "constraint_set")
"""Parts of a key that name the search."""

NOT_COMPARED = (*SEARCHED, "objective", "device")
"""Parts of a key that name the search and its aim, and which of several equal machines measured:
files that differ in these alone are of one workload and machine."""

_FILE_NAME = re.compile(r".+-[0-9a-f]{12}-.+-(?P<digest>[0-9a-f]{12})\.jsonl")


# ------------------------------------------------------------------------------ trials


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured schedule of an embedding; each target adds its schedules and times.

    ``identifier`` is the candidate's. ``rank`` is the embedding's position in the ranking under the
    set ``constraints``. ``error`` is the reason why a schedule has no program.
    """

    kind: ClassVar[str]
    """The kind of trial, in the keys of files."""

    embedding: dict[str, Any]
    identifier: str
    rank: Count
    constraints: str
    error: str | None

    def flaw(self) -> str | None:
        """Return the field that contradicts others, with the reason, or None."""
        try:
            # A row that was edited may contradict itself, which its types do not show.
            identifier = Embedding.from_json(self.embedding).identifier()
        except (LookupError, TypeError, ValueError, AttributeError):
            return "embedding: not of an embedding's form"
        # What follows the plus names operands that stay in place; the embedding lacks them.
        if identifier != self.identifier.split("+")[0]:
            return f"embedding: its identifier is {identifier}, not {self.identifier}"
        if (self.cost is None) != (self.error is not None):
            return "error: there is a measurement or an error"
        return None

    @property
    def key(self) -> str:
        """Unique text of the schedule within its file."""
        raise NotImplementedError

    @property
    def operands_in_place(self) -> tuple[str, ...]:
        """Names of the operands that the candidate's program keeps in their original layouts."""
        return ()

    @property
    def cost(self) -> float | None:
        """Cost that tuning minimises, in the unit of the file; None if nothing was measured."""
        raise NotImplementedError

    def figure(self, objective: str | None) -> float | None:
        """Return the cost by an objective, in the unit of the target."""
        return self.cost

    @property
    def estimated(self) -> float | None:
        """Estimate of the model in the unit of the target."""
        return None

    def document(self) -> dict[str, Any]:
        """Return the trial for a JSON document."""
        return msgspec.to_builtins(self)

    def standing(self, objective: str | None = None) -> str:
        """Return a few words about the trial as the best so far, with the objective minimised."""
        return f"best {self.cost}"

    @property
    def decision(self) -> int:
        """Number of the final comparison that the trial is part of, 0 for none.

        Once a file has one, only the last and what was measured after it count.
        """
        return 0

    @property
    def is_measured(self) -> bool:
        """True if the trial can be the best."""
        return self.cost is not None

    @classmethod
    def best_of(cls, trials: Sequence[Self]) -> Self | None:
        """Return the fastest of a file's trials, which are in the order of the file."""
        # A final comparison measures its candidates anew, interleaved: earlier times do not compare
        # with those.
        last = max((trial.decision for trial in trials), default=0)
        since = next((n for n, trial in enumerate(trials) if trial.decision == last), 0)
        measured = [trial for trial in trials[since:] if trial.is_measured]
        return min(measured, key=lambda trial: trial.cost or 0, default=None)

    @classmethod
    def describes(cls, key: Mapping[str, Any]) -> bool:
        """True if a file of this key holds trials of this kind."""
        return key.get("kind") == cls.kind

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        """True if this version of the package would measure the same for a file of this key."""
        raise NotImplementedError


class PlainTrial(Trial, frozen=True):
    """The trial of a target that needs no more than a time.

    ``time`` and ``estimate`` are in ``unit``; ``time`` is None for a schedule without a program.
    ``schedule_key`` tells schedules apart.
    """

    kind = "plain"

    schedule: Any
    schedule_key: str
    unit: str
    provenance: Provenance
    estimate: Time | None
    time: Positive | None

    @property
    def key(self) -> str:
        return f"{self.identifier} {self.schedule_key}"

    @property
    def cost(self) -> float | None:
        return self.time

    @property
    def estimated(self) -> float | None:
        return self.estimate

    def standing(self, objective: str | None = None) -> str:
        return f"best {amount(self.time or 0, self.unit)}"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        current = versions()["cpembed"], module_digest(key["module"])
        return (key["version"], key["source"]) == current


T = TypeVar("T", bound=Trial)


# ------------------------------------------------------------------------------ keys


def workload_key(workload: Computation) -> dict[str, Any]:
    """Return the text, extents and operands of a workload, without its name."""
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
    """Return the part of a key that all targets share.

    Parameters
    ----------
    workload
        The workload that is embedded.
    spec
        The specification of the hardware, whose contents count, not its path.
    constraints
        The constraint set, whose contents count as well as its name.
    """
    return {
        "workload": workload_key(workload),
        "target": spec.name,
        # The contents count: a renamed copy of a file is the same machine.
        "spec": digest(repr((spec.instruction, spec.memories, spec.machine))),
        "constraints": constraints.name,
        "constraint_set": digest(repr(constraints)),
    }


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def sources_digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of files, in the order of their paths."""
    hasher = hashlib.sha256()
    for path in sorted(paths):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def module_digest(module: str) -> str:
    """Return the SHA-256 of the package of a module; empty if it is not installed."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return ""
    path = Path(spec.origin)
    # A schedule may depend on any module of its package, not only on the one that is named.
    return sources_digest(path.parent.rglob("*.py") if "." in module else [path])


# ------------------------------------------------------------------------------ files


def tuning_folder() -> Path:
    """Return the folder that ``CPEMBED_TUNE_DIR`` names, or the default one in the user's data."""
    return store_folder("tune", variable=DIRECTORY_VARIABLE, durable=True)


def trial_store(directory: Path, key: Mapping[str, Any], kind: type[T]) -> ResultStore[T]:
    """Return the file of a key, which ``open`` creates.

    Parameters
    ----------
    directory
        The folder of the file.
    key
        Everything that the trials depend on.
    kind
        The type of the trials.
    """
    names = (key["target"], _workload_digest(key), key["constraints"])
    return ResultStore(directory, names, key, kind, kind.flaw)


@dataclass(frozen=True, kw_only=True)
class TrialFile(Generic[T]):
    """A file of the database with its trials."""

    path: Path
    key: dict[str, Any]
    kind: type[T]
    trials: list[T]

    @property
    def best(self) -> T | None:
        """The fastest trial, if any has a program."""
        return self.kind.best_of(self.trials)

    @property
    def count(self) -> int:
        """Number of different schedules."""
        return len({trial.key for trial in self.trials})

    @property
    def is_current(self) -> bool:
        """True if this version of the package would measure the same."""
        return self.kind.is_current(self.key)


def trial_files(
    directory: Path, kind: type[T], key: Mapping[str, Any] | None = None
) -> Iterator[TrialFile[T]]:
    """Yield the files of a folder that hold trials of a kind, by name.

    Parameters
    ----------
    directory
        The folder.
    kind
        The type of the trials.
    key
        Only files whose keys differ from this one in nothing but :data:`NOT_COMPARED`; None for
        all files.
    """
    # The digest in the name spares reading the keys of hundreds of files of other workloads.
    pattern = "*.jsonl" if key is None else f"*-{_workload_digest(key)}-*.jsonl"
    for path in sorted(directory.glob(pattern)):
        try:
            # The digest in a file's name vouches for its key even if the first line is damaged.
            is_file_of_key = key is not None and trial_store(directory, key, kind).path == path
            file_key = dict(key) if key is not None and is_file_of_key else _key_of(path)
        except OSError as error:
            warn_damaged(f"{path}: cannot be read ({error.strerror}) and is left out")
            continue
        if file_key is None and _FILE_NAME.fullmatch(path.name):
            warn_damaged(
                f"{path}: left out, its first line, the key, is damaged; the same `tune` mends it"
            )
        if file_key is None or not kind.describes(file_key):
            continue
        if key is None or _compared(file_key) == _compared(key):
            store = trial_store(directory, file_key, kind)
            store.path = path
            yield TrialFile(path=path, key=file_key, kind=kind, trials=store.load())


def _workload_digest(key: Mapping[str, Any]) -> str:
    return digest(json.dumps(key["workload"], sort_keys=True))[:12]


def _compared(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if name not in NOT_COMPARED}


class _Workload(TypedDict):
    expression: str
    extents: dict[str, int]
    operands: dict[str, str]


class _Key(TypedDict):
    """The fields that the keys of all versions have."""

    workload: _Workload
    target: str
    constraints: str
    version: str


class _Header(msgspec.Struct):
    key: _Key


def _key_of(path: Path) -> dict[str, Any] | None:
    """Return the key of a file; None if the key is damaged or the file is not of the database."""
    match = _FILE_NAME.fullmatch(path.name)
    if match is None:
        return None
    keys: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        if line.startswith(b'{"key"'):
            try:
                msgspec.json.decode(line, type=_Header)
                key: dict[str, Any] = json.loads(line)["key"]
                # NaN would make a key that no later run can reproduce.
                json.dumps(key, allow_nan=False)
            except (ValueError, RecursionError):
                continue
            keys.append(key)
    # A key that was edited and still parses counts as that of another version.
    intact = [key for key in keys if key_digest(key) == match["digest"]]
    return next(iter([*intact, *keys]), None)

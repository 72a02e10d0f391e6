"""What tuning measured, kept: a file of JSON lines for each workload, machine and constraint set.

A trial is appended as soon as it is measured. A file's first line is its key: everything that its
trials depend on, so that those of another specification or version are never mistaken for these.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar

import msgspec
import platformdirs

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.results import ResultStore, key_digest
from cpembed.stores import Count, say

DIRECTORY_VARIABLE = "CPEMBED_TUNE_DIR"

NOT_COMPARED = ("constraints", "constraint_set", "objective")
"""Parts of a key that say what was searched and for what: trials that differ in them only are of
one workload and machine."""


_OURS = re.compile(r".+-[0-9a-f]{12}-.+-(?P<digest>[0-9a-f]{12})\.jsonl")
"""Names of the database's files."""


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of an embedding as it was measured.

    ``identifier`` is the candidate's; ``rank`` is the embedding's place in the ranking of the set
    ``constraints``; ``error`` says why a schedule has no program.
    """

    kind: ClassVar[str]
    """Of the files that hold such trials, in their keys."""

    embedding: dict[str, Any]
    identifier: str
    rank: Count
    constraints: str
    error: str | None

    def flaw(self) -> str | None:
        """What no measurement is; types and ranges are right."""
        try:
            identifier = Embedding.from_json(self.embedding).identifier()
        except (LookupError, TypeError, ValueError, AttributeError):
            return "embedding: not of an embedding's form"
        if identifier != self.identifier.split("+")[0]:
            return f"embedding: its identifier is {identifier}, not {self.identifier}"
        if (self.cost is None) != (self.error is not None):
            return "error: there is a measurement or an error"
        return None

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

    def figure(self, objective: str | None) -> float | None:
        """What was minimised, of this schedule by itself, in the unit of the target."""
        return self.cost

    @property
    def estimated(self) -> float | None:
        """What the model expected, in the unit of the target."""
        return None

    def document(self) -> dict[str, Any]:
        """The trial in documents."""
        return msgspec.to_builtins(self)

    def standing(self, objective: str | None = None) -> str:
        """The trial as the best so far, in a few words; with what was minimised, where that is one
        of several."""
        return f"best {self.cost}"

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
        return key.get("kind") == cls.kind

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
    return ResultStore(directory, names, key, kind, kind.flaw)


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
        try:
            # The name is a digest of the key.
            named = key is not None and store_of(directory, key, kind).path == path
            found = dict(key) if key is not None and named else _key_of(path)
        except OSError as error:
            say(f"{path}: cannot be read ({error.strerror}) and is left out")
            continue
        if found is None and _OURS.fullmatch(path.name):
            say(f"{path}: left out, its first line, the key, is damaged; the same `tune` mends it")
        if found is None or not kind.describes(found):
            continue
        if key is None or _compared(found) == _compared(key):
            store = store_of(directory, found, kind)
            store.path = path
            yield Stored(path, found, kind, store.load())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sources_digest(paths: Iterable[Path]) -> str:
    """Of what these files hold."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()


def module_digest(module: str) -> str:
    """Of the package's folder that a module is in, or of a module that is in none; empty where it
    is not installed."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        return ""
    path = Path(found.origin)
    return sources_digest(path.parent.rglob("*.py") if "." in module else [path])


def _workload_digest(key: Mapping[str, Any]) -> str:
    """Part of a file's name."""
    return digest(json.dumps(key["workload"], sort_keys=True))[:12]


def _compared(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if name not in NOT_COMPARED}


class _Workload(TypedDict):
    expression: str
    extents: dict[str, int]
    operands: dict[str, str]


class _Key(TypedDict):
    """What the keys of all versions have."""

    workload: _Workload
    target: str
    constraints: str
    version: str


class _Header(msgspec.Struct):
    key: _Key


def _key_of(path: Path) -> dict[str, Any] | None:
    """The key of a file; None for one that is none of the database, or whose key is damaged."""
    named = _OURS.fullmatch(path.name)
    keys: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n") if named else []:
        if line.startswith(b'{"key"'):
            try:
                msgspec.json.decode(line, type=_Header)
                key: dict[str, Any] = json.loads(line)["key"]
                json.dumps(key, allow_nan=False)
            except (ValueError, RecursionError):
                continue
            keys.append(key)
    # One that was changed and is still a key is that of another version.
    right = [key for key in keys if named and key_digest(key) == named["digest"]]
    return next(iter([*right, *keys]), None)

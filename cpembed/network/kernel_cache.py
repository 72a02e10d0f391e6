"""What is kept between calls: kernels chosen and compiled, each in a file of its own.

A file is named by a digest of all that its contents depend on, the package's source included; what
cannot be read, or was written by another user, is made again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cpembed.codegen.host_cpu import needed_features
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_host_object, compiled_for
from cpembed.export.program import CompiledObject
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import versions
from cpembed.stores import SealedFolder, store_folder

T = TypeVar("T")

FOLDER_VARIABLE = "CPEMBED_NETWORK_CACHE"
"""Another folder; empty: nothing is kept."""

_PACKAGE = Path(__file__).resolve().parents[1]


def default_folder() -> Path | None:
    """Where kernels are kept."""
    told = os.environ.get(FOLDER_VARIABLE)
    if told is not None:
        return Path(told) if told else None
    return store_folder("network")


@cache
def source_digest(packages: tuple[str, ...]) -> str:
    """Of the code and the tables in some packages and modules, by their paths."""
    digest = hashlib.sha256()
    for package in packages:
        root = _PACKAGE / package
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in (".py", ".toml") and path.is_file():
                digest.update(path.relative_to(_PACKAGE).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(*parts: Any) -> str:
    """Of values whose texts say all of them."""
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Files of ``folder``; None keeps nothing."""

    folder: Path | None

    @property
    def _files(self) -> SealedFolder:
        return SealedFolder(self.folder)

    def get(self, kind: type[T], key: str) -> T | None:
        """What is kept under a key; None where there is nothing of the kind that can be read."""
        contents = self._files.get(key)
        if contents is None:
            return None
        try:
            found = pickle.loads(contents)  # Of this user: it is sealed.
        except Exception:  # Of other versions of Python or of a library: anything.
            return None
        return found if isinstance(found, kind) else None

    def put(self, key: str, value: Any) -> None:
        """Keep a value; a folder that cannot be written keeps nothing."""
        self._files.put(key, pickle.dumps(value))

    def of(self, kind: type[T], key: str, make: Callable[[], T]) -> T:
        """What is kept, or what is made and then kept."""
        found = self.get(kind, key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and of how many."""


def silent(what: str, done: int, of: int) -> None:
    """Nobody watches."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def symbol_of(plan: KernelPlan) -> str:
    """A name that only equal kernels, compiled alike, have."""
    host = compiled_for()
    compiler = source_digest(("codegen",)), versions()["apache-tvm"], host.name, host.attributes
    return f"k{digest_of(plan, compiler)[:24]}"


def compiled(
    plans: Mapping[str, KernelPlan], cache: Cache, progress: Progress
) -> dict[str, CompiledObject]:
    """Object files by symbol.

    Raises :class:`~cpembed.errors.LoweringError` for a kernel that does not compile, and
    :class:`~cpembed.errors.CrashError` for one that ends the compiler.
    """
    kept = {symbol: cache.get(CompiledObject, f"{symbol}.o") for symbol in plans}
    found = {symbol: one for symbol, one in kept.items() if one is not None}
    missing = [symbol for symbol in plans if symbol not in found]
    progress("compiling", 0, len(missing))
    # What takes the longest comes first, so that no process waits for one at the end.
    missing.sort(key=lambda symbol: -len(plans[symbol].source))
    tasks = [(plans[symbol], symbol) for symbol in missing]
    for number, (_, one) in enumerate(worker.call_each(_object, tasks, cores()), 1):
        found[one.symbol] = one
        cache.put(f"{one.symbol}.o", one)
        progress("compiling", number, len(missing))
    return found


def _object(task: tuple[KernelPlan, str]) -> CompiledObject:
    plan, symbol = task
    return CompiledObject(symbol, compile_host_object(plan, symbol).contents)


def features(asked: Iterable[str]) -> tuple[str, ...]:
    """What a processor has to have for kernels that ask for these features: those of this one, for
    which they are compiled, too."""
    return needed_features(tuple(dict.fromkeys(asked)))

"""Cache of chosen, measured and compiled kernels, and their compilation to object files.

Each entry is a file named by a digest of all that its contents depend on, the package's source
included. What cannot be read, or was written by another user, is made again.
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
"""Environment variable that names another folder; an empty one disables the cache."""

_PACKAGE = Path(__file__).resolve().parents[1]


def default_folder() -> Path | None:
    """Return the folder of the cache; None if it is disabled."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is not None:
        return Path(folder) if folder else None
    return store_folder("network")


@cache
def source_digest(packages: tuple[str, ...]) -> str:
    """Return the digest of the code and tables in packages and modules, given by their paths."""
    digest = hashlib.sha256()
    for package in packages:
        root = _PACKAGE / package
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in (".py", ".toml") and path.is_file():
                digest.update(path.relative_to(_PACKAGE).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(*parts: Any) -> str:
    """Return the digest of values whose ``repr`` is complete."""
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Pickled values in files of ``folder``; None keeps nothing."""

    folder: Path | None

    @property
    def _files(self) -> SealedFolder:
        return SealedFolder(self.folder)

    def get(self, kind: type[T], key: str) -> T | None:
        """Return the value under a key, or None if there is none of that type that can be read."""
        contents = self._files.get(key)
        if contents is None:
            return None
        try:
            value = pickle.loads(contents)  # Of this user: it is sealed.
        except Exception:  # Of other versions of Python or of a library: anything.
            return None
        return value if isinstance(value, kind) else None

    def put(self, key: str, value: Any) -> None:
        """Store a value, if the folder can be written."""
        self._files.write(key, pickle.dumps(value))

    def get_or_make(self, kind: type[T], key: str, make: Callable[[], T]) -> T:
        """Return the value under a key, made and stored if there is none.

        Parameters
        ----------
        kind : type
        key : str
        make : callable
        """
        value = self.get(kind, key)
        if value is None:
            value = make()
            self.put(key, value)
        return value


Progress = Callable[[str, int, int], None]
"""Function that is called with a phase, the number of finished steps, and the number of all."""


def silent(*_: object) -> None:
    """Ignore progress."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def symbol_of(plan: KernelPlan) -> str:
    """Return a symbol that only equal kernels, compiled alike, have."""
    host = compiled_for()
    compiler = source_digest(("codegen",)), versions()["apache-tvm"], host.name, host.attributes
    return f"k{digest_of(plan, compiler)[:24]}"


def compiled(
    plans: Mapping[str, KernelPlan], cache: Cache, progress: Progress
) -> dict[str, CompiledObject]:
    """Return object files by symbol, from the cache or compiled in several processes.

    Parameters
    ----------
    plans : mapping from str to KernelPlan
        Kernels by symbol.
    cache : Cache
    progress : Progress

    Raises
    ------
    LoweringError
        If a kernel does not compile.
    CrashError
        If a kernel crashes the compiler.
    """
    cached = {symbol: cache.get(CompiledObject, f"{symbol}.o") for symbol in plans}
    objects = {
        symbol: compiled_object
        for symbol, compiled_object in cached.items()
        if compiled_object is not None
    }
    missing = [symbol for symbol in plans if symbol not in objects]
    progress("compiling", 0, len(missing))
    # What takes the longest comes first, so that no process waits for one at the end.
    missing.sort(key=lambda symbol: -len(plans[symbol].source))
    tasks = [(plans[symbol], symbol) for symbol in missing]
    for number, (_, compiled_object) in enumerate(worker.call_each(_object, tasks, cores()), 1):
        objects[compiled_object.symbol] = compiled_object
        cache.put(f"{compiled_object.symbol}.o", compiled_object)
        progress("compiling", number, len(missing))
    return objects


def _object(task: tuple[KernelPlan, str]) -> CompiledObject:
    plan, symbol = task
    return CompiledObject(symbol, compile_host_object(plan, symbol).contents)


def features(required: Iterable[str]) -> tuple[str, ...]:
    """Return the processor features of kernels and of this processor, for which they are
    compiled.
    """
    return needed_features(tuple(dict.fromkeys(required)))

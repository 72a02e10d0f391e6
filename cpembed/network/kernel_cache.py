"""Cache of chosen, measured and compiled kernels, and their compilation to object files.

Each entry is a file named by a digest of all that its contents depend on, the package's source
included. A file that cannot be read, or that another user wrote, is made again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cpembed.codegen.host_cpu import architecture, exported_attributes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_host_object, compiled_for
from cpembed.export.program import CompiledObject
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import versions
from cpembed.steps import Progress
from cpembed.stores import SealedFolder, store_folder

T = TypeVar("T")

FOLDER_VARIABLE = "CPEMBED_NETWORK_CACHE"
"""Environment variable that names the cache's folder; if it is empty, nothing is cached."""

_PACKAGE = Path(__file__).resolve().parents[1]


def default_folder() -> Path | None:
    """Return the folder of the cache, or None if caching is disabled."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is not None:
        return Path(folder) if folder else None
    return store_folder("network")


@cache
def source_digest(packages: tuple[str, ...]) -> str:
    """Return the digest of all code and tables in packages and modules, given by their paths."""
    digest = hashlib.sha256()
    for package in packages:
        root = _PACKAGE / package
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in (".py", ".toml") and path.is_file():
                digest.update(path.relative_to(_PACKAGE).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(*parts: Any) -> str:
    """Return the digest of values that ``repr`` describes completely, such as dataclasses."""
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Pickled values in files of a folder; without one nothing is stored.

    Unpickling runs code, so files are sealed with a key that only this user can read.
    """

    folder: Path | None

    def get(self, kind: type[T], key: str) -> T | None:
        """Return the value under a key, or None if there is none of that type that can be read."""
        contents = SealedFolder(self.folder).get(key)
        if contents is None:
            return None
        try:
            value = pickle.loads(contents)
        except Exception:  # Pickles of other versions of Python or of a library raise anything.
            return None
        return value if isinstance(value, kind) else None

    def store(self, key: str, value: Any) -> None:
        """Store a value, if the folder can be written."""
        SealedFolder(self.folder).write(key, pickle.dumps(value))


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def symbol_of(plan: KernelPlan) -> str:
    """Return the symbol of a kernel, equal only for equal kernels that are compiled alike."""
    host = compiled_for()
    compiler = source_digest(("codegen",)), versions()["apache-tvm"]
    compiler += architecture(), host.name, host.attributes, exported_attributes()
    return f"k{digest_of(plan, compiler)[:24]}"


def compiled_kernels(
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
    objects: dict[str, CompiledObject] = {}
    for symbol in plans:
        if (cached := cache.get(CompiledObject, f"{symbol}.o")) is not None:
            objects[symbol] = cached
    missing = [symbol for symbol in plans if symbol not in objects]
    progress("compiling", 0, len(missing))
    # The longest sources take longest; first, so that no process waits for one at the end.
    missing.sort(key=lambda symbol: -len(plans[symbol].source))
    tasks = [(plans[symbol], symbol) for symbol in missing]
    for number, (_, compiled_object) in enumerate(worker.call_each(_object, tasks, cores()), 1):
        objects[compiled_object.symbol] = compiled_object
        cache.store(f"{compiled_object.symbol}.o", compiled_object)
        progress("compiling", number, len(missing))
    return objects


def _object(task: tuple[KernelPlan, str]) -> CompiledObject:
    plan, symbol = task
    return CompiledObject(symbol, compile_host_object(plan, symbol).contents)

"""Cache of chosen, measured and compiled kernels, and their compilation to object files.

Each entry is a file named by a digest of all that its contents depend on, the package's source
included. A file that cannot be read, or that another user wrote, is made again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Generator
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cpembed.codegen.host_cpu import (
    NAME_VARIABLE,
    HostCpu,
    architecture,
    cache_by_processor,
    cpu_features,
    cpu_model,
    exported_attributes,
    named_processor,
)
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_host_object, compiled_for
from cpembed.export.program import CompiledObject
from cpembed.host import core_count
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


@cache_by_processor
def _compiler_version(cache: Cache) -> tuple[object, ...]:
    """Return all that the code of an equal kernel depends on."""
    tvm_version = versions()["apache-tvm"]
    if named_processor() is None:
        # LLVM's guess of the processor is that of its identification, so TVM need not be loaded to
        # ask.
        processor = cpu_model(), sorted(cpu_features()), os.environ.get(NAME_VARIABLE)
        key = digest_of("host", tvm_version, processor, source_digest(("codegen",)))
        host = cache.get(HostCpu, key)
        if host is None:
            host = worker.call(compiled_for)
            cache.store(key, host)
    else:
        host = compiled_for()
    code = source_digest(("codegen",)), architecture(), exported_attributes()
    return *code, tvm_version, host.name, host.attributes


def symbol_of(plan: KernelPlan, cache: Cache) -> str:
    """Return the symbol of a kernel, equal only for equal kernels that are compiled alike."""
    return f"k{digest_of(plan, _compiler_version(cache))[:24]}"


@contextmanager
def kernel_compiler(cache: Cache, progress: Progress) -> Generator[KernelCompiler]:
    """Provide a compiler of kernels in several processes."""
    with worker.open_calls(_object, core_count()) as submit:
        yield KernelCompiler(cache, progress, submit)


@dataclass
class KernelCompiler:
    """Kernels from the cache, or compiled from the moment at which they are added."""

    cache: Cache
    progress: Progress
    submit: Callable[[tuple[KernelPlan, str]], Future[CompiledObject]]
    objects: dict[str, CompiledObject] = field(default_factory=dict[str, CompiledObject])
    compiling: dict[str, Future[CompiledObject]] = field(
        default_factory=dict[str, "Future[CompiledObject]"]
    )

    def add(self, plan: KernelPlan) -> str:
        """Compile a kernel unless it is there, and return its symbol."""
        symbol = symbol_of(plan, self.cache)
        if symbol not in self.objects and symbol not in self.compiling:
            cached = self.cache.get(CompiledObject, f"{symbol}.o")
            if cached is not None:
                self.objects[symbol] = cached
            else:
                self.compiling[symbol] = self.submit((plan, symbol))
        return symbol

    def finished(self) -> dict[str, CompiledObject]:
        """Return the object files by symbol once all are compiled.

        Raises
        ------
        LoweringError
            If a kernel does not compile.
        CrashError
            If a kernel crashes the compiler.
        """
        total = len(self.compiling)
        self.progress("compiling", 0, total)
        for number, future in enumerate(as_completed(self.compiling.values()), 1):
            compiled = future.result()
            self.objects[compiled.symbol] = compiled
            self.cache.store(f"{compiled.symbol}.o", compiled)
            self.progress("compiling", number, total)
        return self.objects


def _object(task: tuple[KernelPlan, str]) -> CompiledObject:
    plan, symbol = task
    return CompiledObject(symbol, compile_host_object(plan, symbol).contents)

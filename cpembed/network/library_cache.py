"""Libraries of networks that were built and verified before, taken as they are.

An entry is a folder with the files of a library, and a sealed manifest: the digest of each file and
the document of the run that verified it. Its key is made of all that a build depends on, so the
files would be made again bit for bit; they are copied only if this user sealed the manifest, and
every file is as it was then.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import msgspec

from cpembed.codegen.host_cpu import cpu_features, cpu_model
from cpembed.codegen.runtime import thread_count
from cpembed.errors import BackendUnavailable
from cpembed.export.library import Contents, Library, compiler, drafted
from cpembed.export.texts import NATIVE
from cpembed.files import read_regular
from cpembed.graph.graph import Graph
from cpembed.network.kernel_cache import Cache, digest_of
from cpembed.network.plan import Planning
from cpembed.network.product_kernels import units_digest
from cpembed.runtime.measurement.environment import source_digest, versions
from cpembed.runtime.tuning.database import tuning_folder
from cpembed.stores import LARGEST_SEALED, SealedFolder
from cpembed.targets.units import Units

LARGEST_ALL = 4 << 30
"""Maximum size in bytes of all libraries of the cache; the least recently written ones go first."""

_SUFFIX = ".library"


class _Manifest(msgspec.Struct, frozen=True):
    """Name of a library, digests of its files by name, and the document of its build."""

    name: str
    files: dict[str, str]
    document: dict[str, Any]


@dataclass(frozen=True)
class LibraryCache:
    """Entries in the folder of the kernels' cache; without a folder nothing is stored."""

    cache: Cache

    def copied(self, key: str, folder: Path) -> tuple[Library, dict[str, Any]] | None:
        """Copy a library to a folder; return it with its document, or None if there is none.

        Raises :class:`~cpembed.errors.CpembedError` if the folder cannot be written.
        """
        root = self.cache.folder
        sealed = SealedFolder(root).get(f"{key}{_SUFFIX}.json")
        if root is None or sealed is None:
            return None
        try:
            manifest = msgspec.json.decode(sealed, type=_Manifest)
            contents = {name: self._file(root, key, name, manifest) for name in manifest.files}
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        with drafted(folder) as draft:
            for name, data in contents.items():
                (draft / name).write_bytes(data)
            for name in contents:
                (draft / name).replace(folder / name)
        digest = hashlib.blake2b(contents[f"lib{manifest.name}.so"]).digest()
        library = Library(manifest.name, folder, tuple(manifest.files), digest)
        return library, manifest.document

    @staticmethod
    def _file(root: Path, key: str, name: str, manifest: _Manifest) -> bytes:
        """Return a file of an entry; raise ValueError if it is another one than was sealed."""
        data = read_regular(root / f"{key}{_SUFFIX}" / name, LARGEST_SEALED)
        if hashlib.blake2b(data).hexdigest() != manifest.files[name]:
            raise ValueError(f"{name} was changed")
        return data

    def store(self, key: str, library: Library, document: dict[str, Any]) -> None:
        """Store a library that was verified, if the folder can be written."""
        root = self.cache.folder
        if root is None:
            return
        entry = root / f"{key}{_SUFFIX}"
        with suppress(OSError):
            shutil.rmtree(entry, ignore_errors=True)
            entry.mkdir(parents=True, mode=0o700)
            digests: dict[str, str] = {}
            for name in library.files:
                shutil.copyfile(library.folder / name, entry / name)
                with (entry / name).open("rb") as file:
                    digests[name] = hashlib.file_digest(file, "blake2b").hexdigest()
            # Last, so that an interrupted copy has no manifest.
            manifest = _Manifest(library.name, digests, document)
            SealedFolder(root).write(f"{key}{_SUFFIX}.json", msgspec.json.encode(manifest))
            _remove_oldest(root)


def _remove_oldest(root: Path) -> None:
    """Remove entries, the least recently written first, until all have the allowed size."""
    entries = [path for path in root.glob(f"*{_SUFFIX}") if path.is_dir()]
    total = 0
    for entry in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True):
        total += sum(file.stat().st_size for file in entry.iterdir())
        if total > LARGEST_ALL:
            (root / f"{entry.name}.json").unlink(missing_ok=True)
            shutil.rmtree(entry, ignore_errors=True)


def library_key(
    graph: Graph, units: Units, planning: Planning, name: str | None, contents: Contents
) -> str | None:
    """Return the key of a library, made of all that its build depends on.

    Parameters
    ----------
    graph : Graph
        Network as a front end made it.
    units : Units
    planning : Planning
    name : str or None
        Name of the library, if it is not the graph's.
    contents : Contents
        Files to write.

    Returns
    -------
    str or None
        None for a network that cannot be told from others, such as one with functions of Python, or
        if there is no C compiler.
    """
    try:
        command = compiler()
        digest = _graph_digest(graph)
    except (BackendUnavailable, pickle.PicklingError, AttributeError, TypeError):
        return None
    options = {f.name: getattr(planning, f.name) for f in fields(planning) if f.name != "cache"}
    return digest_of(
        "library",
        digest,
        units_digest(units),
        options,
        name,
        json.dumps(contents.details, sort_keys=True, default=repr),
        [getattr(contents, f.name) for f in fields(contents) if f.name != "details"],
        thread_count(),
        (cpu_model(), sorted(cpu_features())),
        (source_digest(), _native_digest(), versions(), command),
        list(_tuning_state()),
    )


def _graph_digest(graph: Graph) -> str:
    digest = hashlib.blake2b()
    # Pickled only to be told apart: it describes arrays in attributes completely.
    digest.update(pickle.dumps((graph.name, dict(graph.inputs), graph.outputs, graph.operators)))
    for name, array in graph.constants.items():
        digest.update(f"{name} {array.dtype.name} {array.shape}".encode())
        contiguous = array if array.flags.c_contiguous else array.copy()
        digest.update(cast(Any, contiguous).reshape(-1).view("uint8"))
    return digest.hexdigest()


def _native_digest() -> str:
    """Return the digest of the runtime's sources, which every library contains."""
    sources = sorted(path for path in NATIVE.iterdir() if path.is_file())
    return digest_of([(path.name, path.read_bytes()) for path in sources])


def _tuning_state() -> Iterable[tuple[str, int, int]]:
    """Yield names, sizes and times of the files of tuning records, of which kernels are taken."""
    folder = tuning_folder()
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        with suppress(OSError):
            state = path.stat()
            yield path.relative_to(folder).as_posix(), state.st_size, state.st_mtime_ns

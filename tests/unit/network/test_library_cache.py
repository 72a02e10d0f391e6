"""Libraries that were verified before are taken only as they were."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.driver.matching import network_units
from cpembed.export.library import EVERYTHING, Library
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Input, TensorType
from cpembed.network import library_cache
from cpembed.network.kernel_cache import Cache
from cpembed.network.library_cache import LibraryCache, library_key
from cpembed.network.plan import Planning

DOCUMENT = {"operators": [], "date": "2026-01-01"}


def stored(tmp_path: Path, key: str = "key", size: int = 10) -> LibraryCache:
    folder = tmp_path / "first"
    folder.mkdir(exist_ok=True)
    (folder / "libnet.so").write_bytes(b"code")
    (folder / "net.weights").write_bytes(bytes(size))
    library = Library("net", folder, ("libnet.so", "net.weights"))
    libraries = LibraryCache(Cache(tmp_path / "cache"))
    libraries.store(key, library, DOCUMENT)
    return libraries


def test_a_library_is_copied_with_its_document(tmp_path: Path) -> None:
    libraries, folder = stored(tmp_path), tmp_path / "second"
    copied = libraries.copied("key", folder)
    assert copied is not None
    library, document = copied
    assert document == DOCUMENT
    assert (folder / "libnet.so").read_bytes() == b"code"
    assert sorted(path.name for path in folder.iterdir()) == ["libnet.so", "net.weights"]
    assert not library.is_replaced
    (folder / "libnet.so").write_bytes(b"another")
    assert library.is_replaced
    assert libraries.copied("other key", folder) is None


def entry(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "key.library"


def change(tmp_path: Path) -> None:
    (entry(tmp_path) / "libnet.so").write_bytes(b"evil")


def remove(tmp_path: Path) -> None:
    (entry(tmp_path) / "net.weights").unlink()


def link(tmp_path: Path) -> None:
    (entry(tmp_path) / "net.weights").unlink()
    os.mkfifo(entry(tmp_path) / "net.weights")


def forge(tmp_path: Path) -> None:
    manifest = tmp_path / "cache" / "key.library.json"
    manifest.write_bytes(manifest.read_bytes()[:32] + b'{"name": "net", "files": {}}')


@pytest.mark.parametrize("damage", [change, remove, link, forge])
def test_a_damaged_or_forged_entry_is_not_taken(tmp_path: Path, damage: Any) -> None:
    libraries = stored(tmp_path)
    damage(tmp_path)
    assert libraries.copied("key", tmp_path / "second") is None
    assert not (tmp_path / "second").exists()


def test_the_oldest_libraries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_cache, "LARGEST_ALL", 250)
    for number in range(4):
        libraries = stored(tmp_path, f"key{number}", 100)
        os.utime(tmp_path / "cache" / f"key{number}.library", (number, number))
    libraries = stored(tmp_path, "last", 100)
    keys = [f"key{n}" for n in range(4)] + ["last"]
    there = [k for k in keys if libraries.copied(k, tmp_path / "second") is not None]
    assert there == ["key3", "last"]


def graph(constant: float = 1.0, name: str = "net", types: str = "float32") -> Graph:
    added = Elementwise(Input(0), types, types)
    operator = Operator("copy", added, ("c",), ("y",))
    constants = {"c": np.array([0.0, constant], types)}
    return Graph(name, {}, ("y",), constants, (operator,))


def test_a_key_depends_on_all_that_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    units, planning = network_units("avx2_int8"), Planning(cache=Cache(None))

    def key(of: Graph | None = None, changed: Planning = planning, **options: Any) -> str | None:
        contents = replace(EVERYTHING, **options)
        return library_key(of or graph(), units, changed, None, contents)

    first = key()
    assert first is not None
    assert key(graph()) == first
    assert key(changed=replace(planning, cache=Cache(Path("/elsewhere")))) == first
    others = [
        key(graph(2.0)),
        key(graph(name="other")),
        key(graph(types="float64")),
        key(changed=replace(planning, method="implicit")),
        key(changed=replace(planning, timeout=1.0)),
        key(torch=True),
    ]
    monkeypatch.setattr(library_cache, "thread_count", lambda: 77)
    others.append(key())
    monkeypatch.setenv("CC", "/nonexistent/cc")
    assert key() is None
    assert len({first, *others}) == 1 + len(others)


def test_a_network_with_functions_of_python_has_no_key() -> None:
    units = network_units("avx2_int8")
    inputs = {"x": TensorType((2,), "float32")}
    function: Any = lambda x: x  # noqa: E731
    operator = Operator("f", function, ("x",), ("y",))
    foreign: Any = object.__new__(Graph)
    for field, value in {
        "name": "n", "inputs": inputs, "outputs": ("y",), "constants": {}, "operators": (operator,)
    }.items():  # fmt: skip
        object.__setattr__(foreign, field, value)
    assert library_key(foreign, units, Planning(), None, EVERYTHING) is None

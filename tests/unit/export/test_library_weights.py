"""Weights of libraries: packed when they are built, in files beside them, damaged and lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import BackendUnavailable
from cpembed.export import library as written
from cpembed.export.library import Contents, compiler
from cpembed.export.loader import Library, LibraryError, aligned
from cpembed.export.program import Buffer, Call, Program, Role
from tests.unit.export.handwritten import SIZE, sums
from tests.unit.export.small_library import W, X, write_library

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def in_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights that are known, in a file."""
    before = written.EMBEDDED_BYTES
    written.EMBEDDED_BYTES = 0
    try:
        return write_library(sums("net", known=True), tmp_path_factory.mktemp("net")).path
    finally:
        written.EMBEDDED_BYTES = before


@pytest.mark.slow
def test_known_weights_are_packed_when_it_is_built(tmp_path: Path) -> None:
    library = write_library(sums(known=True), tmp_path)
    assert "sums.weights" not in library.files
    with Library(library.path, "sums") as opened:
        assert not opened.weights
        found = opened.run(X)[0]
        assert np.array_equal(opened.tensor("twice"), 2 * np.arange(SIZE))
        with pytest.raises(LibraryError, match="no buffer w"):
            opened.tensor("w")
    assert np.array_equal(found, -(X.reshape(-1) + 2 * np.arange(SIZE) - 7))


@pytest.mark.slow
def test_a_file_of_weights_is_found_beside_the_library_or_where_one_says(
    in_file: Path, tmp_path: Path
) -> None:
    expected = -(X.reshape(-1) + 2 * np.arange(SIZE) - 7)
    with Library(in_file, "net") as opened:
        assert np.array_equal(opened.run(X)[0], expected)
    elsewhere = shutil.copy(in_file.parent / "net.weights", tmp_path / "moved")
    alone = shutil.copy(in_file, tmp_path / "libnet.so")
    with Library(alone, "net", weights_file=elsewhere) as opened:
        assert np.array_equal(opened.run(X)[0], expected)
    with pytest.raises(LibraryError, match="cannot be opened"):
        Library(alone, "net")


@pytest.mark.parametrize("place", [0, 8, 64, 1000, -1])
def test_a_damaged_file_of_weights_is_refused(in_file: Path, tmp_path: Path, place: int) -> None:
    """A byte of the header, or of the weights: its bytes and sums beyond the magic are not read."""
    data = bytearray((in_file.parent / "net.weights").read_bytes())
    data[place] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    if place == 8:
        Library(in_file, "net", weights_file=tmp_path / "damaged").close()
        return
    with pytest.raises(LibraryError, match="damaged, or of another build"):
        Library(in_file, "net", weights_file=tmp_path / "damaged")


def test_exchanged_and_lost_weights_are_damage(in_file: Path, tmp_path: Path) -> None:
    data = (in_file.parent / "net.weights").read_bytes()
    for damaged in (
        data[:64] + data[72:80] + data[64:72] + data[80:],
        data[:-64],
        data + bytes(64),
        b"",
    ):
        assert damaged != data
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(LibraryError, match="damaged, or of another build"):
            Library(in_file, "net", weights_file=tmp_path / "damaged")


@pytest.mark.quick(1)
@pytest.mark.parametrize("shift", [0, 4])
def test_weights_that_runs_read_are_copied_when_they_are_packed(tmp_path: Path, shift: int) -> None:
    buffers = (
        Buffer("x", "int32", SIZE, Role.INPUT, (SIZE,)),
        Buffer("w", "int32", SIZE, Role.WEIGHTS, (SIZE,)),
        Buffer("y", "int32", SIZE, Role.OUTPUT, (SIZE,)),
    )
    kernels = {"add": sums().kernels["add"]}
    program = Program("plain", buffers, kernels, (), (Call("add", ("x", "w", "y")),))
    path = write_library(program, tmp_path, Contents(example=False)).path
    room = aligned((SIZE + 16,), np.int32)
    weights = room[shift : shift + SIZE]
    weights[:] = W
    with Library(path, "plain", threads=2) as opened:
        pointer = np.array([weights.ctypes.data], np.uintp)
        assert opened._library.plain_pack(opened._handle, pointer.ctypes.data) == 0
        room[:] = 0
        assert np.array_equal(opened.run(X.reshape(-1))[0], X.reshape(-1) + W)

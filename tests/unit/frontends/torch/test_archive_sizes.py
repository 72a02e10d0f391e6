"""Containers, sizes and damages of archives: none takes memory that its file does not have."""

import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cpembed.errors import CpembedError  # noqa: E402
from cpembed.frontends import load_model  # noqa: E402
from tests.unit.frontends.torch import archives  # noqa: E402
from tests.unit.frontends.torch.archives import (  # noqa: E402
    CONSTANTS,
    PROGRAM,
    WEIGHTS,
    changed,
    described,
    members_of,
    refused,
    saved,
)
from tests.unit.frontends.torch.comparing import Function  # noqa: E402


def test_two_members_of_one_name(path: Path) -> None:
    members = members_of(path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"model/{PROGRAM}", members[PROGRAM])
    assert "two members" in refused(path)


def test_members_of_two_folders(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("Model/archive_version", b"0")
    assert "outside the folder" in refused(path)


def test_a_name_that_the_local_header_does_not_have(path: Path) -> None:
    content = path.read_bytes()
    name = b"data/constants/tensor_0"
    first = content.index(name)
    path.write_bytes(content[:first] + b"data/constants/opaque0" + b"_" + content[first + 23 :])
    assert "damaged" in refused(path)


def test_a_name_with_a_nul(path: Path) -> None:
    content = path.read_bytes()
    name = b"model/data/weights/weight_1"
    assert content.count(name) == 2
    path.write_bytes(content.replace(name, name[:-2] + b"\0" + name[-1:]))
    assert "which no network needs" in refused(path)


def test_another_version_of_the_schema(path: Path) -> None:
    described(path, PROGRAM, lambda c: c["schema_version"].update(major=9))
    assert "version 9" in refused(path)


def test_a_member_that_is_compressed_is_not_unpacked(path: Path) -> None:
    members = members_of(path) | {"data/weights/weight_9": bytes(64 << 20)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"model/{name}", content)
    assert path.stat().st_size < 1 << 20
    assert "is compressed" in refused(path)


def test_members_that_overlap(path: Path) -> None:
    """Entries of the directory that all point at one member's bytes."""
    members = members_of(path) | {"data/weights/weight_9": bytes(1 << 20)}
    archives.write(path, members)
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    count, size, start = struct.unpack("<HII", content[end + 10 : end + 20])
    entry = content.rindex(b"PK\1\2", 0, end)
    entries = b""
    for k in range(10, 74):
        entries += content[entry:end].replace(b"weight_9", b"weight_%d" % k, 1)[: end - entry]
    entries = b"".join(
        _renamed(content[entry:end], b"weight_9", b"weight_%d" % k) for k in range(10, 74)
    )
    tail = struct.pack(
        "<4sHHHHIIH", b"PK\5\6", 0, 0, count + 64, count + 64, size + len(entries), start, 0
    )
    path.write_bytes(content[:end] + entries + tail)
    assert "overlap" in refused(path)


def _renamed(entry: bytes, old: bytes, new: bytes) -> bytes:
    """An entry of the directory with another name."""
    (length,) = struct.unpack_from("<H", entry, 28)
    changed_entry = bytearray(entry.replace(old, new))
    struct.pack_into("<H", changed_entry, 28, length + len(new) - len(old))
    return bytes(changed_entry)


@pytest.mark.parametrize(
    "meta, message",
    [
        ({"sizes": [4, 5]}, "ends at byte 80 of its storage"),
        ({"storage_offset": 1}, "ends at byte 64 of its storage"),
        ({"strides": [5, 2]}, "of its storage"),
        ({"sizes": [1 << 13, 1 << 13], "strides": [0, 0]}, "by repetition"),
        ({"sizes": [1 << 20, 1 << 20], "strides": [0, 0]}, "at most 2^31"),
        ({"sizes": [1 << 62, 0], "strides": [0, 0]}, "at most 2^31"),
        ({"sizes": [-1, 5]}, "is no size"),
        ({"sizes": [15]}, "1 sizes and 2 strides"),
        ({"dtype": 8}, "of its storage"),
        ({"dtype": 0}, "element type 0"),
        ({"layout": 1}, "no dense tensor"),
        ({"device": {"type": "cuda", "index": 0}}, "is on cuda"),
    ],
)
def test_a_tensor_that_its_member_does_not_hold(
    path: Path, meta: dict[str, Any], message: str
) -> None:
    def describe(content: Any) -> None:
        tensor = content["config"]["linear.weight"]["tensor_meta"]
        for key, value in meta.items():
            match key:
                case "sizes" | "strides":
                    tensor[key] = [{"as_int": number} for number in value]
                case "storage_offset":
                    tensor[key] = {"as_int": value}
                case _:
                    tensor[key] = value

    described(path, WEIGHTS, describe)
    assert message in refused(path)


def test_tensors_are_bounded_together(tmp_path: Path) -> None:
    class Repeating(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            for name in "abc":
                self.register_buffer(name, torch.ones(1).expand(size))

        def forward(self, x: Any) -> Any:
            return x + self.a[:5] + self.b[:5] + self.c[:5]

    x = torch.zeros(5)
    load_model(saved(tmp_path / "small.pt2", Repeating(1 << 10), x))
    # Each alone would be taken.
    assert "by repetition" in refused(saved(tmp_path / "large.pt2", Repeating(3 << 21), x))


def test_a_list_of_members_that_is_too_large_is_not_read(path: Path) -> None:
    """Each entry of 50 bytes would become an object of 500."""
    archives.write(path, members_of(path))
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    count, size, start = struct.unpack("<HII", content[end + 10 : end + 20])
    entry = content.rindex(b"PK\1\2", 0, end)
    entries = content[entry:end] * ((17 << 20) // (end - entry))
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, size + len(entries), start, 0)
    path.write_bytes(content[:end] + entries + tail)
    assert "its list of members has" in refused(path)


def test_a_description_of_too_many_values_is_not_decoded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpembed.frontends.torch.description.MOST_VALUES", 1000)
    described(path, PROGRAM, lambda content: content.update(other=[{}] * 1000))
    assert "more than 1,000 values" in refused(path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "none"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.pt2"
    if kind != "none":
        (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    refused(path)


def test_a_boolean_that_is_neither(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))

        def forward(self, x: Any) -> Any:
            return x * self.mask

    path = saved(tmp_path / "model.pt2", Masked(), torch.randn(3))
    changed(path, lambda m: m.update({"data/weights/weight_0": b"\1\2\0"}))
    assert "neither 0 nor 1" in refused(path)


LARGE: dict[str, Callable[..., Any]] = {
    "zeros": lambda x: x[0, 0] + torch.zeros(1 << 14, 1 << 14),
    "ones": lambda x: x[0, 0] + torch.ones(1 << 29),
    "range": lambda x: x[0, 0] + torch.arange(1 << 28),
    "repetition": lambda x: x[0, 0] + torch.ones(1).expand(1 << 30),
    "many": lambda x: sum((x + torch.full((1 << 26,), 2.0 + k)[:5] for k in range(16)), x),
    "of an input's shape": lambda x: torch.zeros_like(x[0, 0].expand(1 << 30)),
}


def test_a_small_file_makes_no_large_constant(tmp_path: Path) -> None:
    """Read in a process of its own, whose largest size is compared."""
    for name, make in LARGE.items():
        program = torch.export.export(
            Function(lambda x, make=make: make(x).sum()), (torch.zeros(2, 5),)
        )
        torch.export.save(program, tmp_path / f"{name}.pt2")
    code = f"""
import pathlib
import resource
import cpembed.frontends.torch.lowering
from cpembed.errors import ModelError
from cpembed.frontends import load_model
from cpembed.frontends.torch.program import operators
operators()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in pathlib.Path({str(tmp_path)!r}).glob("*.pt2"):
    try:
        load_model(path)
    except ModelError as error:
        assert "make them parameters" in str(error), error
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 800 << 10, (path, grown)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_an_operator_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(
        torch.export.export(Function(lambda x: x.unbind()[0]), (torch.ones(2),)), path
    )

    def describe(content: Any) -> None:
        content["graph_module"]["graph"]["tensor_values"]["inputs_0"].update(
            sizes=[{"as_int": 1 << 31}], strides=[{"as_int": 0}]
        )

    described(path, PROGRAM, describe)
    assert "more than 65,536 results" in refused(path)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A file with one of the damages that files come with."""
    data = bytearray(content)
    match chance.randrange(4):
        case 0:
            for _ in range(chance.randint(1, 8)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1:
            del data[chance.randrange(len(data)) :]
        case 2:
            start = chance.randrange(len(data))
            del data[start : start + chance.randint(1, 64)]
        case _:
            a, b = (chance.randrange(len(data) - 32) for _ in range(2))
            data[a : a + 32], data[b : b + 32] = data[b : b + 32], data[a : a + 32]
    return bytes(data)


def read_or_refused(path: Path) -> None:
    """Either is right; a traceback or a second line is not."""
    said = ""
    try:
        load_model(path)
    except CpembedError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files(path: Path, seed: int) -> None:
    chance, content = random.Random(seed), path.read_bytes()
    for _ in range(25):
        path.write_bytes(damaged(content, chance))
        read_or_refused(path)


def test_swapped_members(path: Path) -> None:
    members = members_of(path)
    names = [n for n in members if not n.startswith(".")]
    chance = random.Random(0)
    for _ in range(20):
        a, b = chance.sample(names, 2)
        archives.write(path, members | {a: members[b], b: members[a]})
        read_or_refused(path)


def mutated(value: Any, chance: random.Random) -> Any:
    """JSON with one value replaced, at any depth."""
    if isinstance(value, dict) and value and chance.random() < 0.95:
        key = chance.choice(list(value))
        if chance.random() < 0.03:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.95:
        place = chance.randrange(len(value))
        if chance.random() < 0.05:
            return value[:place] + value[place + 1 :]
        return [*value[:place], mutated(value[place], chance), *value[place + 1 :]]
    choices = [None, True, -1, 0, 1, 2, 1 << 40, 1 << 70, 0.5, "x", "Infinity", [], {}]
    return chance.choice([*choices, [value], {"as_int": 3}, {"as_tensor": {"name": "x"}}])


@pytest.mark.parametrize("name", [PROGRAM, WEIGHTS, CONSTANTS])
def test_changed_descriptions(path: Path, name: str) -> None:
    content, chance = path.read_bytes(), random.Random(1)
    for _ in range(60):
        path.write_bytes(content)

        def change(described: Any) -> None:
            found = mutated(described, chance)
            described.clear()
            described.update(found if isinstance(found, dict) else {})

        archives.described(path, name, change)
        read_or_refused(path)

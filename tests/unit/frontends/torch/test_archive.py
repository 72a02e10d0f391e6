"""Files of other people: nothing in them is executed, and none takes memory that it does not have.

Each archive of the first part makes a file (or would) where PyTorch's own reader opens it.
"""

import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.errors import CpembedError, ModelError  # noqa: E402
from cpembed.frontends.torch import load  # noqa: E402
from tests.unit.frontends.torch import archives  # noqa: E402
from tests.unit.frontends.torch.archives import (  # noqa: E402
    CONSTANTS,
    PROGRAM,
    WEIGHTS,
    Members,
    changed,
    described,
    members_of,
    pickled,
    saved,
    touching_code,
)
from tests.unit.frontends.torch.comparing import Function, eager, run  # noqa: E402


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("saved") / "model.pt2")


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model.pt2"
    copy.write_bytes(original.read_bytes())
    return copy


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_saved_program_computes_what_the_model_computes(original: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5)
    graph = load(original)
    wanted = eager(torch.export.load(original).module(), x)
    for mine, theirs in zip(run(graph, x), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert {"linear.weight", "linear.bias", "scale"} <= {*graph.constants}


def test_tensors_that_share_a_storage(tmp_path: Path) -> None:
    table = torch.arange(24.0).reshape(4, 6)

    class Sharing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("part", table[1:, 2:4])
            self.register_buffer("turned", table.t())
            self.register_buffer("repeated", torch.arange(4.0).expand(3, 4))
            self.register_buffer("empty", torch.zeros(0, 4))
            self.register_buffer("narrow", torch.arange(4, dtype=torch.bfloat16))
            self.register_buffer("mask", torch.tensor([True, False, True, True]))

        def forward(self, x: Any) -> Any:
            rows = torch.cat([self.repeated, self.empty]) + self.turned[:3] + x
            return rows * self.mask + self.narrow, self.part

    x = torch.randn(3, 4)
    path = saved(tmp_path / "model.pt2", Sharing(), x)
    for mine, theirs in zip(run(load(path), x), eager(Sharing(), x), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# -- what would be executed -----------------------------------------------------------------------


def _opaque(members: Members, made: Path) -> None:
    members["data/constants/opaque_obj_0"] = pickled(made)


def _opaque_below(members: Members, made: Path) -> None:
    members["data/constants/opaque_obj_x/data"] = pickled(made)


def _opaque_capital(members: Members, made: Path) -> None:
    members["data/constants/OPAQUE_OBJ_0"] = pickled(made)


def _custom(members: Members, made: Path) -> None:
    members["data/constants/custom_obj_0"] = pickled(made)


def _legacy_weights(members: Members, made: Path) -> None:
    members["data/weights/model.pt"] = pickled(made, by_torch=True)


def _legacy_constants(members: Members, made: Path) -> None:
    members["Data/Constants/model.pt"] = pickled(made, by_torch=True)


def _library(members: Members, made: Path) -> None:
    members["data/aotinductor/model/kernel.so"] = b"\x7fELF"


def _second_program(members: Members, made: Path) -> None:
    members["models/other.json"] = members[PROGRAM]


def _extra(members: Members, made: Path) -> None:
    members["extra/notes"] = b"words"


def _with_backslashes(members: Members, made: Path) -> None:
    members["data\\constants\\opaque_obj_0"] = pickled(made)


def _upwards(members: Members, made: Path) -> None:
    members["data/constants/../constants/opaque_obj_0"] = pickled(made)


def _tensor_of_many_digits(members: Members, made: Path) -> None:
    members["data/constants/tensor_\u0661"] = pickled(made)


@pytest.mark.parametrize(
    "change",
    [
        _opaque,
        _opaque_below,
        _opaque_capital,
        _custom,
        _legacy_weights,
        _legacy_constants,
        _library,
        _second_program,
        _extra,
        _with_backslashes,
        _upwards,
        _tensor_of_many_digits,
    ],
    ids=lambda change: change.__name__.strip("_"),
)
def test_a_member_that_no_network_needs_is_refused(
    path: Path, tmp_path: Path, change: Callable[[Members, Path], None]
) -> None:
    made = tmp_path / "made"
    changed(path, lambda members: change(members, made))
    assert "which no network needs" in refused(path)
    assert not made.exists()


@pytest.mark.parametrize("index, member", [(WEIGHTS, "weight_0"), (CONSTANTS, "tensor_0")])
@pytest.mark.parametrize("flag", [True, False])
def test_a_tensor_that_is_a_pickle_is_not_unpickled(
    path: Path, tmp_path: Path, index: str, member: str, flag: bool
) -> None:
    made, folder = tmp_path / "made", index.rpartition("/")[0]

    def rewrite(members: Members) -> None:
        members[f"{folder}/{member}"] = pickled(made, by_torch=True)

    def describe(content: Any) -> None:
        for payload in content["config"].values():
            payload["use_pickle"] = flag and payload["path_name"] == member

    changed(path, rewrite)
    described(path, index, describe)
    if flag:
        assert "is an object of Python" in refused(path)
    else:
        load(path)  # Bytes are bytes.
    assert not made.exists()


def test_a_constant_may_not_name_an_object(path: Path, tmp_path: Path) -> None:
    def describe(content: Any) -> None:
        for payload in content["config"].values():
            payload["path_name"] = "opaque_obj_x/data"

    described(path, CONSTANTS, describe)
    assert "holds no 'opaque_obj_x/data'" in refused(path)


def test_inputs_that_were_used_as_examples_are_not_opened(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    changed(path, lambda m: m.update({"data/sample_inputs/model.pt": pickled(made, by_torch=True)}))
    load(path)
    assert not made.exists()


def _size(content: Any, code: str) -> None:
    values = content["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}


def _symbol(content: Any, code: str) -> None:
    content["graph_module"]["graph"]["sym_int_values"] = {"n": {"as_expr": {"expr_str": code}}}
    _argument(content, {"as_sym_int": {"as_name": "n"}})


def _argument(content: Any, value: Any) -> None:
    node = next(n for n in content["graph_module"]["graph"]["nodes"] if "split" in n["target"])
    node["inputs"][1]["arg"] = value


@pytest.mark.parametrize("change", [_size, _symbol])
def test_an_expression_is_not_evaluated(
    path: Path, tmp_path: Path, change: Callable[[Any, str], None]
) -> None:
    made = tmp_path / "made"
    described(path, PROGRAM, lambda content: change(content, touching_code(made)))
    message = refused(path)
    assert "is left open" in message or "is no expression that is read" in message
    assert not made.exists()


def test_what_no_network_needs_is_not_evaluated_either(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    code = touching_code(made)

    def describe(content: Any) -> None:
        content["guards_code"] = [code]
        content["range_constraints"] = {code: {"min_val": 1, "max_val": 2}}
        content["verifiers"] = [code]
        signature = content["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = code
        content["graph_module"]["treespec_namedtuple_fields"] = {code: {"field_names": [code]}}
        for node in content["graph_module"]["graph"]["nodes"]:
            node["metadata"]["source_fn_stack"] = f"x,torch.{code}"
            node["metadata"]["custom"] = code
            node["metadata"]["nn_module_stack"] = f"{code},{code},{code};;,"

    described(path, PROGRAM, describe)
    load(path)
    assert not made.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.load_library",
        "torch.ops.aten.linear.default.__class__",
        "torch.ops.aten.__class__.__init__",
        "torch.ops.import_module",
        "torch.hub.load",
        "torch.classes.load_library",
        "torch.ops.higher_order.cond",
        "torch.ops.aten._print.default",
        "_operator.attrgetter",
        "math.factorial",
        "#extension:name",
        "builtins.eval",
        "os.system",
        "",
    ],
)
def test_a_name_reaches_operators_only(path: Path, target: str) -> None:
    def describe(content: Any) -> None:
        content["graph_module"]["graph"]["nodes"][0]["target"] = target

    described(path, PROGRAM, describe)
    assert "is no operator that is known" in refused(path)


@pytest.mark.parametrize("of", ["input", "node", "result", "global"])
def test_a_name_is_not_written_into_code(path: Path, tmp_path: Path, of: str) -> None:
    """PyTorch writes the names of nodes into the code of a module, which it executes."""
    made = tmp_path / "made"
    code = "torch" if of == "global" else f"x={touching_code(made)}"

    def describe(content: Any) -> None:
        graph = content["graph_module"]["graph"]
        if of == "input":
            graph["inputs"][-1]["as_tensor"]["name"] = code
            graph["tensor_values"][code] = graph["tensor_values"].pop("x")
            spec = content["graph_module"]["signature"]["input_specs"][-1]
            spec["user_input"]["arg"]["as_tensor"]["name"] = code
            graph["nodes"][0]["inputs"][0]["arg"]["as_tensor"]["name"] = code
        elif of == "node":
            node = next(n for n in graph["nodes"] if "split" in n["target"])
            node["name"] = code
        else:
            graph["nodes"][0]["outputs"][0]["as_tensor"]["name"] = code
            graph["nodes"][0]["name"] = code
            graph["tensor_values"][code] = graph["tensor_values"]["linear"]

    described(path, PROGRAM, describe)
    assert "is no name of a node" in refused(path)
    assert not made.exists()


def test_names_of_parameters_are_no_attributes(path: Path) -> None:
    def index(content: Any) -> None:
        content["config"]["__class__.forward"] = content["config"].pop("linear.weight")

    def program(content: Any) -> None:
        for spec in content["graph_module"]["signature"]["input_specs"]:
            if "parameter" in spec and spec["parameter"]["parameter_name"] == "linear.weight":
                spec["parameter"]["parameter_name"] = "__class__.forward"

    described(path, WEIGHTS, index)
    described(path, PROGRAM, program)
    assert "__class__.forward" in load(path).constants


# -- the container --------------------------------------------------------------------------------


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


# -- sizes ----------------------------------------------------------------------------------------


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
    load(saved(tmp_path / "small.pt2", Repeating(1 << 10), x))
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
from cpembed.frontends.torch import load
from cpembed.frontends.torch.program import operators
operators()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in pathlib.Path({str(tmp_path)!r}).glob("*.pt2"):
    try:
        load(path)
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


# -- damages --------------------------------------------------------------------------------------


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
        load(path)
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

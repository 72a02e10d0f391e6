"""Whatever is in a file of another kind: a space of machines, a table of layers, a scheduler's
file, tensors beside a model, a program for VTA as text. It is used, or refused in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cpembed.errors import CpembedError
from cpembed.runtime.cluster.connection import scheduler_address
from tests.fuzz import mutants
from tests.fuzz.commands import run_all
from tests.fuzz.test_specs import mutant

pytestmark = pytest.mark.slow

SEED = 20261125
TIMEOUT = 2

SPACE = """\
name = "small"
description = "two blocks, two buses"
family = "vta"
source = "made up"
objectives = ["cycles", "area"]
where = ["log_inp_buff <= log_wgt_buff + 1"]
[parameters]
log_block = { from = 4, to = 5 }
bus_bits = [64, 128]
log_inp_buff = { from = 13, to = 15, step = 2 }
[fixed]
log_batch = 0
[limits]
area = "900 mm2"
"""
SUITE = """\
layer,count,application
gemm m=4 n=16 k=16,2,first
"conv2d n=1 c=16 h=4 w=4 k=16 r=3 s=3 pad=1",1,second
"O[i,j] += A[i,k]*B[k,j] i=4 j=16 k=16",3,
"""
PROGRAM = """\
.vta 1
.tensor A role=input  dtype=int8 shape=1x16
.tensor B role=weight dtype=int8 shape=16x16
.tensor C role=output dtype=int8 shape=1x16

.uop kernel
dst=0

.data A
0x0: 01 02 ff                 ; the rest is zero

.code
load uop sram=0 dram=kernel y=1 x=1 x_stride=1
gemm uop_begin=0 uop_end=1 outer=1 inner=1 reset
load inp sram=0 dram=A y=1 x=1 x_stride=1
load wgt sram=0 dram=B y=1 x=1 x_stride=1 push.next
gemm uop_begin=0 uop_end=1 outer=1 inner=1 pop.prev
alu shr uop_begin=0 uop_end=1 outer=1 inner=1 immediate=4 push.next
store out sram=0 dram=C y=1 x=1 x_stride=1 pop.prev push.prev
load uop sram=0 dram=0 y=0 x=0 x_stride=0 pop.next    ; moves nothing: waits for the store
finish
"""

Words = Callable[[Path], list[list[str]]]


def of_space(path: Path) -> list[list[str]]:
    words = ["explore", str(path), "gemm", "--layers", "0", "--timeout", str(TIMEOUT)]
    return [[*words, "--results", str(path.parent / "results"), "--json"]]


def of_suite(path: Path) -> list[list[str]]:
    words = ["bench", str(path), "--target", "vta_1x16x16", "--no-run", "--timeout", "1"]
    return [[*words, "--results", str(path.with_suffix(".results"))]]


def of_program(path: Path) -> list[list[str]]:
    saved = str(path.with_suffix(".zip"))
    outputs = str(path.with_suffix(".npz"))
    return [
        ["vta", "asm", str(path), "-o", saved],
        ["vta", "disasm", saved, "-o", str(path.with_suffix(".again"))],
        ["vta", "check", saved],
        ["vta", "run", saved, "-o", outputs],
        ["vta", "cycles", saved],
    ]


@pytest.mark.parametrize(
    "text, suffix, words, count, seconds",
    [
        (SPACE, ".toml", of_space, 40, 60),
        (SUITE, ".csv", of_suite, 200, 12),
        (PROGRAM, ".s", of_program, 40, 10),
    ],
    ids=["space", "suite", "program"],
)
def test_a_file_is_used_or_refused_in_one_line(
    text: str, suffix: str, words: Words, count: int, seconds: float, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    folder = tmp_path / "files"
    folder.mkdir()
    cases: list[list[str]] = []
    for number in range(count):
        path = folder / f"{number}{suffix}"
        path.write_bytes(mutant(chance, text) if number else text.encode())
        cases += words(path)
    outcomes = run_all(cases, tmp_path)
    # 4: an exploration that the limit stopped.
    assert outcomes[0].code in (0, 4), outcomes[0]
    faults = [(o.arguments, fault) for o in outcomes if (fault := o.fault(seconds))]
    assert not faults, "\n".join(f"{arguments}: {fault}" for arguments, fault in faults[:20])
    assert 2 in {o.code for o in outcomes}
    assert not list(folder.glob(".draft*"))


def test_a_scheduler_s_file_is_an_address_or_refused_in_one_line(tmp_path: Path) -> None:
    chance, path = random.Random(SEED), tmp_path / "scheduler.json"
    refusals: list[str] = []
    whole = {"type": "Scheduler", "id": "x", "address": "tcp://10.0.0.1:8786", "workers": {}}
    for _ in range(2000):
        path.write_bytes(mutants.mutant(json.dumps(whole).encode(), chance))
        try:
            address = scheduler_address(str(path))
        except CpembedError as error:
            refusals.append(str(error))
        else:
            assert address.isprintable()
            assert "://" in address
    assert refusals
    assert all("\n" not in text for text in refusals)


def test_tensors_beside_a_model_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from cpembed.frontends import load_model

    helper = onnx.helper
    chance = random.Random(SEED)
    (tmp_path / "weights.bin").write_bytes(bytes(96))
    (tmp_path / "folder").mkdir()
    places = ("weights.bin", "./weights.bin", "../weights.bin", "folder", "", "x" * 300, "a\0b",
              "/dev/zero", "weights.bin/", "WEIGHTS.BIN", "..\\weights.bin", "é")  # fmt: skip
    numbers = ("0", "4", "-1", "96", "97", "1e3", " 8 ", "٣", "9" * 30, "9" * 5000, "", "0x8")
    read, refusals = 0, list[str]()
    for number in range(400):
        kind = chance.choice((1, 1, 1, 2, 7, 10, 11, 16, 22, 99))
        shape = chance.choice(([2, 12], [24], [], [0, 4], [1 << 40], [-1, 24], [1 << 31, 1 << 31]))
        nodes = [helper.make_node("Add", ["x", f"w{k}"], [f"y{k}"]) for k in range(2)]
        values = [helper.make_tensor_value_info(n, 1, [2, 12]) for n in ("x", "y0", "y1")]
        tensors = [onnx.TensorProto(name=f"w{k}", data_type=kind, dims=shape) for k in range(2)]
        for tensor in tensors:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": chance.choice(places[:1] * 20 + places)}
            for key in ("offset", "length"):
                if chance.random() < 0.3:
                    entries[key] = chance.choice(numbers)
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
        graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        path = tmp_path / f"{number % 3}.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            load_model(path)
            read += 1
        except CpembedError as error:
            refusals.append(str(error))
    assert read
    assert all("\n" not in text and ".onnx" in text for text in refusals)


def test_tensors_in_one_place_are_bounded_together(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from cpembed.frontends import load_model

    helper, size = onnx.helper, 4 << 20
    (tmp_path / "weights.bin").write_bytes(bytes(4 * size))
    names = [f"w{k}" for k in range(12)]
    tensors = [onnx.TensorProto(name=name, data_type=1, dims=[size]) for name in names]
    for tensor in tensors:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    nodes = [helper.make_node("Sum", ["x", *names], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, [size]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CpembedError, match="overlaps other tensors"):
        load_model(path)

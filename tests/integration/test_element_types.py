"""Networks of every element type, and compilation that compares results with their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cpembed
from cpembed.errors import InvariantError
from cpembed.graph import kinds
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import TensorType
from cpembed.ir.dtypes import ELEMENT_DTYPES, is_integer, numpy_dtype
from cpembed.network.build import compile_model
from cpembed.network.compiled_model import VERIFY_VARIABLE
from cpembed.network.inputs import random_inputs, special_inputs
from tests.features import needs

TARGET = "avx2_f32"
DTYPES = sorted(name for name, dtype in ELEMENT_DTYPES.items() if dtype.bits in (1, 8, 16, 32, 64))

needs_target = needs(TARGET)


def of_every_type() -> Graph:
    """Return a network that moves, compares, converts and selects tensors of every type."""
    inputs: dict[str, TensorType] = {}
    constants: dict[str, np.ndarray] = {}
    operators: list[Operator] = []
    x, y = kinds.Input(0), kinds.Input(1)
    for dtype in DTYPES:
        inputs[f"{dtype}.x"] = TensorType((3, 5), dtype)
        info = ELEMENT_DTYPES[dtype]
        ends = info.integer_range if is_integer(dtype) else (-1.5, 2.5)
        constants[f"{dtype}.c"] = np.asarray([*ends, 0, 1, 1], numpy_dtype(dtype))
        larger = kinds.Apply("or" if dtype == "bool" else "max", (x, y))
        for name, kind, read in (
            ("moved", kinds.Transpose((1, 0)), ("x",)),
            ("same", kinds.Elementwise(kinds.Apply("equal", (x, y)), "bool"), ("x", "c")),
            ("largest", kinds.Elementwise(larger, dtype), ("x", "c")),
            ("joined", kinds.Concat(0), ("x", "largest")),
        ):
            arguments = tuple(f"{dtype}.{argument}" for argument in read)
            operators.append(Operator(f"{dtype}.{name}", kind, arguments, (f"{dtype}.{name}",)))
    outputs = tuple(op.output for op in operators if not op.name.endswith("largest"))
    return Graph("types", inputs, outputs, constants, tuple(operators))


@needs_target
def test_a_library_has_inputs_constants_and_outputs_of_every_type() -> None:
    graph = of_every_type()
    arrays = special_inputs(graph, random_inputs(graph, 1), 1)
    for name, dtype in ((f"{dtype}.x", dtype) for dtype in DTYPES if is_integer(dtype)):
        array = arrays[name].copy()
        array[0, :2] = ELEMENT_DTYPES[dtype].integer_range
        arrays[name] = array
    with compile_model(graph, TARGET, threads=1) as network:
        actual = network.run(arrays)
    for name, expected in evaluate(graph, arrays, lambda name: False).items():
        assert actual[name].dtype == expected.dtype, name
        pair = actual[name], expected
        if not is_integer(str(expected.dtype)):
            pair = pair[0].astype(np.float64), expected.astype(np.float64)
        assert np.array_equal(*pair, equal_nan=pair[1].dtype.kind == "f"), name


def doubled(rows: int) -> Graph:
    """Return a network that doubles rows where a mask of Booleans says so."""
    inputs = {"x": TensorType((rows, 3), "float32"), "mask": TensorType((rows, 3), "bool")}
    x = kinds.Input(0)
    twice = kinds.Apply("where", (kinds.Input(1), kinds.Apply("add", (x, x)), x))
    operator = Operator("doubled", kinds.Elementwise(twice, "float32"), ("x", "mask"), ("y",))
    return Graph("doubled", inputs, ("y",), {}, (operator,))


@needs_target
@pytest.mark.parametrize("is_family", [False, True], ids=["fixed sizes", "ranges"])
def test_compilation_compares_with_the_definition_if_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_family: bool
) -> None:
    ranges = {"rows": range(1, 5)}
    model = (
        Family("doubled", ranges, lambda sizes: doubled(sizes["rows"])) if is_family else doubled(2)
    )
    cpembed.compile(model, TARGET, threads=1, verify=True).close()
    # A definition that the kernel does not have.
    monkeypatch.setattr(
        kinds.Elementwise, "evaluate", lambda self, inputs: (inputs[0] + np.float32(1),)
    )
    with pytest.raises(InvariantError, match="please report this model"):
        cpembed.compile(model, TARGET, threads=1, folder=tmp_path, verify=True)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setenv(VERIFY_VARIABLE, "1")
    with pytest.raises(InvariantError):
        cpembed.compile(model, TARGET, threads=1)
    cpembed.compile(model, TARGET, threads=1, verify=False).close()

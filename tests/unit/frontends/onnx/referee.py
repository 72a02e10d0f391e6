"""Small ONNX models, and their results by ONNX Runtime beside those of the graph that is made."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from cpembed.frontends import load_model
from cpembed.graph.graph import Graph, evaluate

Array = NDArray[Any]
MICROSOFT = "com.microsoft"


def tensor_type(array: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def single(
    operator: str,
    inputs: Sequence[Array | None],
    constants: Sequence[int] = (),
    *,
    outputs: int = 1,
    version: int = 21,
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; ``constants``: which of its inputs are. None: an input left out."""
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(inputs)]
    node = helper.make_node(
        operator, names, [f"y{k}" for k in range(outputs)], "node", domain=domain, **attributes
    )
    given = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    fixed = {names[k] for k in constants}
    return model_of(
        [node],
        {name: array for name, array in given.items() if name not in fixed},
        {name: array for name, array in given.items() if name in fixed},
        [f"y{k}" for k in range(outputs)],
        version=version,
    )


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Sequence[str],
    *,
    version: int = 21,
) -> onnx.ModelProto:
    """A model; the types of its outputs are left to inference."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, tensor_type(a), a.shape) for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domains = {"": version, MICROSOFT: 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(domain, number) for domain, number in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session_of(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """Without optimizations: each node by itself, as the format says it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def loaded(model: onnx.ModelProto, folder: Path) -> Graph:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return load_model(path)


def both(
    model: onnx.ModelProto, inputs: Mapping[str, Array], folder: Path
) -> list[tuple[str, Array, Array]]:
    """Of each output: its name, ours and ONNX Runtime's."""
    graph = loaded(model, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        ours = evaluate(graph, inputs)
    session = session_of(model)
    names = [output.name for output in session.get_outputs()]
    theirs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    return [(name, ours[name], theirs[name]) for name in names]


def check(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    folder: Path,
    *,
    relative: float = 2e-5,
    absolute: float = 1e-5,
    quanta: int = 0,
) -> None:
    """Both agree: floats within a tolerance, integers within so many quanta."""
    for name, ours, theirs in both(model, inputs, folder):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        if ours.dtype.kind in "iu":
            distance = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert distance.max(initial=0) <= quanta, name
        elif ours.dtype == np.bool_:
            assert np.array_equal(ours, theirs), name
        else:
            np.testing.assert_allclose(ours, theirs, relative, absolute, err_msg=name)


def check_each_operator(model: onnx.ModelProto, inputs: Mapping[str, Array], folder: Path) -> int:
    """Every tensor that the model names, made from ONNX Runtime's own values of those before it:
    within a quantum, or a rounding of its largest value. How many there were."""
    graph = loaded(model, folder)
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    known = {output.name for output in model.graph.output}
    made = [name for node in model.graph.node for name in node.output if name]
    everything.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(made) if name not in known
    )
    session = session_of(everything)
    names = [output.name for output in session.get_outputs()]
    theirs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    values = {**graph.constants, **inputs}
    compared = 0
    for operator in graph.operators:
        results = operator.kind.evaluate([values[name] for name in operator.inputs])
        values |= zip(operator.outputs, results, strict=True)
        for name in operator.outputs:
            if name in theirs:
                expected, found = theirs[name], values[name]
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
                distance = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
                largest = np.abs(expected.astype(np.float64)).max()
                allowed = 1 if found.dtype.kind in "iu" else 1e-5 * max(1, largest)
                assert distance <= allowed, f"{operator.name}: {name} is {distance} off"
                values[name] = expected
                compared += 1
    return compared

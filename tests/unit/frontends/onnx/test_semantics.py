"""What an operator means beyond its usual use: attributes, declared shapes, sizes, and tensors
without axes or elements. Compared with ONNX Runtime, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from cpembed.errors import ModelError
from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from cpembed.graph.passes import prepare
from tests.unit.frontends.onnx.referee import Array, check, loaded, model_of, session_of, single

X = np.random.default_rng(4).uniform(-2, 2, (1, 2, 6, 7)).astype(np.float32)


def refusal(model: onnx.ModelProto, folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(model, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def floats(*shape: int) -> Array:
    return np.random.default_rng(5).uniform(-2, 2, shape).astype(np.float32)


# Attributes and inputs that are not read


@pytest.mark.parametrize("domain, operator, attributes", [
    ("com.microsoft", "BiasGelu", {"scale": 2.0}),
    ("com.microsoft", "FusedMatMul", {"beta": 0.5}),
    ("", "BatchNormalization", {"spatial": 0}),
    ("", "LayerNormalization", {"stash_type": 11}),
])  # fmt: skip
def test_an_attribute_that_is_not_read_is_refused(
    domain: str, operator: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    x, vector = floats(1, 3, 3), floats(3)
    inputs = {"BatchNormalization": [x, *[np.abs(vector)] * 4], "FusedMatMul": [x, x]}
    version = 7 if operator == "BatchNormalization" else 21
    model = single(
        operator, inputs.get(operator, [x, vector]), domain=domain, version=version, **attributes
    )
    (name,) = attributes
    assert f"attribute {name}" in refusal(model, tmp_path)


def test_an_attribute_with_the_value_that_it_has_anyway_is_none(tmp_path: Path) -> None:
    check(single("LayerNormalization", [floats(2, 3), floats(3)], [1], stash_type=1),
          {"x0": floats(2, 3)}, tmp_path)  # fmt: skip


def test_an_input_that_is_not_read_is_refused(tmp_path: Path) -> None:
    x = floats(2, 3)
    model = single("BiasGelu", [x, floats(3), floats(3)], domain="com.microsoft")
    assert "input 2, x2, is not read" in refusal(model, tmp_path)


@pytest.mark.parametrize("operator, attributes, said", [
    ("ReduceSum", {"keepdims": 2}, "keepdims = 2: give 0 or 1"),
    ("SpaceToDepth", {"blocksize": 2, "mode": "foo"}, "mode foo is not known"),
    ("Pad", {"mode": "foo"}, "mode foo is not known"),
    ("Celu", {"alpha": 0.0}, "alpha = 0"),
    ("AveragePool", {"kernel_shape": [2, 2], "pads": [0, 2, 0, 0]}, "padding alone"),
])  # fmt: skip
def test_a_value_that_an_attribute_cannot_have(
    operator: str, attributes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    x, version = floats(1, 2, 4, 4), 22 if operator == "SpaceToDepth" else 21
    inputs, constants = ([x, np.zeros(8, np.int64)], [1]) if operator == "Pad" else ([x], [])
    model = single(operator, inputs, constants, version=version, **attributes)
    with pytest.raises(ModelError) as caught:
        loaded(model, tmp_path)
    assert said in str(caught.value) or "Unrecognized attribute" in str(caught.value)


# Declared shapes


@pytest.mark.parametrize("declared", [[2, 4], [6], [2, 3, 1], ["N"]])
@pytest.mark.parametrize("place", ["output", "value_info"])
def test_a_declared_shape_of_a_result_is_not_believed(
    declared: list[int | str], place: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["h"], "first"), helper.make_node("Abs", ["h"], ["y"])]
    model = model_of(nodes, {"x": floats(2, 3)}, {}, ["y"])
    name = "y" if place == "output" else "h"
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, declared)
    if place == "output":
        model.graph.output[0].CopyFrom(info)
    else:
        model.graph.value_info.append(info)
    check(model, {"x": floats(2, 3)}, tmp_path)
    assert loaded(model, tmp_path).types["y"].shape == (2, 3)


def test_a_constant_of_another_shape_than_declared_is_an_error(tmp_path: Path) -> None:
    model = single("Add", [floats(2, 3), floats(2, 3)], [1])
    model.graph.value_info.append(helper.make_tensor_value_info("x1", TensorProto.FLOAT, [3, 2]))
    assert "x1 is declared as float32 [3, 2]" in refusal(model, tmp_path)


def test_declared_names_of_sizes_contradict_nothing(tmp_path: Path) -> None:
    model = single("Neg", [floats(2, 3)])
    info = helper.make_tensor_value_info("y0", TensorProto.FLOAT, ["N", 3])
    model.graph.output[0].CopyFrom(info)
    assert loaded(model, tmp_path).types["y0"].shape == (2, 3)
    info.type.tensor_type.elem_type = TensorProto.INT64
    model.graph.output[0].CopyFrom(info)
    assert "declared as int64" in refusal(model, tmp_path)


# Resize


def test_sizes_by_scales_are_products_in_float32(tmp_path: Path) -> None:
    x = floats(1, 1, 10, 10)
    scales = np.asarray([1, 1, 1.3, 2.3], np.float32)
    model = single("Resize", [x, None, scales], [2], mode="linear")
    assert loaded(model, tmp_path).types["y0"].shape == (1, 1, 13, 23)
    check(model, {"x0": x}, tmp_path)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.quick(6)
def test_random_nodes_of_resize(seed: int, tmp_path: Path) -> None:
    """Where ONNX Runtime and the format's own code agree, this is their result."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((1, 2, *random.integers(1, 16, 2))).astype(np.float32)
    coordinates = str(random.choice(
        ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
    ))  # fmt: skip
    attributes: dict[str, Any] = {
        "mode": str(random.choice(["nearest", "nearest", "linear", "cubic"])),
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": str(random.choice(
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        )),
    }  # fmt: skip
    if attributes["mode"] != "nearest" and random.random() < 0.3:
        attributes["antialias"] = 1
    if attributes["mode"] == "cubic" and random.random() < 0.3:
        attributes["exclude_outside"] = 1
    if random.random() < 0.5:
        inputs = [x, None, np.asarray([1, 1, *random.uniform(0.3, 3, 2)], np.float32)]
    else:
        inputs = [x, None, None, np.asarray([1, 2, *random.integers(1, 40, 2)])]
    model = single("Resize", inputs, [len(inputs) - 1], version=19, **attributes)
    refused = ""
    try:
        graph = loaded(model, tmp_path)
    except ModelError as error:
        refused = str(error)
        graph = None
    if graph is None:
        assert "sizes are at least 1" in refused or "align_corners" in refused
        return
    ours = evaluate(graph, {"x0": x})["y0"]
    runtime = session_of(model).run(None, {"x0": x})[0]
    reference = ReferenceEvaluator(model).run(None, {"x0": x})[0]
    if runtime.shape == reference.shape and np.allclose(runtime, reference, 1e-4, 1e-4):
        np.testing.assert_allclose(ours, runtime, 2e-4, 2e-4)


@pytest.mark.parametrize("size, result", [(7, 2), (7, 38), (11, 26), (10, 12), (14, 16), (13, 28)])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil"])
def test_the_middle_between_two_elements(
    size: int, result: int, rounding: str, tmp_path: Path
) -> None:
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    model = single(
        "Resize", [x, None, None, np.asarray([1, 1, result, 1])], [3], mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode=rounding,
    )  # fmt: skip
    check(model, {"x0": x}, tmp_path)


def test_corners_are_not_aligned_on_a_fraction_of_an_element(tmp_path: Path) -> None:
    scales = np.asarray([1, 1, 0.6, 1], np.float32)
    mode = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    message = refusal(single("Resize", [floats(1, 1, 4, 4), None, scales], [2], **mode), tmp_path)
    assert "give the sizes" in message


# Training


@pytest.mark.parametrize("version", [12, 13, 22])
def test_dropout_in_training_is_refused(version: int, tmp_path: Path) -> None:
    x = floats(3, 4)
    for ratio in (None, np.float32(0.5)):
        inputs = [x, None if ratio is None else np.asarray(ratio), np.asarray(True)]
        model = single("Dropout", inputs, [1, 2] if ratio is not None else [2], version=version)
        assert "as in training" in refusal(model, tmp_path)
    model = single("Dropout", [x, np.asarray(np.float32(0.5)), np.asarray(True)], version=version)
    assert "has to be a constant" in refusal(model, tmp_path)
    for flag, ratio in ((False, 0.5), (True, 0.0)):
        inputs = [x, np.asarray(ratio, np.float32), np.asarray(flag)]
        model = single("Dropout", inputs, [1, 2], outputs=2, version=version)
        found = evaluate(loaded(model, tmp_path), {"x0": x})
        assert np.array_equal(found["y0"], x)
        assert found["y1"].dtype == np.bool_
        assert found["y1"].all()


@pytest.mark.parametrize("version, attributes, training", [
    (1, {}, True), (6, {}, True), (6, {"ratio": 0.0}, False), (6, {"is_test": 1}, False),
    (7, {"ratio": 0.7}, False), (10, {}, False),
])  # fmt: skip
def test_dropout_of_older_versions(
    version: int, attributes: dict[str, Any], training: bool, tmp_path: Path
) -> None:
    model = single("Dropout", [floats(3, 4)], version=version, **attributes)
    if training:
        assert "as in training" in refusal(model, tmp_path)
    else:
        assert np.array_equal(
            evaluate(loaded(model, tmp_path), {"x0": floats(3, 4)})["y0"], floats(3, 4)
        )


# Windows


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "Conv", "ConvTranspose"])
@pytest.mark.parametrize("pads", [[-1, 0, 0, 0], [1, 1, -1, -1], [0, 2, 1, -2]])
def test_negative_pads_are_refused(operator: str, pads: list[int], tmp_path: Path) -> None:
    pools = operator.endswith("Pool")
    inputs = [X] if pools else [X, floats(2, 2, 2, 2)]
    taps = {"kernel_shape": [2, 2]} if pools else {}
    model = single(operator, inputs, [] if pools else [1], pads=pads, **taps)
    assert "padded by 0 or more" in refusal(model, tmp_path)


def test_windows_in_the_padding_alone_have_no_maximum(tmp_path: Path) -> None:
    model = single("MaxPool", [X], kernel_shape=[2, 2], pads=[2, 0, 0, 0])
    assert "padding alone" in refusal(model, tmp_path)


@pytest.mark.parametrize("attributes, said", [
    ({"output_padding": [1, 1]}, "output_padding"),
    ({"output_shape": [1, 2, 9, 9]}, "output_shape"),
    ({"output_shape": [30, 30]}, "filters write"),
    ({"auto_pad": "VALID", "pads": [1, 1, 1, 1]}, "give one of them"),
])  # fmt: skip
def test_attributes_of_transposed_convolutions_that_contradict_each_other(
    attributes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    model = single("ConvTranspose", [X, floats(2, 2, 3, 3)], [1], **attributes)
    assert said in refusal(model, tmp_path)


# Tensors without axes or elements


@pytest.mark.parametrize("operator", [
    "Softmax", "LogSoftmax", "ArgMax", "Flatten", "LpNormalization", "Trilu", "GlobalAveragePool",
])  # fmt: skip
def test_a_tensor_without_axes_is_refused_by_what_needs_one(operator: str, tmp_path: Path) -> None:
    message = refusal(single(operator, [floats()]), tmp_path)
    assert "does not fit" not in message
    assert "0 to -1" not in message


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceSum", "ReduceLogSumExp", "Relu", "Shape"])
def test_a_tensor_without_axes(operator: str, tmp_path: Path) -> None:
    check(single(operator, [floats()]), {"x0": floats()}, tmp_path)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("operator", [
    "Relu", "Transpose", "Shape", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin",
    "ReduceLogSumExp", "Softmax", "IsNaN", "Erf",
])  # fmt: skip
def test_a_tensor_without_elements(operator: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    check(single(operator, [floats(*shape)]), {"x0": floats(*shape)}, tmp_path)


@pytest.mark.parametrize(
    "a, b",
    [
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((2, 3), (3, 0)),
        ((2, 0, 3), (2, 3, 4)),
        ((2, 3, 0), (0, 4)),
        ((0,), (0, 4)),
    ],
)
def test_products_without_elements(a: tuple[int, ...], b: tuple[int, ...], tmp_path: Path) -> None:
    given = {"x0": floats(*a), "x1": floats(*b)}
    check(single("MatMul", [*given.values()]), given, tmp_path)


def test_an_empty_cache_of_keys_is_left_out(tmp_path: Path) -> None:
    """As the first step of a decoder has it."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["keys"], axis=2),
        helper.make_node("Relu", ["keys"], ["y"]),
    ]
    past, new = floats(1, 2, 0, 4), floats(1, 2, 3, 4)
    model = model_of(nodes, {"past": past, "new": new}, {}, ["y", "keys"])
    check(model, {"past": past, "new": new}, tmp_path)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "P"
    path = tmp_path / "open.onnx"
    path.write_bytes(model.SerializeToString())
    graph = load_model(path, shapes={"past": (1, 2, 0, 4)})
    assert [operator.kind.label for operator in graph.operators][-1] != "concat"
    assert graph.types["y"].shape == (1, 2, 3, 4)


def test_rotary_embedding_of_whole_heads(tmp_path: Path) -> None:
    """What is not turned is a part without elements."""
    x = floats(1, 3, 2, 4)
    nodes = [
        helper.make_node("Slice", ["x", "zero", "four", "last"], ["turned"]),
        helper.make_node("Slice", ["x", "four", "end", "last"], ["rest"]),
        helper.make_node("Neg", ["turned"], ["other"]),
        helper.make_node("Concat", ["other", "rest"], ["y"], axis=-1),
    ]
    constants = {"zero": np.asarray([0]), "four": np.asarray([4]), "last": np.asarray([-1]),
                 "end": np.asarray([1 << 60])}  # fmt: skip
    model = model_of(nodes, {"x": x}, constants, ["y"])
    check(model, {"x": x}, tmp_path)
    assert [o.kind.label for o in loaded(model, tmp_path).operators][:1] == ["neg"]


# Indices


@pytest.mark.parametrize("operator, index, attributes", [
    ("Gather", [3], {"axis": 1}), ("Gather", [-4], {"axis": 1}),
    ("GatherElements", [[0, 3, 0]], {"axis": 1}), ("GatherElements", [[2, 0, 0]], {"axis": 0}),
    ("GatherND", [[0, 3]], {}), ("GatherND", [[-3, 0]], {}),
])  # fmt: skip
def test_constant_indices_beyond_a_tensor_are_refused(
    operator: str, index: list[Any], attributes: dict[str, Any], tmp_path: Path
) -> None:
    model = single(operator, [floats(2, 3), np.asarray(index)], [1], **attributes)
    assert "of an axis of" in refusal(model, tmp_path)


# Quantization


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan])
def test_scales_that_are_no_numbers_to_divide_by(scale: float, tmp_path: Path) -> None:
    model = single("QuantizeLinear", [X, np.asarray(scale, np.float32)], [1])
    assert f"a scale of {scale}" in refusal(model, tmp_path)


def test_a_channel_whose_scale_is_0_is_0(tmp_path: Path) -> None:
    q = np.arange(12, dtype=np.int8).reshape(3, 4)
    scale = np.asarray([0.5, 0, 0.25], np.float32)
    check(single("DequantizeLinear", [q, scale], [1], axis=0), {"x0": q}, tmp_path)


def test_integers_of_four_bits_stay_within_them(tmp_path: Path) -> None:
    zero = helper.make_tensor("zero", TensorProto.INT4, [], [1])
    model = single("QuantizeLinear", [X, np.asarray(0.1, np.float32)], [1])
    model.graph.initializer.append(zero)
    model.graph.node[0].input.append("zero")
    graph = loaded(model, tmp_path)
    results = evaluate(graph, {"x0": X})[graph.outputs[0]]
    expected = np.clip(np.rint(X / np.float32(0.1)) + 1, -8, 7)
    np.testing.assert_array_equal(results, expected.astype(np.int8))
    # A sum of two may have more bits.
    model.graph.node.append(helper.make_node("Add", ["y0", "y0"], ["sum"], "twice"))
    model.graph.output[0].name = "sum"
    assert "is of int4" in refusal(model, tmp_path)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.quick(8)
def test_a_bias_of_integers_that_is_reshaped_to_heads(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    heads, size, rows, depth = (int(n) for n in random.integers(1, 6, 4))
    channels, node = heads * size, helper.make_node
    every = channels if random.random() < 0.5 else ()
    before = random.random() < 0.6
    constants: dict[str, Array] = {
        "xs": np.asarray(0.05, np.float32), "xz": np.asarray(random.integers(0, 255), np.uint8),
        "w": random.integers(-60, 60, (depth, channels)).astype(np.int8),
        "ws": np.asarray(random.uniform(0.001, 0.03, every), np.float32),
        "b": random.integers(-3000, 3000, channels).astype(np.int32),
        "heads": np.asarray([1, rows, heads, size]),
        "row": np.asarray([1, 1, channels] if before else [1, 1, heads, size]),
        "ys": np.asarray(0.2, np.float32), "yz": np.asarray(random.integers(0, 255), np.uint8),
    }  # fmt: skip
    constants["bs"] = (constants["xs"] * constants["ws"]).astype(np.float32)
    first, second = ("m", "row_of_b") if random.random() < 0.5 else ("row_of_b", "m")
    steps = [node("Add", [first, second], ["s"]), node("Reshape", ["s", "heads"], ["h"])]
    if not before:
        steps = [node("Reshape", ["m", "heads"], ["r"]), node("Add", ["r", "row_of_b"], ["h"])]
    nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        node("DequantizeLinear", ["w", "ws"], ["wf"], axis=1),
        node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
        node("Reshape", ["bf", "row"], ["row_of_b"]),
        node("MatMul", ["xf", "wf"], ["m"]),
        *steps,
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        node("QuantizeLinear", ["t", "ys", "yz"], ["y"]),
    ]
    x = random.integers(0, 255, (1, rows, depth)).astype(np.uint8)
    model = model_of(nodes, {"x": x}, constants, ["y"])
    check(model, {"x": x}, tmp_path, quanta=1)
    graph = loaded(model, tmp_path)
    expected = evaluate(graph, {"x": x})["y"].astype(int)
    prepared = evaluate(prepare(graph, first="uint8", second="int8"), {"x": x})["y"].astype(int)
    assert np.abs(prepared - expected).max() <= 1


# Names


@pytest.mark.parametrize("place", ["input", "output", "node", "constant", "graph"])
def test_names_with_a_nul_are_refused(place: str, tmp_path: Path) -> None:
    name = "a\0b"
    x, y, w = (name if place == key else key for key in ("input", "output", "constant"))
    node = helper.make_node("Add", [x, w], [y], name if place == "node" else "node")
    model = model_of([node], {x: floats(2)}, {w: floats(2)}, [y])
    model.graph.name = name if place == "graph" else "graph"
    assert "holds a NUL" in refusal(model, tmp_path)


def test_long_names(tmp_path: Path) -> None:
    x, y = "x" * 300, "y" * 1000
    model = model_of([helper.make_node("Neg", [x], [y], "n" * 300)], {x: floats(2)}, {}, [y])
    assert np.array_equal(evaluate(loaded(model, tmp_path), {x: floats(2)})[y], -floats(2))


@pytest.mark.parametrize("location", ["n" * 300, "a\0b"])
def test_names_of_files_that_cannot_be(location: str, tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": X}, {"w": X}, ["y"])
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    assert "which is no file" in refusal(model, tmp_path)

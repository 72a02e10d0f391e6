"""Weight-only products beside ONNX Runtime: MatMulNBits, blocked DequantizeLinear, embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper

from cpembed.errors import ModelError
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import GroupedGather, GroupedProduct, GroupQuantize
from cpembed.graph.passes import prepare
from tests.unit.frontends.onnx.referee import (
    MICROSOFT,
    Array,
    check,
    loaded,
    model_of,
    session_of,
    single,
)

RANDOM = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def n_bits(
    rows: int, columns: int, bits: int, block: int, *, zeros: str = "", bias: bool = False,
    leading: tuple[int, ...] = (3,), order: Array | None = None, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    groups = -(-columns // block)
    b = RANDOM.integers(0, 256, (rows, groups, block * bits // 8)).astype(np.uint8)
    scales = RANDOM.uniform(0.01, 0.1, rows * groups).astype(np.float32)
    zero = None
    if zeros == "packed":
        zero = RANDOM.integers(0, 256, rows * -(-groups * bits // 8)).astype(np.uint8)
    if zeros == "float":
        zero = RANDOM.uniform(0, 15, (rows, groups)).astype(np.float32)
    a = floats(*leading, columns)
    addend = floats(rows) if bias else None
    inputs = [a, b, scales, zero, order, addend]
    while inputs[-1] is None:
        inputs.pop()
    constants = [k for k, array in enumerate(inputs) if k and array is not None]
    model = single(
        "MatMulNBits", inputs, constants, domain=MICROSOFT, N=rows, K=columns, bits=bits,
        block_size=block, **attributes,
    )  # fmt: skip
    return model, {"x0": a}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["", "packed", "float"])
@pytest.mark.parametrize("sizes", [(32, 64, 16), (40, 128, 32), (8, 96, 64)])
def test_products(sizes: tuple[int, int, int], zeros: str, bits: int, tmp_path: Path) -> None:
    rows, columns, block = sizes
    if bits == 8 and zeros == "float":
        pytest.skip("ONNX Runtime takes packed zero points of 8 bits only")
    model, inputs = n_bits(rows, columns, bits, block, zeros=zeros)
    check(model, inputs, tmp_path, relative=1e-4, absolute=1e-4)


def test_a_product_with_a_bias_and_batches(tmp_path: Path) -> None:
    model, inputs = n_bits(24, 64, 4, 32, zeros="packed", bias=True, leading=(2, 1, 3))
    check(model, inputs, tmp_path, relative=1e-4, absolute=1e-4)


def test_two_bits(tmp_path: Path) -> None:
    """Against numpy: ONNX Runtime has no general product of two bits."""
    model, inputs = n_bits(8, 64, 2, 32)
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    codes = (arrays["x1"].reshape(8, -1, 1) >> np.array([0, 2, 4, 6])) & 3
    weights = (codes.reshape(8, 64) - 2.0) * np.repeat(arrays["x2"].reshape(8, 2), 32, 1)
    results = evaluate(loaded(model, tmp_path), inputs)
    np.testing.assert_allclose(results["y0"], inputs["x0"] @ weights.T, 1e-4, 1e-4)


def test_columns_in_the_order_of_their_groups(tmp_path: Path) -> None:
    trivial = (np.arange(64) // 32).astype(np.int32)
    model, inputs = n_bits(8, 64, 4, 32, order=trivial)
    assert evaluate(loaded(model, tmp_path), inputs)["y0"].shape == (3, 8)
    model, _ = n_bits(8, 64, 4, 32, order=trivial[::-1].copy())
    with pytest.raises(ModelError, match=r"g_idx.*export without act_order"):
        loaded(model, tmp_path)


@pytest.mark.parametrize("attributes, words", [
    ({"bits": 3}, "weights of 3 bits are not read: use 2, 4 or 8"),
    ({"weight_prepacked": 1}, "another processor's layout"),
])  # fmt: skip
def test_refusals(attributes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, _ = n_bits(8, 64, 4, 32)
    node = model.graph.node[0]
    for name, value in attributes.items():
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        node.attribute.append(helper.make_attribute(name, value))
    with pytest.raises(ModelError, match=words):
        loaded(model, tmp_path)


def test_activations_are_rounded_at_accuracy_level_4(tmp_path: Path) -> None:
    """Within the rounding to int8 of ONNX Runtime, whose own level 4 rounds as well."""
    model, inputs = n_bits(32, 128, 4, 32, accuracy_level=4)
    graph = loaded(model, tmp_path)
    assert [type(o.kind) for o in graph.operators] == [GroupQuantize, GroupedProduct]
    exact, _ = n_bits(1, 32, 4, 32)
    exact.CopyFrom(model)
    (level,) = (a for a in exact.graph.node[0].attribute if a.name == "accuracy_level")
    exact.graph.node[0].attribute.remove(level)
    expected = evaluate(loaded(exact, tmp_path), inputs)["y0"]
    ours = evaluate(graph, inputs)["y0"]
    (theirs,) = session_of(model).run(None, inputs)
    size = np.abs(expected).max()
    assert 0 < np.abs(ours - expected).max() < 0.02 * size
    assert np.abs(ours - theirs).max() < 0.02 * size


# -- blocked dequantization -----------------------------------------------------------------------


def blocked(
    dtype: str, shape: tuple[int, ...], axis: int, block: int, *, zeros: bool
) -> list[onnx.TensorProto]:
    kinds = {
        "int4": (-8, 8, onnx.TensorProto.INT4), "uint4": (0, 16, onnx.TensorProto.UINT4),
        "int8": (-128, 128, onnx.TensorProto.INT8), "uint8": (0, 256, onnx.TensorProto.UINT8),
    }  # fmt: skip
    low, high, kind = kinds[dtype]
    blocks = list(shape)
    blocks[axis] = -(-blocks[axis] // block)
    q = RANDOM.integers(low, high, shape)
    scale = RANDOM.uniform(0.01, 0.1, blocks).astype(np.float32)
    tensors = [
        helper.make_tensor("q", kind, shape, q.reshape(-1)),
        numpy_helper.from_array(scale, "scale"),
    ]
    if zeros:
        zero = RANDOM.integers(low, high, blocks)
        tensors.append(helper.make_tensor("zero", kind, blocks, zero.reshape(-1)))
    return tensors


def with_tensors(model: onnx.ModelProto, tensors: list[onnx.TensorProto]) -> onnx.ModelProto:
    model.graph.initializer.extend(tensors)
    return model


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("form", ["matmul", "gemm", "transposed", "other axis", "batched"])
def test_blocked_dequantization(form: str, zeros: bool, dtype: str, tmp_path: Path) -> None:
    """Before a product that sums over the blocks' axis, the weights stay packed; elsewhere floats
    take their place. Both give ONNX Runtime's results, before and after all passes."""
    by_row = form in ("gemm", "transposed")
    shape, axis = ((40, 64), 1) if by_row else ((64, 40), 0)
    axis = 1 - axis if form == "other axis" else axis
    block = 8 if form == "other axis" else 16
    if form == "batched":
        shape, axis = (2, 64, 40), 1
    tensors = blocked(dtype, shape, axis, block, zeros=zeros)
    names = [t.name for t in tensors]
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=axis, block_size=block)]
    weight, gemm = "w", {}
    if form == "transposed":
        nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]))
        weight = "wt"
    if form == "gemm":
        nodes.append(helper.make_node("Gemm", ["x", weight], ["y"], transB=1, **gemm))
    else:
        nodes.append(helper.make_node("MatMul", ["x", weight], ["y"]))
    x = floats(2, 3, 64) if form == "batched" else floats(3, 64)
    model = with_tensors(model_of(nodes, {"x": x}, {}, ["y"]), tensors)
    check(model, {"x": x}, tmp_path, relative=1e-4, absolute=1e-4)
    prepared = prepare(loaded(model, tmp_path), first="float32", second="float32")
    grouped = [o.kind for o in prepared.operators if isinstance(o.kind, GroupedProduct)]
    assert bool(grouped) == (form in ("matmul", "gemm", "transposed"))
    assert [kind.weights.bits for kind in grouped] in ([], [4 if "4" in dtype else 8])
    (expected,) = session_of(model).run(None, {"x": x})
    np.testing.assert_allclose(evaluate(prepared, {"x": x})["y"], expected, 1e-4, 1e-4)


@pytest.mark.parametrize("zeros", [False, True])
def test_a_blocked_dequantization_that_is_computed(zeros: bool, tmp_path: Path) -> None:
    q = RANDOM.integers(-128, 128, (4, 32)).astype(np.int8)
    scale = RANDOM.uniform(0.01, 0.1, (4, 2)).astype(np.float32)
    inputs = [q, scale]
    if zeros:
        inputs.append(RANDOM.integers(-128, 128, (4, 2)).astype(np.int8))
    model = single("DequantizeLinear", inputs, axis=1, block_size=16)
    check(model, {f"x{k}": array for k, array in enumerate(inputs)}, tmp_path)


def test_four_bits_in_another_file(tmp_path: Path) -> None:
    tensors = blocked("int4", (64, 40), 0, 16, zeros=False)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x = floats(3, 64)
    model = with_tensors(model_of(nodes, {"x": x}, {}, ["y"]), tensors)
    expected = evaluate(loaded(model, tmp_path), {"x": x})["y"]
    path = tmp_path / "external.onnx"
    q = next(t for t in model.graph.initializer if t.name == "q")
    q.raw_data = numpy_helper.from_array(numpy_helper.to_array(q)).raw_data
    q.ClearField("int32_data")
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="weights", size_threshold=0
    )
    from cpembed.frontends import load_model

    np.testing.assert_array_equal(evaluate(load_model(path), {"x": x})["y"], expected)


# -- embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int4", "uint4", "bytes"])
@pytest.mark.parametrize("zeros", [False, True])
def test_embeddings(dtype: str, zeros: bool, tmp_path: Path) -> None:
    indices = RANDOM.integers(0, 20, (2, 5))
    if dtype == "bytes":
        data = RANDOM.integers(0, 256, (20, 32)).astype(np.uint8)
        scale = RANDOM.uniform(0.01, 0.1, (20, 4)).astype(np.float32)
        tensors = [numpy_helper.from_array(data, "q"), numpy_helper.from_array(scale, "scale")]
        if zeros:
            zero = RANDOM.integers(0, 256, (20, 2)).astype(np.uint8)
            tensors.append(numpy_helper.from_array(zero, "zero"))
    else:
        tensors = blocked(dtype, (20, 64), 1, 16, zeros=zeros)
    names = [t.name for t in tensors]
    node = helper.make_node(
        "GatherBlockQuantized", ["q", "i", *names[1:]], ["y"], domain=MICROSOFT, block_size=16,
        gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    model = with_tensors(model_of([node], {"i": indices}, {}, ["y"]), tensors)
    check(model, {"i": indices}, tmp_path)
    (operator,) = loaded(model, tmp_path).operators
    assert isinstance(operator.kind, GroupedGather)

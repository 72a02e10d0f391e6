"""Networks of several element types on all units of this processor, and ``match`` of them.

Each product is on a unit that multiplies its types, the numbers are those of ONNX Runtime, and
``match`` names the kernels that ``network`` compiles.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.driver.matching import network_units
from cpembed.driver.named import NATIVE
from cpembed.frontends import load_model
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Product, TensorType
from cpembed.ir.dtypes import DTYPES, numpy_dtype
from cpembed.network.inputs import random_inputs
from cpembed.network.match import TargetMatch, match
from cpembed.network.plan import Planning
from cpembed.network.service import NetworkRequest, network, network_plan
from cpembed.targets.registry import native_targets
from cpembed.workloads.naming import parse_workload
from tests.cli.calling import Caller

BYTES = "uint8,int8,int32"
TYPES = (BYTES, "int8,int8,int32", "float32,float32,float32", "bfloat16,bfloat16,float32")
WIDE = ("float64,float64,float64", "int32,int32,int32")
"""Types that no unit multiplies."""

needs_units = pytest.mark.skipif(not native_targets(), reason="this processor executes no target")


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def chain(seed: int, types: tuple[str, ...] = TYPES) -> Graph:
    """Products of matrices of random sizes and types, each of the last one's result, cast."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    operators: list[Operator] = []
    constants: dict[str, Any] = {}
    rows, depth = rng.choice((1, 5, 16)), rng.choice((8, 24, 33))
    inputs = {"x": TensorType((rows, depth), "float32")}
    value = "x"
    for number in range(rng.randint(2, 3)):
        columns = rng.choice((8, 20, 32))
        dtypes = rng.choice(types)
        words = f"gemm m={rows} n={columns} k={depth} dtype={dtypes}"
        workload = parse_workload(words.split())
        first, second = (operand.dtype for operand in workload.inputs)
        cast, weights, output = f"x{number}", f"w{number}", f"y{number}"
        limited = Apply("max", (Apply("min", (Input(0), Input(1))), Input(2)))
        bounds = {"low": np.float32(0), "high": np.float32(3)}
        constants |= bounds
        operators.append(
            Operator(cast, Elementwise(limited, first), (value, "high", "low"), (cast,))
        )
        shape = workload.inputs[1].shape
        array = numbers.integers(-2, 3, shape)
        constants[weights] = array.astype(numpy_dtype(second))
        # Every second one has two factors that vary, as attention has.
        if number % 2 and DTYPES[second].kind is not DTYPES["uint8"].kind:
            inputs[weights] = TensorType(shape, second)
            del constants[weights]
        product = Product(workload, (rows, columns))
        operators.append(Operator(f"product {number}", product, (cast, weights), (output,)))
        result = f"z{number}"
        operators.append(Operator(result, Elementwise(Input(0), "float32"), (output,), (result,)))
        value, depth = result, columns
    return Graph(f"chain{seed}", inputs, (value,), constants, tuple(operators))


def embedded(matched: TargetMatch) -> dict[str, tuple[Any, ...]]:
    """Return unit, embedding and use of each product by name."""
    return {
        o.name: (o.match.embedded_on, o.match.embedding and o.match.embedding.identifier(),
                 round(o.match.utilisation or 0, 9))
        for o in matched.matched if o.match is not None
    }  # fmt: skip


@needs_units
@pytest.mark.quick(3)
@pytest.mark.parametrize("target", [NATIVE, "named", "vta_1x16x16"])
@pytest.mark.parametrize("seed", range(7))
def test_match_names_what_network_compiles(seed: int, target: str) -> None:
    """On all units, on a named one, and on a simulated target, which runs products one by one."""
    if target == "named":
        types = ["float32", "float32"] if seed % 2 else ["uint8", "int8"]
        target = native_targets(types)[-1].name
    graph = chain(seed, (*TYPES, *WIDE) if seed % 3 == 0 else TYPES)
    (matched,) = match(graph, [target]).targets
    request = NetworkRequest(target, times=False)
    document = network(graph, request, random_inputs(graph, seed)).document
    assert not [o for o in document["operators"] if o["verified"] is False]
    products = [o for o in document["operators"] if o["workload"] is not None]
    ran = {o["name"]: (o["embedded_on"], o["embedded_on"] and o["embedding"],
                       round(o["utilisation"] or 0, 9))
           for o in products}  # fmt: skip
    assert embedded(matched) == ran
    assert [o.name for o in matched.operators] == [o["name"] for o in document["operators"]]
    # What is in portable code, or left to the host, has a reason in both.
    for operator, row in zip(products, matched.matched, strict=True):
        if operator["embedded_on"] is None:
            assert operator["reason"]
            assert row.reason


@needs_units
def test_match_has_attention_and_weight_only_products_as_the_plan_has_them(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import helper as h
    from onnx import numpy_helper as nh

    rng = np.random.default_rng(4)
    packed = nh.from_array(rng.integers(0, 256, (32, 1, 16)).astype(np.uint8), "w")
    scales = nh.from_array(rng.random(32).astype(np.float32), "s")
    nodes = [
        h.make_node("Transpose", ["k"], ["kt"], "kt", perm=[0, 1, 3, 2]),
        h.make_node("MatMul", ["q", "kt"], ["a"], "scores"),
        h.make_node("Softmax", ["a"], ["p"], "softmax", axis=-1),
        h.make_node("MatMul", ["p", "v"], ["o"], "values"),
        h.make_node(
            "MatMulNBits", ["o", "w", "s"], ["y"], "packed",
            domain="com.microsoft", bits=4, block_size=32, N=32, K=32,
        ),
    ]  # fmt: skip
    float32 = onnx.TensorProto.FLOAT
    inputs = [h.make_tensor_value_info(name, float32, [1, 2, 40, 32]) for name in "qkv"]
    outputs = [h.make_tensor_value_info("y", float32, [1, 2, 40, 32])]
    graph = h.make_graph(nodes, "attention", inputs, outputs, [packed, scales])
    opsets = [h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    loaded = load_model(tmp_path / "m.onnx")
    units = network_units(native_targets(["float32", "float32"])[-1])
    (matched,) = match(loaded, [units.name]).targets
    planned = network_plan(loaded, units, Planning())
    rows = {o["name"]: o for o in planned["operators"] if o["kind"] == "attention"}
    (attention,) = [o for o in matched.operators if o.name in rows]
    (document,) = rows.values()
    assert (attention.macs, attention.match and attention.match.embedded_on) == (
        document["macs"],
        document["embedded_on"],
    )
    (weights,) = [o for o in matched.operators if o.reason and "weight-only" in o.reason]
    assert not weights.is_embedded
    assert [o.name for o in matched.operators] == [o["name"] for o in planned["operators"]]


@needs_units
@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_every_product_is_on_a_unit_that_multiplies_its_types(seed: int) -> None:
    graph = chain(100 + seed)
    document = network(graph, NetworkRequest(NATIVE), random_inputs(graph, seed)).document
    units = network_units(NATIVE)
    assert document["target"] == NATIVE
    assert document["units"] == list(units.members)
    assert document["totals"]["embedded"] == document["totals"]["products"]
    assert document["totals"]["on_target"] == document["totals"]["products"]


@needs_units
def test_a_product_that_no_unit_multiplies_says_so(cpembed: Caller, tmp_path: Path) -> None:
    (document,) = [
        network(graph, NetworkRequest(NATIVE, times=False), random_inputs(graph, 1)).document
        for graph in [chain(7, WIDE[:1])]
    ]
    products = [o for o in document["operators"] if o["workload"] is not None]
    assert products
    for operator in products:
        assert operator["embedded_on"] is None
        assert operator["reason"] == "no unit multiplies float64 by float64"


# -- models in ONNX --------------------------------------------------------------------------------


def onnx_model(path: Path, half: bool = False) -> Path:
    """A float product, a dynamically quantized one, and attention, whose factors vary."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper as h
    from onnx import numpy_helper as nh

    rng = np.random.default_rng(0)
    float_type = onnx.TensorProto.FLOAT16 if half else onnx.TensorProto.FLOAT
    dtype = np.float16 if half else np.float32
    nodes = [h.make_node("MatMul", ["x", "wf"], ["h"])]
    if half:
        nodes.append(h.make_node("Relu", ["h"], ["y"]))
    else:
        nodes += [
            h.make_node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"]),
            h.make_node("MatMulInteger", ["q", "wq", "z"], ["i"]),
            h.make_node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
            h.make_node("Mul", ["s", "ws"], ["sc"]),
            h.make_node("Mul", ["f", "sc"], ["g"]),
            h.make_node("Transpose", ["g"], ["gt"], perm=[1, 0]),
            h.make_node("MatMul", ["g", "gt"], ["a"]),
            h.make_node("Softmax", ["a"], ["p"], axis=-1),
            h.make_node("MatMul", ["p", "g"], ["y"]),
        ]
    constants = {"wf": (rng.normal(size=(32, 32)) * 0.2).astype(dtype)}
    if not half:
        constants |= {
            # Of seven bits: ONNX Runtime's sums of more saturate on processors without VNNI.
            "wq": rng.integers(-63, 64, (32, 32)).astype(np.int8),
            # Small, since a softmax of large numbers would turn one step into another maximum.
            "ws": np.float32(0.0002),
        }
    graph = h.make_graph(
        nodes,
        "mixed",
        [h.make_tensor_value_info("x", float_type, [8, 32])],
        [h.make_tensor_value_info("y", float_type, [8, 32])],
        [nh.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 19)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def ran(cpembed: Caller, model: Path, folder: Path, *more: str) -> tuple[dict[str, Any], Any]:
    """Return the document and the outputs of a model on an input of its own."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    dtype = np.float16 if "float16" in session.get_inputs()[0].type else np.float32
    x = np.random.default_rng(1).normal(size=(8, 32)).astype(dtype)
    np.save(folder / "x.npy", x)
    words = ("--input", str(folder / "x.npy"), "--output", str(folder), "--json", *more)
    document = cpembed("network", str(model), *words).json
    expected = session.run(None, {"x": x})[0].astype(np.float32)
    return document, (np.load(folder / "y.npy").astype(np.float32), expected)


@needs_units
def test_a_dynamically_quantized_model_runs_on_units(cpembed: Caller, tmp_path: Path) -> None:
    document, (result, expected) = ran(cpembed, onnx_model(tmp_path / "mixed.onnx"), tmp_path)
    products = {o["name"]: o for o in document["operators"] if o["workload"] is not None}
    # The last two products are one attention.
    assert [o["kind"] for o in products.values()].count("attention") == 1
    assert len(products) == 3
    assert all(o["embedded_on"] in document["units"] for o in products.values())
    assert (document["floats"], document["float16_as"]) == ("float32", None)
    # One step of the dynamic quantization may differ.
    assert np.abs(result - expected).max() < 0.05 * np.abs(expected).max()


FORMS = ("QLinearMatMul", "QLinearConv", "ConvInteger", "MatMulInteger", "QDQ", "QDQ attention",
         "QDQ dynamic", "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.QGemm")  # fmt: skip


def quantized_form(form: str, path: Path) -> Path:
    """A model with one product that is quantized in a form of ONNX."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper as h
    from onnx import numpy_helper as nh

    rng = np.random.default_rng(2)
    domain, _, kind = form.rpartition(".")
    scale, zero, uzero = np.float32(0.05), np.int8(3), np.uint8(120)
    weights = rng.integers(-100, 100, (16, 24)).astype(np.int8)
    constants: dict[str, Any] = {"s": scale, "zi": zero, "zu": uzero, "w": weights}
    types = onnx.TensorProto
    x, y, shape, result = types.UINT8, types.UINT8, [8, 16], [8, 24]
    nodes: list[Any] = []
    inputs: list[tuple[str, int, list[int]]] = []

    def node(name: str, reads: str, writes: str = "y", **attributes: Any) -> None:
        nodes.append(h.make_node(name, reads.split(), writes.split(), domain=domain, **attributes))

    match form:
        case "QLinearMatMul":
            node(kind, "x s zu w s zi s zu")
        case "QLinearConv" | "ConvInteger":
            constants["w"] = rng.integers(-100, 100, (24, 16, 3, 3)).astype(np.int8)
            shape, result = [1, 16, 6, 6], [1, 24, 6, 6]
            linear, integer = "x s zu w s zi s zu", "x w zu"
            node(kind, linear if form == "QLinearConv" else integer, pads=[1, 1, 1, 1])
            y = types.UINT8 if form == "QLinearConv" else types.INT32
        case "MatMulInteger":
            # Both factors vary.
            node(kind, "x v zu zi")
            inputs, y = [("v", types.INT8, [16, 24])], types.INT32
        case "QDQ" | "QDQ attention":
            node("DequantizeLinear", "x s zu", "a")
            weight = "w" if form == "QDQ" else "v"
            inputs = [] if form == "QDQ" else [("v", types.INT8, [16, 24])]
            node("DequantizeLinear", f"{weight} s zi", "b")
            node("MatMul", "a b", "c")
            node("QuantizeLinear", "c s zu")
        case "QDQ dynamic":
            x, y = types.FLOAT, types.FLOAT
            node("DynamicQuantizeLinear", "x", "q t z")
            node("DequantizeLinear", "q t z", "a")
            node("DequantizeLinear", "w s zi", "b")
            node("MatMul", "a b")
        case "com.microsoft.DynamicQuantizeMatMul":
            x, y = types.FLOAT, types.FLOAT
            node(kind, "x w s zi")
        case _:
            node(kind, "x s zu w s zi  s zu".replace("  ", " bias "))
            constants["bias"] = rng.integers(-900, 900, 24).astype(np.int32)
    graph = h.make_graph(
        nodes,
        "form",
        [h.make_tensor_value_info("x", x, shape)]
        + [h.make_tensor_value_info(*each) for each in inputs],
        [h.make_tensor_value_info("y", y, result)],
        [nh.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [h.make_opsetid("", 19), h.make_opsetid("com.microsoft", 1)]
    model = h.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    onnx.save(model, path)
    return path


@needs_units
@pytest.mark.quick(4)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_quantization_runs_on_a_unit_for_bytes(form: str, tmp_path: Path) -> None:
    graph = load_model(quantized_form(form, tmp_path / "form.onnx"))
    (matched,) = match(graph, [NATIVE]).targets
    assert matched.products
    pairs = (["uint8", "int8"], ["int16", "int8"])
    units = [spec.name for pair in pairs for spec in native_targets(pair)]
    for operator in matched.matched:
        assert operator.match is not None
        assert operator.match.embedded_on in units
        assert operator.computation is not None
        assert operator.computation.output.dtype == "int32"


@needs_units
@pytest.mark.slow
@pytest.mark.parametrize("float_type", ["f32", "bf16"])
def test_the_type_of_floats_is_an_option(cpembed: Caller, tmp_path: Path, float_type: str) -> None:
    model = onnx_model(tmp_path / "half.onnx", half=True)
    document, (result, expected) = ran(cpembed, model, tmp_path, "--float", float_type)
    floats = {"f32": "float32", "bf16": "bfloat16"}[float_type]
    assert (document["floats"], document["float16_as"]) == (floats, "float32")
    (product,) = [o for o in document["operators"] if o["workload"] is not None]
    types = native_targets([floats, floats])
    assert product["embedded_on"] in [spec.name for spec in types]
    tolerance = 2e-3 if float_type == "f32" else 2e-2
    assert np.abs(result - expected).max() < tolerance * np.abs(expected).max()


@needs_units
def test_a_named_target_leaves_other_types_to_its_processor(tmp_path: Path) -> None:
    """The reason names it; what it does multiply is on it or its alternatives."""
    named = native_targets(["uint8", "int8"])[0]
    graph = chain(11, (BYTES, TYPES[2]))
    document = network(
        graph, NetworkRequest(named.name, times=False), random_inputs(graph, 1)
    ).document
    for operator in document["operators"]:
        if operator["workload"] is None:
            continue
        assert operator["embedded_on"] is not None
        if operator["embedded_on"] not in (named.name, *named.alternatives):
            assert operator["reason"].startswith(f"{named.name}: ")
    assert document["units"] == [named.name]


@needs_units
def test_the_text_says_what_is_portable_and_what_floats_are(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    monkeypatch.setattr("cpembed.frontends.load_network", lambda path, *_, **__: chain(7, WIDE[:1]))
    called = cpembed("build", str(path), "--float", "bf16", "-o", str(tmp_path / "library"))
    assert "portable code: product 0, product 1" in called.out
    assert "no unit multiplies float64 by float64" in called.out


@needs_units
def test_floats_of_a_target_without_them_are_one_line(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    called = cpembed("network", str(path), "--target", "vta_1x16x16", "--float", "bf16")
    assert called.code != 0
    assert called.err.strip().count("\n") == 0
    assert "no unit multiplies bfloat16" in called.err


def test_a_workload_needs_a_target(cpembed: Caller, tmp_path: Path) -> None:
    called = cpembed("build", "gemm", "m=8", "n=8", "k=8", "-o", str(tmp_path))
    called.is_one_line_error(2, "--target")

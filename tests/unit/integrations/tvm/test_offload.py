"""The pass; what TVM makes of the same module without it is the second source."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from cpembed.errors import BackendUnavailable
from cpembed.integrations import tvm as plugin
from tests.features import needs
from tests.unit.integrations.tvm.modules import module_of, random, run


def same_result(module, *arrays, **options):
    """Offloads, compares with the CPU bit for bit, returns the report."""
    offload = plugin.offload("vta_1x16x16", **options)
    changed = offload(module)
    expected, found = run(module, *arrays), run(changed, *arrays)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert np.unique(expected).size > 1
    assert ("cpembed.vta.execute" in changed.script()) == bool(offload.report.replaced)
    return offload.report


def convolution(data, weight, layouts=("NCHW", "OIHW"), **options):
    names = dict(zip(("data_layout", "kernel_layout"), layouts, strict=True))
    given = {"out_dtype": "int32", **names, **options}
    return lambda x: op.nn.conv2d(x, relax.const(random(1, weight)), **given), data


CONVOLUTIONS = {
    "nchw": convolution((1, 16, 6, 6), (16, 16, 3, 3), padding=1),
    "nhwc_hwio": convolution((2, 6, 6, 5), (3, 3, 5, 20), ("NHWC", "HWIO"), padding=(1, 2, 0, 1)),
    "nhwc_ohwi": convolution((1, 6, 6, 5), (20, 3, 3, 5), ("NHWC", "OHWI"), strides=(2, 1)),
    "chwn": convolution((5, 6, 6, 2), (5, 3, 3, 4), ("CHWN", "IHWO")),
    "dilated": convolution((1, 5, 9, 9), (7, 5, 3, 3), dilation=(2, 3)),
    "grouped": convolution((1, 12, 6, 6), (8, 6, 3, 3), groups=2, padding=1),
    "int8": convolution((1, 16, 6, 6), (16, 16, 3, 3), out_dtype="int8"),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_gives_the_same_bits(name):
    build, data = CONVOLUTIONS[name]
    report = same_result(module_of(build, x=(data, "int8")), random(2, data))
    assert [entry.output for entry in report.operators] == ["int8" if name == "int8" else "int32"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "shapes",
    [((5, 32), (32, 17)), ((2, 5, 32), (32, 17)), ((3, 4, 8), (3, 8, 6)), ((32,), (32, 9))],
)
def test_a_matrix_product_of_variables_gives_the_same_bits(shapes):
    first, second = shapes
    module = module_of(
        lambda x, w: op.matmul(x, w, out_dtype="int32"), x=(first, "int8"), w=(second, "int8")
    )
    assert same_result(module, random(1, first), random(2, second)).replaced


@pytest.mark.slow
def test_a_transposed_convolution_is_one_over_reflected_weights():
    def build(stride):
        weight = relax.const(random(1, (8, 4, 3, 3)))
        given = {"strides": stride, "padding": 1, "out_dtype": "int32"}
        return module_of(
            lambda x: op.nn.conv2d_transpose(x, weight, **given), x=((1, 8, 6, 6), "int8")
        )

    assert same_result(build(1), random(2, (1, 8, 6, 6))).replaced
    assert "more than padding" in kept(build(2))


def test_convolutions_of_other_ranks_are_replaced():
    module = module_of(
        lambda x: op.nn.conv1d(x, relax.const(random(1, (6, 4, 3))), out_dtype="int32"),
        x=((1, 4, 12), "int8"),
    )
    assert same_result(module, random(2, (1, 4, 12))).replaced


def test_extreme_values_keep_all_their_bits():
    ends = np.full((4, 64), -128, np.int8)
    ends[1::2] = 127
    module = module_of(
        lambda x: op.matmul(x, relax.const(ends.T.copy()), out_dtype="int32"), x=((4, 64), "int8")
    )
    assert same_result(module, ends).replaced


@pytest.mark.slow
def test_a_depthwise_convolution_has_the_roles_exchanged():
    """Its filters and its image share the channel, so the image has to take the weights' place."""
    build, data = convolution((1, 6, 6, 6), (6, 1, 3, 3), groups=6, padding=1)
    module = module_of(build, x=(data, "int8"))
    assert same_result(module, random(2, data)).replaced


@pytest.mark.slow
def test_another_constraint_set_is_used():
    build, data = convolution((1, 3, 6, 6), (16, 3, 3, 3), padding=1)
    module = module_of(build, x=(data, "int8"))
    narrow = same_result(module, random(2, data), constraints="in_place_padded").operators[0]
    relaxed = same_result(module, random(2, data), constraints="relaxed").operators[0]
    usual = same_result(module, random(2, data)).operators[0]
    assert usual.utilisation > relaxed.utilisation > narrow.utilisation


@pytest.mark.slow
def test_functions_of_an_already_legalised_module_are_replaced():
    build, data = convolution((1, 16, 6, 6), (16, 16, 3, 3), padding=1)
    module = relax.transform.LegalizeOps()(module_of(build, x=(data, "int8")))
    report = same_result(module, random(2, data))
    assert [entry.operator for entry in report.replaced] == ["conv2d"]


@pytest.mark.slow
def test_a_compiled_module_runs_after_it_was_written_and_loaded(tmp_path):
    build, data = convolution((1, 16, 6, 6), (16, 16, 3, 3), padding=1)
    module = module_of(build, x=(data, "int8"))
    path = str(tmp_path / "module.so")
    tvm.compile(plugin.offload("vta_1x16x16")(module), "llvm").export_library(path)
    machine = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(random(2, data))).numpy()
    assert np.array_equal(found, run(module, random(2, data)))


def kept(module):
    offload = plugin.offload("vta_1x16x16")
    changed = offload(module)
    assert "cpembed.vta" not in changed.script()
    (entry,) = offload.report.operators
    assert not entry.replaced
    assert entry.reason in str(offload.report)
    return entry.reason


def test_other_element_types_stay_with_a_reason():
    for dtype in ("float32", "uint8"):
        module = module_of(op.matmul, x=((4, 8), dtype), w=((8, 6), dtype))
        assert dtype in kept(module)


def test_an_infeasible_operator_stays_with_the_reason():
    module = module_of(
        lambda x, w: op.matmul(x, w, out_dtype="int32"), x=((4, 8), "int8"), w=((8, 6), "int8")
    )
    offload = plugin.offload("vta_1x16x16", constraints="strict")
    offload(module)
    assert "padding" in offload.report.left_to_tvm[0].reason


def test_symbolic_sizes_stay_with_the_remedy():
    size = tvm.tirx.Var("m", "int64")
    module = module_of(
        lambda x, w: op.matmul(x, w, out_dtype="int32"), x=((size, 8), "int8"), w=((8, 6), "int8")
    )
    assert "bind the symbolic sizes" in kept(module)


def test_other_operators_are_not_listed():
    module = module_of(op.nn.relu, x=((4, 8), "int8"))
    offload = plugin.offload("vta_1x16x16")
    offload(module)
    assert offload.report.operators == ()


def test_a_target_that_nothing_executes_is_refused():
    with pytest.raises(BackendUnavailable, match="no back end executes gemm_16x16x16"):
        plugin.offload("gemm_16x16x16")


@needs("avx512_vnni")
@pytest.mark.parametrize("varies", [False, True])
def test_any_target_executes_operators_of_a_module(varies):
    shape, weights = (1, 8, 9, 9), random(1, (20, 8, 3, 3))

    def build(x, *more):
        w = more[0] if varies else relax.const(weights)
        return op.nn.conv2d(x, w, padding=1, strides=2, out_dtype="int32")

    given = {"x": (shape, "uint8")} | ({"w": (weights.shape, "int8")} if varies else {})
    module = module_of(build, **given)
    offload = plugin.offload("avx512_vnni")
    changed = offload(module)
    assert "cpembed.execute" in changed.script(), str(offload.report)
    arrays = [random(2, shape).view(np.uint8), *([weights] if varies else [])]
    assert np.array_equal(run(changed, *arrays), run(module, *arrays))

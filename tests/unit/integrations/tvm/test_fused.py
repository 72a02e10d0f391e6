"""Products with what follows them, in one kernel where it stores the same bits: TVM's own code of
the same module is the second source."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import op

import cpembed.integrations.tvm
from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.fused import recognise_fused
from cpembed.integrations.tvm.pipeline import fused_function, groups
from tests.unit.integrations.tvm.modules import called, module_of, processor, random, run

DATA, WEIGHT = (1, 8, 5, 6), (24, 8, 3, 3)
BIAS = random(3, (1, 24, 1, 1), "int32", 2**12)
SCALE = np.random.default_rng(4).uniform(1e-4, 3e-3, (1, 24, 1, 1)).astype(np.float32)
"""With both, some results are beyond a byte."""


def const(value, dtype="int32"):
    return relax.const(np.asarray(value, dtype))


def sums_of(x, **given):
    weight = random(1, (*WEIGHT[:1], WEIGHT[1] // given.get("groups", 1), *WEIGHT[2:]))
    return op.nn.conv2d(x, relax.const(weight), padding=1, out_dtype="int32", **given)


def biased(s):
    return op.add(s, const(BIAS))


def scaled(s, scale=SCALE):
    return op.multiply(op.astype(s, "float32"), const(scale, "float32"))


def byte(f, dtype="uint8", low=0, high=255):
    return op.astype(op.clip(op.round(f), low, high), dtype)


def moved(f, zero_point, dtype="int8"):
    rounded = op.add(op.round(f), const(zero_point, "float32"))
    return op.astype(op.clip(rounded, -128, 127), dtype)


WHOLE = {
    "sums": lambda s: s,
    "bias": biased,
    "two_biases": lambda s: op.add(biased(s), const(77)),
    "bias_relu": lambda s: op.nn.relu(biased(s)),
    "shift": lambda s: op.astype(op.clip(op.right_shift(biased(s), const(7)), -128, 127), "int8"),
    "lower_bits": lambda s: op.astype(op.right_shift(s, const(3)), "int8"),
    "clip_before_a_shift": lambda s: op.astype(
        op.right_shift(op.clip(s, -30001, 29999), const(8)), "int8"
    ),
    "relu_before_a_shift": lambda s: op.astype(
        op.minimum(op.right_shift(op.nn.relu(s), const(8)), const(99)), "int8"
    ),
    "limited_sums": lambda s: op.clip(s, -5000, 7001),
    "floats": lambda s: op.astype(s, "float32"),
    "scaled_floats": lambda s: scaled(biased(s)),
    "requantized": lambda s: byte(scaled(biased(s))),
    "requantized_by_one_scale": lambda s: byte(scaled(s, 0.0017)),
    "requantized_to_int8": lambda s: byte(scaled(biased(s)), "int8", -128, 127),
    "requantized_within": lambda s: byte(scaled(biased(s)), "int8", -100, 90),
    "requantized_around_a_zero_point": lambda s: moved(scaled(biased(s)), -3),
    "relu_before_scales": lambda s: byte(scaled(op.nn.relu(biased(s)))),
    "relu_before_a_zero_point": lambda s: moved(op.nn.relu(scaled(biased(s))), -3),
    "clip_before_rounding": lambda s: op.astype(op.round(op.clip(scaled(s), 0, 255)), "uint8"),
}
"""All of it is the kernel's."""

PART = {
    "divided": (lambda s: op.divide(s, const(512)), 1),
    "added_to_another": (lambda s: op.add(s, const(random(6, (1, 24, 5, 6), "int32"))), 1),
    "scaled_before_the_bias": (
        lambda s: op.add(scaled(s), const(BIAS.astype("float32"), "float32")),
        3,
    ),
    "negative_scales_after_relu": (
        lambda s: byte(scaled(op.nn.relu(s), -SCALE), "int8", -128, 127),
        3,
    ),
    "cut_off": (lambda s: op.astype(scaled(s), "int32"), 3),
    "beyond_a_byte": (lambda s: op.astype(op.clip(s, -300, 300), "int8"), 2),
    "of_rows": (lambda s: op.add(s, const(random(7, (1, 1, 5, 1), "int32"))), 1),
    "transposed_sums": (lambda s: op.permute_dims(s, (0, 2, 3, 1)), 1),
    "transposed": (lambda s: op.permute_dims(biased(s), (0, 2, 3, 1)), 2),
}
"""And the number of the functions that are."""


FOLLOW = WHOLE | {name: made for name, (made, _) in PART.items()}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FOLLOW)
def test_what_follows_gives_the_same_bits(name):
    module = module_of(lambda x: FOLLOW[name](sums_of(x)), x=(DATA, "uint8"))
    pipeline = cpembed.integrations.tvm.pipeline(processor())
    compiled = tvm.compile(module, "llvm", relax_pipeline=pipeline)
    image = random(2, DATA, "uint8")
    found = called(compiled, image)
    expected = run(module, image)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert np.unique(expected).size > 1
    (entry,) = pipeline.report.kernels
    assert (entry.reason is None) == (name in WHOLE)


@pytest.mark.quick(17)
@pytest.mark.parametrize("name", FOLLOW)
def test_as_much_as_stores_the_same_is_in_the_kernel(name):
    module = module_of(lambda x: FOLLOW[name](sums_of(x)), x=(DATA, "uint8"))
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    module = tvm.transform.Sequential(passes)(module)
    (group,) = groups(module, "main", module["main"])
    counts = range(1, len(group.bindings) + 1)
    stored = [count for count in counts if is_stored(*fused_function(module, group.first(count)))]
    assert stored[0] == 1
    assert stored[-1] == PART[name][1] if name in PART else len(group.bindings)


def is_stored(function, arguments):
    """Whether a function is a product with an epilogue, on arguments of which some are known."""
    known = {k: a.value.numpy() for k, a in enumerate(arguments) if isinstance(a, GenericConst)}
    try:
        recognise_fused(function).vectors(known)
    except WorkloadError:
        return False
    return True


def legal(build, **inputs):
    module = relax.transform.LegalizeOps()(module_of(build, **inputs))
    passes = [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    module = tvm.transform.Sequential([*passes, relax.transform.FuseTIR()])(module)
    (function,) = (f for _, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return function


def test_channels_of_groups_are_numbered_as_the_output_has_them():
    function = legal(lambda x: biased(sums_of(x, groups=2)), x=(DATA, "uint8"))
    fused = recognise_fused(function)
    assert fused.recognised.output_split == (1, 2, 1, 1)
    assert fused.channels == (1,)
    assert np.array_equal(fused.vectors({2: BIAS})["@bias"], BIAS.reshape(-1))


def test_a_bias_of_a_product_of_matrices_is_of_the_last_dimension():
    shapes = {"x": ((4, 8), "uint8"), "w": ((8, 12), "int8"), "b": ((12,), "int32")}
    function = legal(lambda x, w, b: op.add(op.matmul(x, w, out_dtype="int32"), b), **shapes)
    assert recognise_fused(function).vectors({}) == {"@bias": 2}


def test_floats_have_another_tensor_added_and_negative_ones_cut():
    shapes = {"x": ((4, 8), "float32"), "w": ((8, 12), "float32"), "r": ((4, 12), "float32")}
    function = legal(lambda x, w, r: op.nn.relu(op.add(op.matmul(x, w), r)), **shapes)
    fused = recognise_fused(function)
    assert fused.vectors({}) == {"@residual": 2}
    assert fused.epilogue is not None
    assert fused.epilogue.residual is not None
    assert fused.epilogue.residual.relu


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda x, w: op.exp(op.matmul(x, w)), "exp follows the sums"),
        (lambda x, w: op.minimum(op.matmul(x, w), const(6, "float32")), "limited"),
        (lambda x, w: op.divide(op.matmul(x, w), const(6, "float32")), "Div follows the sums"),
    ],
)
def test_what_no_kernel_stores_is_said_in_words(build, words):
    shapes = {"x": ((4, 8), "float32"), "w": ((8, 12), "float32")}
    with pytest.raises(WorkloadError, match=words):
        recognise_fused(legal(build, **shapes))

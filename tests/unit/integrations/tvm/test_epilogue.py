"""What follows a product on the CPU, moved into VTA's ALU where that is exact."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import cpembed.integrations.tvm
from tests.unit.integrations.tvm.modules import add_function, machine, module_of, random, run

DATA, WEIGHT = (1, 16, 5, 5), (32, 16, 3, 3)
CHANNELS = random(3, (1, 32, 1, 1), "int32", 2**12)


def const(value, dtype="int32"):
    return relax.const(np.asarray(value, dtype))


def int8(value):
    return op.astype(value, "int8")


def sums_of(x, *, layout="NCHW", groups=1):
    weight, kernel = WEIGHT, "OIHW"
    if layout == "NHWC":
        weight, kernel = (3, 3, 16, 32), "HWIO"
    if groups > 1:
        weight = (32, 16 // groups, 3, 3)
    given = {"data_layout": layout, "kernel_layout": kernel, "groups": groups, "padding": 1}
    return op.nn.conv2d(x, relax.const(random(1, weight)), out_dtype="int32", **given)


REQUANTIZED = {
    "shift": lambda s: int8(op.clip(op.right_shift(s, const(9)), -128, 127)),
    "bias": lambda s: int8(
        op.clip(op.right_shift(op.add(s, const(CHANNELS)), const(9)), -128, 127)
    ),
    "bias_first": lambda s: int8(op.clip(op.add(const(CHANNELS), s), -100, 99)),
    "bias_of_all_dimensions": lambda s: int8(
        op.clip(
            op.right_shift(op.add(s, const(random(4, (1, 32, 5, 5), "int32"))), const(9)), -9, 9
        )
    ),
    "rounding": lambda s: int8(
        op.clip(
            op.right_shift(op.add(op.add(s, const(CHANNELS)), const(2**8)), const(9)), -128, 127
        )
    ),
    "rounding_alone": lambda s: int8(
        op.clip(op.right_shift(op.add(s, const(256)), const(9)), -7, 8)
    ),
    "relu_before": lambda s: int8(op.clip(op.right_shift(op.nn.relu(s), const(8)), -128, 127)),
    "relu_after": lambda s: int8(op.minimum(op.nn.relu(op.right_shift(s, const(8))), const(100))),
    "clip_before": lambda s: int8(op.right_shift(op.clip(s, -30001, 29999), const(8))),
    "two_shifts": lambda s: int8(
        op.maximum(
            op.minimum(op.right_shift(op.right_shift(s, const(4)), const(5)), const(90)), const(-5)
        )
    ),
}


LAST_BIAS = random(5, (32,), "int32", 2**14)

LAYOUTS = {
    "bias_of_the_last_dimension": lambda x: int8(
        op.clip(
            op.right_shift(op.add(sums_of(x, layout="NHWC"), const(LAST_BIAS)), const(9)), -128, 127
        )
    ),
    "bias_of_the_channels_of_groups": lambda x: REQUANTIZED["bias"](sums_of(x, groups=2)),
}

EXACT = {
    "no_clip": lambda s: int8(op.right_shift(s, const(9))),
    "clip_beyond_int8": lambda s: int8(op.clip(op.right_shift(s, const(8)), -128, 128)),
    "bias_after_the_shift": lambda s: int8(
        op.clip(op.add(op.right_shift(s, const(9)), const(CHANNELS)), -128, 127)
    ),
    "division": lambda s: int8(op.clip(op.divide(s, const(512)), -128, 127)),
    "shifts_by_channel": lambda s: int8(
        op.clip(op.right_shift(s, const(np.full((1, 32, 1, 1), 9))), -128, 127)
    ),
    "added_to_itself": lambda s: int8(op.clip(op.right_shift(op.add(s, s), const(9)), -128, 127)),
    "another_type": lambda s: op.astype(op.clip(op.right_shift(s, const(9)), -128, 127), "int16"),
    "broadcast": lambda s: int8(
        op.clip(
            op.right_shift(op.add(s, const(random(6, (2, 1, 1, 1), "int32", 99))), const(9)), -9, 9
        )
    ),
}


@pytest.fixture(scope="module")
def results(request):
    """By name of what follows, for the cases that are selected in this session: the form of the
    sums, and the results on VTA and the CPU."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    selected = {call.params.get("name") for call in calls if call is not None}
    names = [name for name in (*FOLLOW, *LAYOUTS) if name in selected]
    builder = relax.BlockBuilder()
    shapes = {name: (1, 5, 5, 16) if "last" in name else DATA for name in names}
    for name in names:
        if name in FOLLOW:
            function = lambda x, follow=FOLLOW[name]: follow(sums_of(x))  # noqa: E731
        else:
            function = LAYOUTS[name]
        add_function(builder, name, function, x=(shapes[name], "int8"))
    module = builder.get()
    offload = cpembed.integrations.tvm.offload("vta_1x16x16")
    on_vta, on_cpu = machine(offload(module)), machine(module)
    forms = {entry.function: entry.output for entry in offload.report.operators}
    found = {}
    for name, shape in shapes.items():
        image = tvm.runtime.tensor(random(2, shape))
        found[name] = forms[name], on_vta[name](image).numpy(), on_cpu[name](image).numpy()
    return found


FOLLOW = REQUANTIZED | EXACT


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [*FOLLOW, *LAYOUTS])
def test_what_follows_gives_the_same_bits(results, name):
    _, found, expected = results[name]
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert np.unique(expected).size > 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [*FOLLOW, *LAYOUTS])
def test_what_is_exact_in_the_alu_and_nothing_else_moves_into_the_program(results, name):
    assert results[name][0] == ("int32" if name in EXACT else "requantized")


def test_sums_that_are_read_elsewhere_too_stay_exact():
    def build(x):
        builder = relax.BlockBuilder.current()
        weight = relax.const(random(1, WEIGHT))
        sums = builder.emit(op.nn.conv2d(x, weight, out_dtype="int32"))
        small = builder.emit(int8(op.clip(op.right_shift(sums, const(9)), -128, 127)))
        return op.add(op.astype(small, "int32"), sums)

    module = module_of(build, x=(DATA, "int8"))
    offload = cpembed.integrations.tvm.offload("vta_1x16x16")
    changed = offload(module)
    assert offload.report.operators[0].output == "int32"
    assert np.array_equal(run(changed, random(2, DATA)), run(module, random(2, DATA)))


def test_without_requantize_the_sums_are_exact():
    def build(x):
        sums = op.nn.conv2d(x, relax.const(random(1, WEIGHT)), out_dtype="int32")
        return REQUANTIZED["bias"](sums)

    offload = cpembed.integrations.tvm.offload("vta_1x16x16", requantize=False)
    offload(module_of(build, x=(DATA, "int8")))
    assert offload.report.operators[0].output == "int32"

"""TensorIR functions as computations; TVM's execution of the function is the second source."""

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te, tirx, topi

from cpembed.errors import WorkloadError
from cpembed.integrations.tvm import recognise
from cpembed.ir.reference import reference
from tests.unit.integrations.tvm.modules import module_of, random


def conv2d(data, weight, **options):
    a, w = te.placeholder(data, "int8", "A"), te.placeholder(weight, "int8", "W")
    given = {"strides": 1, "padding": 0, "dilation": 1, **options}
    return te.create_prim_func([a, w, topi.nn.conv2d(a, w, **given, out_dtype="int32")])


def grouped(data, weight, groups, padding):
    a, w = te.placeholder(data, "int8", "A"), te.placeholder(weight, "int8", "W")
    out = topi.nn.group_conv2d_nchw(a, w, (2, 1), padding, 1, groups, out_dtype="int32")
    return te.create_prim_func([a, w, out])


def product(transposed):
    a = te.placeholder((6, 9), "int8", "A")
    b = te.placeholder((7, 9) if transposed else (9, 7), "int8", "B")
    k = te.reduce_axis((0, 9), "k")
    right = (lambda j: b[j, k]) if transposed else (lambda j: b[k, j])
    out = te.compute(
        (6, 7), lambda i, j: te.sum(a[i, k].astype("int32") * right(j).astype("int32"), axis=k)
    )
    return te.create_prim_func([a, b, out])


FUNCTIONS = {
    "conv2d": lambda: conv2d((2, 3, 6, 7), (4, 3, 3, 2)),
    "padded": lambda: conv2d((1, 3, 6, 7), (4, 3, 3, 3), padding=(1, 2, 0, 1), strides=2),
    "dilated": lambda: conv2d((1, 3, 8, 8), (4, 3, 3, 3), dilation=2, padding=1),
    "nhwc": lambda: conv2d(
        (1, 6, 7, 3), (3, 2, 3, 4), data_layout="NHWC", kernel_layout="HWIO", padding=1
    ),
    "grouped": lambda: grouped((1, 6, 5, 5), (4, 3, 3, 3), 2, 1),
    "depthwise": lambda: grouped((1, 4, 5, 5), (4, 1, 3, 3), 4, 1),
    "product": lambda: product(False),
    "transposed": lambda: product(True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recognised_computation_computes_what_the_function_does(name):
    function = FUNCTIONS[name]()
    recognised = recognise(function)
    arrays = [random(n, tuple(map(int, p.shape))) for n, p in enumerate(function.params[:-1])]
    out = tvm.runtime.empty(tuple(map(int, function.params[-1].shape)), "int32")
    tvm.compile(function, "llvm")(*map(tvm.runtime.tensor, arrays), out)
    computation = recognised.computation
    inputs = {
        name: array.reshape(computation.operand(name).shape)
        for name, array in zip(recognised.parameters, arrays, strict=False)
    }
    found = reference(computation, inputs)
    assert np.array_equal(found.reshape(out.shape), out.numpy())
    assert np.abs(out.numpy()).max() > 0


def test_groups_are_an_axis_and_a_dimension():
    recognised = recognise(grouped((1, 6, 5, 5), (4, 3, 3, 3), 2, 0))
    assert str(recognised.computation) == (
        "group_conv2d_nchw[nn, ff0, ff1, yy, xx] += "
        "(A[nn, ff0, rc, 2*yy + ry, xx + rx] * W[ff0, ff1, rc, ry, rx])"
    )
    assert recognised.output_split == (1, 2, 1, 1)


def refused(function):
    with pytest.raises(WorkloadError) as caught:
        recognise(function)
    return str(caught.value)


def test_two_blocks_that_compute_are_no_computation():
    a = te.placeholder((4, 4), "int32", "A")
    k, m = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 4), "m")
    rows = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="rows")
    twice = te.compute((1,), lambda i: te.sum(rows[m], axis=m), name="all")
    assert "block rows cannot be inlined" in refused(te.create_prim_func([a, twice]))


def test_a_scheduled_function_is_refused():
    schedule = s_tir.Schedule(product(False))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.split(schedule.get_loops(block)[0], [2, 3])
    assert "pass it unscheduled" in refused(schedule.mod["main"])


def guarded_sum(guard):
    a = te.placeholder((8,), "int32", "A")
    k = te.reduce_axis((0, 3), "k")

    def element(i):
        return tirx.if_then_else(guard(i, i + k), a[i + k - 1], tirx.const(0, "int32"))

    return te.create_prim_func([a, te.compute((8,), lambda i: te.sum(element(i), axis=k))])


def test_a_guard_that_says_that_the_element_exists_is_padding():
    function = guarded_sum(lambda i, at: tirx.all(at >= 1, at < 9))
    assert recognise(function).computation.operand("A").zero_outside


@pytest.mark.parametrize(
    "guard, problem",
    [
        (lambda i, at: tirx.all(at >= 2, at < 9), "nothing guards"),
        (lambda i, at: at < 9, "nothing guards"),
        (lambda i, at: tirx.all(at >= 1, at < 9, i < 5), "which cuts it"),
    ],
)
def test_a_guard_that_says_less_or_more_is_refused(guard, problem):
    assert problem in refused(guarded_sum(guard))


def test_an_index_that_is_not_affine_is_refused():
    a = te.placeholder((16,), "int32", "A")
    out = te.compute((4, 4), lambda i, j: a[i * j])
    assert "not affine" in refused(te.create_prim_func([a, out]))


def test_a_conversion_of_what_was_computed_is_refused():
    """The product wraps around in 8 bits, which the computation's exact arithmetic would not."""
    a, b = te.placeholder((4, 4), "int8", "A"), te.placeholder((4, 4), "int8", "B")
    k = te.reduce_axis((0, 4), "k")
    out = te.compute((4, 4), lambda i, j: te.sum((a[i, k] * b[k, j]).astype("int32"), axis=k))
    assert "which is computed" in refused(te.create_prim_func([a, b, out]))


STARTS_FROM_ONE = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((4, 8), "int32"), b: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                b[vi] = 1
            b[vi] = b[vi] + a[vi, vk]
"""


def test_sums_that_start_from_something_else_are_refused():
    assert "do not start from 0" in refused(tvm.script.from_source(STARTS_FROM_ONE))


def test_relax_legalisation_of_a_module_is_recognised():
    module = module_of(
        lambda x, w: relax.op.matmul(x, w, out_dtype="int32"),
        x=((2, 3, 4), "int8"),
        w=((4, 5), "int8"),
    )
    legal = relax.transform.LegalizeOps()(module)
    (function,) = (f for _, f in legal.functions_items() if isinstance(f, tirx.PrimFunc))
    assert recognise(function).computation.extents == {"i0": 2, "i1": 3, "i2": 5, "k": 4}

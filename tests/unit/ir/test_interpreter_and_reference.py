"""The interpreter against Python loops, and the fast reference against the interpreter."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpembed.errors import WorkloadError
from cpembed.ir import reference as reference_module
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import DTYPES, numpy_dtype
from cpembed.ir.interpreter import interpret
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import gemm

AXES = "ijkl"


class Reader:
    """An operand that evaluates like the language: zero outside where it may be left."""

    def __init__(self, array, zero_outside):
        self.array, self.zero_outside = array, zero_outside

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        inside = all(0 <= i < size for i, size in zip(index, self.array.shape, strict=True))
        assert inside or self.zero_outside
        return self.array[index].item() if inside else 0


def python_loops(computation: Computation, inputs):
    """The computation by eval() of its printed text at every point, in Python integers."""
    readers = {o.name: Reader(inputs[o.name], o.zero_outside) for o in computation.inputs}
    names = {"neg": lambda v: -v, "cast": lambda v, dtype: v, **{d: d for d in DTYPES}}
    result = np.zeros(computation.output.shape, object)
    written = set()
    for point in itertools.product(*(range(e) for e in computation.extents.values())):
        scope = {**names, **readers, **dict(zip(computation.extents, point, strict=True))}
        value = eval(str(computation.statement.value), scope)
        target = eval(f"({', '.join(str(i) for i in computation.statement.store.index)},)", scope)
        if target not in written or computation.statement.reduction is None:
            result[target] = value
        else:
            combine = {"add": lambda a, b: a + b, "max": max, "min": min}[
                computation.statement.reduction
            ]
            result[target] = combine(result[target], value)
        written.add(target)
    return result


@st.composite
def affine_index(draw, axes):
    """Text of an affine index: one or two scaled iterators, perhaps one reversed."""
    used = draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2, unique=True))
    terms = [f"{draw(st.integers(1, 3))}*{axis}" for axis in used]
    if draw(st.booleans()):
        terms.append(f"-{draw(st.sampled_from(axes))} + 4")
    return " + ".join(terms)


@st.composite
def computations(draw, products_only=False):
    """Random statements: stencils, strides, reversals, zero padding, any reduction."""
    axes = AXES[: draw(st.integers(1, 4))]
    extents = {axis: draw(st.integers(1, 4)) for axis in axes}
    stored = draw(st.lists(st.sampled_from(axes), max_size=3, unique=True))
    scale = draw(st.sampled_from(["", "2*"]))
    store = f"C[{', '.join(scale + axis for axis in stored) or '0'}]"
    left = ", ".join(draw(st.lists(affine_index(axes), min_size=1, max_size=3)))
    right = ", ".join(draw(st.lists(affine_index(axes), min_size=1, max_size=2)))
    # One more read of every axis, as an axis outside all indices is refused.
    values = [f"A[{left}] * B[{right}, {' + '.join(axes)}]"]
    op = "+="
    if not products_only:
        values += [
            f"max(A[{left}], -B[{right}, {' + '.join(axes)}]) - 3",
            f"abs(A[{left}] >> 1) + min(B[{right}, {' + '.join(axes)}], cast(2, int16))",
        ]
        op = draw(st.sampled_from(["+=", "max=", "min="]))
    text = f"{store} {op} {draw(st.sampled_from(values))}"
    dtypes = {
        "A": draw(st.sampled_from(["int8", "uint8", "int16"])),
        "B": draw(st.sampled_from(["int8", "uint8"])),
        "C": "int32",
    }
    plain = parse_computation(text, extents, dtypes=dtypes)
    if not draw(st.booleans()):
        return plain
    # A smaller operand that is left on both sides.
    shape = tuple(max(1, size - 2) for size in plain.operand("A").shape)
    shifted = text.replace("A[", "A[-1 + ", 1)
    return parse_computation(
        shifted, extents, dtypes=dtypes, shapes={"A": shape}, zero_outside=("A",)
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(computations(), st.integers(0, 2**32 - 1))
def test_interpreter_agrees_with_python_loops(computation, seed):
    inputs = random_inputs(computation, seed)
    result = interpret(computation, inputs, chunk_points=17)
    assert result.dtype == numpy_dtype(computation.output.dtype)
    np.testing.assert_array_equal(result, python_loops(computation, inputs).astype(result.dtype))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.one_of(computations(products_only=True), computations()),
    st.integers(0, 2**32 - 1),
    st.sampled_from([8, 1 << 20]),
)
def test_reference_agrees_with_the_interpreter(computation, seed, tile_elements):
    inputs = random_inputs(computation, seed)
    before = reference_module._TILE_ELEMENTS, reference_module._TILE_POINTS
    reference_module._TILE_ELEMENTS = reference_module._TILE_POINTS = tile_elements
    try:
        result = reference(computation, inputs)
    finally:
        reference_module._TILE_ELEMENTS, reference_module._TILE_POINTS = before
    expected = interpret(computation, inputs)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_views_serve_all_but_stores_that_collide(monkeypatch):
    def refuse(*_):
        raise AssertionError("interpreted")

    monkeypatch.setattr(reference_module, "interpret", refuse)
    padded = conv2d(n=1, c=2, h=5, w=5, k=3, r=3, s=3, pad=1, groups=2, layout="NHWC")
    reference(padded, random_inputs(padded, 0))
    for text in ("C[i] max= A[i,j]", "C[i] += A[i,j] + B[j]", "C[i] += cast(A[i,j], int8) * B[j]"):
        computation = parse_computation(text, {"i": 2, "j": 2}, dtypes={"A": "int16"})
        reference(computation, random_inputs(computation, 0))
    # Two points of the output's axes share an element, at extent 2 as tightly as can be.
    computation = parse_computation("C[i+j] += A[i,j]", {"i": 2, "j": 2})
    with pytest.raises(AssertionError, match="interpreted"):
        reference(computation, random_inputs(computation, 0))


def test_integers_wrap_around_in_the_output_dtype():
    computation = parse_computation(
        "C[i] += A[i,j] * B[j]", {"i": 2, "j": 4}, dtypes={"C": "int8", "A": "int16", "B": "int8"}
    )
    inputs = random_inputs(computation, 3)
    exact = inputs["A"].astype(object) @ inputs["B"].astype(object)
    wrapped = np.array([(int(v) + 128) % 256 - 128 for v in exact], np.int8)
    assert (np.abs(exact.astype(float)) > 127).any()
    np.testing.assert_array_equal(interpret(computation, inputs), wrapped)
    np.testing.assert_array_equal(reference(computation, inputs), wrapped)


@pytest.mark.parametrize("dtype", ["int32,int32,int64", "int32,int32,int32", "int64"])
def test_sums_beyond_float64_stay_exact(dtype):
    computation = gemm(m=3, n=4, k=50, dtype=dtype)
    inputs = random_inputs(computation, 1)
    exact = inputs["A"].astype(object) @ inputs["B"].astype(object)
    bits = DTYPES[computation.output.dtype].bits
    wrapped = (exact + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    result = reference(computation, inputs)
    assert (result.astype(object) == wrapped).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float32,int8"])
def test_float_results_are_rounded_once_from_float64(dtype):
    computation = gemm(m=5, n=4, k=33, trans_b=True, dtype=dtype)
    inputs = random_inputs(computation, 7)
    exact = inputs["A"].astype(np.float64) @ inputs["B"].astype(np.float64).T
    np.testing.assert_allclose(
        reference(computation, inputs).astype(np.float64), exact, rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        interpret(computation, inputs).astype(np.float64), exact, rtol=1e-6, atol=1e-6
    )


def test_elements_that_no_point_writes_are_zero():
    computation = parse_computation("C[2*i] max= A[i,j]", {"i": 2, "j": 2})
    inputs = {"A": np.array([[-5, -7], [-3, -4]], np.int8)}
    np.testing.assert_array_equal(interpret(computation, inputs), [-5, 0, -3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_inputs_cover_the_range_and_repeat_by_seed(dtype):
    computation = gemm(m=64, n=1, k=64, dtype=dtype)
    first, again, other = (random_inputs(computation, seed)["A"] for seed in (5, 5, 6))
    assert first.dtype == numpy_dtype(dtype)
    assert (first == again).all()
    assert (first != other).any()
    low, high = DTYPES[dtype].integer_range if DTYPES[dtype].is_integer else (-1, 1)
    spread = float(high) - float(low)
    values = first.astype(np.float64)
    assert low <= values.min() < low + spread / 50
    assert high - spread / 50 < values.max() <= high


def test_wrong_inputs_are_named():
    computation = gemm(m=2, n=2, k=3)
    inputs = random_inputs(computation, 0)
    with pytest.raises(WorkloadError, match="no array for input B"):
        reference(computation, {"A": inputs["A"]})
    with pytest.raises(WorkloadError, match=r"input A is int8\[3, 2\]; pass int8\[2, 3\]"):
        reference(computation, {**inputs, "A": inputs["A"].T})
    with pytest.raises(WorkloadError, match=r"input A is int16\[2, 3\]; pass int8\[2, 3\]"):
        interpret(computation, {**inputs, "A": inputs["A"].astype(np.int16)})

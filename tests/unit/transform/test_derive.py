"""Derived programs of random embeddings are proven and compute what the workload computes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.driver.named import default_dtypes
from cpembed.driver.named import workload as described
from cpembed.driver.options import DEFAULT_CONSTRAINTS
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.constraints import AllDifferent
from cpembed.embedding.digit_search import check_embedding
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.ir.interpreter import interpret
from cpembed.ir.reference import random_inputs
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram, PackedDimension, PackedOperand, pack
from cpembed.transform.proof import prove
from cpembed.transform.rewrites import ImagePack, StencilUnroll
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import gemm
from cpembed.workloads.naming import parse_workload
from tests.executed import assert_programs_compute, execute
from tests.programs import random_programs
from tests.unit.transform.moved_data import forward, inverse


def check(program: DerivedProgram, seed: int) -> None:
    proof = prove(program)
    assert proof.holds, (program.workload, program.embedding, proof.failed)
    inputs = random_inputs(program.workload, seed)
    expected = interpret(program.workload, inputs)
    np.testing.assert_array_equal(execute(program, inputs), expected)
    for operand in program.operands:
        if operand.name in inputs:
            check_data_path(program, operand, inputs[operand.name])


def typed(workload: Computation, target: str) -> tuple[Computation, Instruction]:
    """A convolution with the element types of a target, and its instruction."""
    instruction = load_hardware_spec(target).instruction
    dtypes = [instruction.dtypes[name][0] for name in "ABC"]
    return workload.with_dtypes(dict(zip("IWO", dtypes, strict=True))), instruction


def original_layout(program: DerivedProgram, operand: PackedOperand) -> PackedOperand:
    """The layout before any rewrite, as derivation starts from."""
    access = program.workload.access(operand.name).index
    names = ["+".join(index.iterators) or f"#{k}" for k, index in enumerate(access)]
    names = [n if names.count(n) == 1 else f"{n}#{k}" for k, n in enumerate(names)]
    return PackedOperand(
        operand.name,
        operand.dtype,
        operand.original_shape,
        tuple(PackedDimension(n, s) for n, s in zip(names, operand.original_shape, strict=True)),
        tuple(IndexExpr.iterator(n) for n in names),
        tuple(index.substitute(program.axis_map) for index in access),
    )


def check_data_path(program: DerivedProgram, operand: PackedOperand, data: np.ndarray) -> None:
    """The rewrites one after the other move the data as the layout map says, and back."""
    moved = data
    rewrites = [r for r in program.rewrites if r.operand == operand.name]
    for rewrite in rewrites:
        after = forward(rewrite, moved)
        back = inverse(rewrite, after)
        np.testing.assert_array_equal(forward(rewrite, back), after)
        if not isinstance(rewrite, StencilUnroll | ImagePack):
            # A stencil need not read every element; those it skips are not in its layout.
            np.testing.assert_array_equal(back, moved)
        moved = after
    np.testing.assert_array_equal(moved, pack(operand, data))


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(10))
def test_random_programs_compute_their_workload(block: int) -> None:
    count = 0
    for number, program in enumerate(random_programs(range(block * 30, block * 30 + 30))):
        check(program, number)
        count += 1
    assert count > 5


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(10))
def test_random_relaxed_programs_compute_their_workload(block: int) -> None:
    seeds = range(1000 + block * 30, 1030 + block * 30)
    rewrites: set[str] = set()
    for number, program in enumerate(random_programs(seeds, "relaxed")):
        check(program, number)
        rewrites |= {rewrite.name for rewrite in program.rewrites}
    assert {"split", "pad"} <= rewrites
    assert rewrites & {"stencil_unroll", "image_pack", "fuse"}


CUT = [
    (conv2d(n=1, c=3, h=8, w=7, k=9, r=3, s=3, pad=1), "vta_8x8x8"),
    (conv2d(n=2, c=3, h=9, w=8, k=9, r=2, s=3, pad=1, stride=2, layout="NHWC"), "vta_8x8x8"),
    (conv2d(n=1, c=3, h=9, w=9, k=4, r=3, s=2, dilation=2), "amx_int8"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", range(len(CUT)))
def test_images_cut_along_several_axes_compute_their_workload(number: int) -> None:
    """Independent sub-images on two axes at a time: a sample is judged, proven and run."""
    workload, instruction = typed(*CUT[number])
    constraints = load_constraint_set("relaxed")
    found = find_embeddings(workload, instruction, constraints)
    assert found.problem is not None
    cut = [e for e in found.embeddings if sum(d.stride > 1 for d in e.digits["x"]) > 1]
    random.Random(number).shuffle(cut)
    assert len(cut) >= 12
    for embedding in cut[:12]:
        check_embedding(found.problem, constraints, embedding)
        check(derive(workload, instruction, embedding), number)


FLAT = [
    (conv2d(n=1, c=3, h=6, w=7, k=4, r=3, s=3, pad=1, stride=2), "vta_1x16x16"),
    (conv2d(n=2, c=3, h=4, w=5, k=9, r=2, s=3, dilation=2, pad=1, layout="NHWC"), "vta_8x8x8"),
    (conv2d(n=2, c=3, h=4, w=5, k=9, r=2, s=3, pad=1), "avx512_vnni"),
    (conv2d(n=1, c=3, h=5, w=5, k=4, r=3, s=3), "amx_int8"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", range(len(FLAT)))
def test_fused_axes_compute_their_workload(number: int) -> None:
    """Programs over fused axes, a sample of them, are proven and run on the original operands."""
    workload, instruction = typed(*FLAT[number])
    constraints = load_constraint_set("flattened")
    found = find_embeddings(workload, instruction, constraints)
    assert found.problem is not None
    flat = [e for e in found.embeddings if e.flattened]
    random.Random(number).shuffle(flat)
    assert flat
    inputs = random_inputs(workload, number)
    expected = interpret(workload, inputs)
    for embedding in flat[:12]:
        check_embedding(found.problem, constraints, embedding)
        program = derive(workload, instruction, embedding)
        proof = prove(program)
        assert proof.holds, (embedding, proof.failed)
        np.testing.assert_array_equal(execute(program, inputs), expected)
        assert Embedding.from_json(embedding.to_json()) == replace(embedding, origin={})


SHAPES = [
    conv2d(n=1, c=5, h=6, w=7, k=9, r=3, s=3, pad=1),
    conv2d(n=2, c=4, h=5, w=6, k=6, r=3, s=2, pad=(2, 1), stride=2, dilation=(1, 2)),
    conv2d(n=1, c=8, h=5, w=5, k=17, r=1, s=1, layout="NHWC"),
    conv2d(n=3, c=3, h=6, w=6, k=5, r=2, s=2, layout="NHWC", stride=(1, 2), pad=1),
    conv2d(n=1, c=3, h=6, w=6, k=4, r=3, s=3, groups=2, pad=1),
    gemm(m=5, n=7, k=9, trans_b=True),
    gemm(m=17, n=3, k=6, trans_a=True),
    parse_workload(["depthwise", "n=1", "c=6", "h=6", "w=6", "r=3", "s=3"]),
    parse_workload(["conv1d", "n=1", "c=3", "w=11", "k=5", "s=3"]),
    parse_workload(["conv3d", "n=1", "c=2", "d=4", "h=4", "w=4", "k=5", "t=2", "r=2", "s=2"]),
    parse_workload(["O[a,b] += X[b,2*a] * Y[a,k,b]", "a=5", "b=6", "k=7"]),
]
TARGETS = ["vta_1x16x16", "vta_8x8x8", "avx512_vnni", "arm_sdot", "amx_int8"]


@pytest.mark.parametrize("seed", range(6))
def test_outputs_whose_axes_share_an_index_are_proven_or_left_out(seed: int) -> None:
    """``C[3*i + j]``: fused axes may reach an element from several tiles, which is no program."""
    rng = random.Random(seed)
    i, j = rng.randint(2, 6), rng.choice([4, 8, 16])
    coefficient = rng.randint(1, j)
    sizes = {"i": i, "j": j, "k": 8}
    words = [f"C[{coefficient}*i+j] += A[k]*B[i,j,k]", *(f"{a}={n}" for a, n in sizes.items())]
    workload, instruction = typed(parse_workload(words), "avx2_int8")
    embeddings = find_embeddings(workload, instruction, load_constraint_set("fused")).embeddings
    inputs = random_inputs(workload, seed)
    expected = interpret(workload, inputs)
    derived = 0
    for embedding in embeddings[:40]:
        try:
            program = derive(workload, instruction, embedding)
        except TransformError:
            continue
        derived += 1
        proof = prove(program)
        assert proof.holds, (embedding, proof.failed)
        np.testing.assert_array_equal(execute(program, inputs), expected)
    assert derived


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shipped_targets_compute_every_operator(target: str, shape: object) -> None:
    spec = load_hardware_spec(target)
    names = [operand.name for operand in shape.operands]  # type: ignore[attr-defined]
    workload = shape.with_dtypes(  # type: ignore[attr-defined]
        dict(zip(names, default_dtypes(spec), strict=True))
    )
    # AMX takes 16 extents of x, and with stencils a hundred embeddings: one set is enough here.
    constraints = "strict_padded" if target == "amx_int8" else DEFAULT_CONSTRAINTS
    result = solve(workload, spec, constraints=constraints, top=3)
    if result.conflict is not None:
        # A product-sum without a matching role (depthwise has no axis in W and O only).
        assert result.conflict.words
        return
    for ranked in result.embeddings:
        check(ranked.candidate.program, ranked.rank)


@pytest.mark.slow
def test_amx_rows_are_fed_in_place_from_a_strided_padded_image() -> None:
    workload = conv2d(n=1, c=5, h=6, w=9, k=6, r=3, s=3, stride=2, pad=1, layout="NHWC")
    result = solve(workload, "amx_int8", constraints=DEFAULT_CONSTRAINTS, top=None)
    assert {"p", "q"} <= {
        axis for e in result.embeddings for axis in e.candidate.embedding.family["x"]
    }
    for ranked in result.embeddings[::7]:
        check(ranked.candidate.program, ranked.rank)


WINDOWS = [
    (conv2d(n=2, c=3, h=6, w=9, k=4, r=3, s=3, pad=1, stride=2, layout="NHWC"), "amx_int8"),
    (conv2d(n=1, c=5, h=4, w=6, k=4, r=2, s=3, layout="NHWC"), "amx_int8"),
    (conv2d(n=1, c=3, h=5, w=6, k=4, r=2, s=2, pad=1, layout="NHWC"), "avx512_vnni"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_a_fused_window_of_a_channels_last_image_is_read_in_place(number: int) -> None:
    """Columns and channels are one dimension: nothing is unrolled, no element is there twice."""
    workload, instruction = typed(*WINDOWS[number])
    found = find_embeddings(workload, instruction, load_constraint_set("flattened"))
    windows = [
        e
        for e in found.embeddings
        if tuple(e.flattened.values()) == (("s", "c"),)
        and len(e.digits["z"]) == 1
        and [d.axis for d in e.digits.get("x", ())] in ([], ["q"])
    ]
    random.Random(number).shuffle(windows)
    assert windows
    inputs = random_inputs(workload, number)
    expected = interpret(workload, inputs)
    for embedding in windows[:8]:
        program = derive(workload, instruction, embedding)
        image = program.operand("I")
        assert [d.name for d in image.dimensions if "s" in d.name.split("+")] == ["q+s+c"]
        assert image.dimensions[-1].name == "q+s+c"
        assert not any(isinstance(rewrite, StencilUnroll) for rewrite in program.rewrites)
        proof = prove(program)
        assert proof.holds, (embedding, proof.failed)
        np.testing.assert_array_equal(execute(program, inputs), expected)
        check_data_path(program, image, inputs["I"])


def packed(name: str, program: DerivedProgram) -> list[str]:
    return [dimension.name for dimension in program.operand(name).dimensions]


def test_channels_last_keeps_channels_last() -> None:
    for layout, expected in (
        ("NCHW", ["n", "c.o", "p+r", "q+s", "c.i"]),
        ("NHWC", ["n", "p+r", "q+s", "c.o", "c.i"]),
    ):
        workload = conv2d(n=1, c=32, h=6, w=6, k=16, r=3, s=3, layout=layout)
        program = (
            solve(workload, "vta_1x16x16", constraints="strict").embeddings[0].candidate.program
        )
        assert packed("I", program) == expected


COMPLEX_FILTER = (
    "R[m,0] += A[2*m+k,0]*B[k,0] - A[2*m+k,1]*B[k,1]; "
    "R[m,1] += A[2*m+k,0]*B[k,1] + A[2*m+k,1]*B[k,0]"
)
NAMES_AND_SHAPES = {
    "a scalar result": ("C[] += A[k] * B[k]", "k=20", "dot"),
    "axes called like lanes": ("O[y] += A[2*y,x,z] * B[x,z]", "y=5 x=6 z=4", "gemv"),
    "two sums with the same rest": ("O[m,n] += A[m+j,m+k] * B[j,k,n]", "m=2 n=9 k=4 j=3", "gemv"),
    "ports of a result in one tile": (
        COMPLEX_FILTER,
        "m=3 k=5",
        "complex_mac",
    ),
    "fused axes of ports": (
        "C[i,j] = max(min(A[j,0,i]*B[i,j,0] + A[j,1,i]*B[i,j,1], 32767), -32768)",
        "i=5 j=5",
        "avx2_maddubs",
    ),
}


@pytest.mark.parametrize("name", NAMES_AND_SHAPES)
def test_names_and_shapes_do_not_matter(name: str) -> None:
    text, sizes, target = NAMES_AND_SHAPES[name]
    result = solve(
        described([text, *sizes.split()], target), target, constraints="flattened", top=None
    )
    assert result.embeddings
    assert all("along a diagonal" in reason for reason in result.not_derivable)
    assert_programs_compute(result, 1)


def test_an_element_that_would_be_repeated_is_refused_in_words() -> None:
    """Only without ``all_different`` may an element feed many of the instruction's."""
    target, constraints = load_hardware_spec("vta_8x8x8"), load_constraint_set("relaxed")
    workload = parse_workload(["O[m,n] += A[m,k] * B[n]", "m=8", "n=8", "k=8"])
    none = constraints.replacing(AllDifferent("none"))
    assert solve(workload, target, constraints=none).not_derivable
    assert all(
        "no rewrite repeats it" in r
        for r in solve(workload, target, constraints=none).not_derivable
    )
    assert solve(workload, target, constraints=constraints).conflict is not None


def test_one_element_feeds_one() -> None:
    """A scalar is not the row of a matrix, whichever model is searched."""
    for text in ("O[b,a] += A[2*a+b+1,x] * B[]", "O[b,a] += A[a,b,x] * B[]"):
        workload = described([text, "a=3", "b=4", "x=2"], "vta_1x16x16")
        assert solve(workload, "vta_1x16x16", constraints="complete").conflict is not None


@pytest.mark.parametrize("index", ["k,k", "k+j,k,j"])
def test_a_diagonal_is_refused_in_words(index: str) -> None:
    text = f"O[m] += A[{index}] * B[m,{index}]"
    sizes = {name: size for name, size in (("m", 4), ("k", 8), ("j", 3)) if name in text}
    words = [text, *(f"{name}={size}" for name, size in sizes.items())]
    result = solve(described(words, "arm_sdot"), "arm_sdot", constraints="relaxed", top=None)
    assert result.not_derivable
    assert all("along a diagonal" in reason for reason in result.not_derivable)


def test_an_operand_that_is_already_right_is_used_in_place() -> None:
    workload = conv2d(n=1, c=64, h=8, w=16, k=16, r=1, s=1, layout="NHWC")
    workload = workload.with_dtypes({"I": "uint8"})
    best = solve(workload, "amx_int8", constraints="in_place").embeddings[0]
    assert best.overheads.in_place == ("I", "O")


def test_what_several_points_write_stays_in_one_place() -> None:
    """Where a layout would hold an element of the output twice, there is no program; the others
    compute the sums."""
    given = described("C[3*i+k] += A[i,y] * B[k,y] i=6 k=8 y=16", target="arm_sdot")
    found = solve(given, "arm_sdot", constraints="relaxed", top=None)
    assert found.embeddings
    assert any("would then lie in several places" in why for why in found.not_derivable)
    inputs = random_inputs(given, 3)
    for ranked in found.embeddings:
        program = ranked.candidate.program
        assert np.array_equal(execute(program, inputs), interpret(given, inputs))

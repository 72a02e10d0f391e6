"""The proof by lemmas gives the verdict of the proof on the whole program, word by word."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cpembed.driver.solve import solve
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.hw.instruction import (
    HardwareSpec,
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.computation import Computation
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram, PackedDimension
from cpembed.transform.proof import SharedLemmas, general, prove, prove_whole
from tests.programs import random_programs
from tests.unit.transform.test_proof import computes_workload, mutate

CONTRACTION = "O[n,p,q,k] += I[n,p,q,c,d] * W[k,c,d]"
CONSTRAINTS = ["strict", "strict_padded", "in_place", "in_place_padded", "relaxed"]


def matrix_instruction(rng: random.Random) -> Instruction:
    """A small matrix instruction; its tiles are dense, interleaved or of rows at any distance."""
    extents = {"x": rng.choice([4, 8]), "y": 4, "z": rng.choice([4, 8])}
    computation = parse_computation("C[x,y] += A[x,z] * B[z,y]", extents, name="matrix")
    x, y, z = (TileDimension(name) for name in "xyz")
    interleaved = (TileDimension("z", 2), y, TileDimension("z", 1, 2))
    rows = {"x": StrideRule.ANY} if rng.random() < 0.5 else {}
    memory = {
        "A": OperandMemory("m", (x, z), rows),
        "B": OperandMemory("m", rng.choice([(z, y), (y, z), interleaved])),
        "C": OperandMemory("m", (x, y), rows) if rows else OperandMemory("m", (y, x)),
    }
    axes = tuple(InstructionAxis(name, size, size) for name, size in extents.items())
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("matrix", axes, computation, dtypes, memory)


def random_digits(rng: random.Random, axes: str, extent: int, sizes: dict[str, int]) -> list[Digit]:
    """Digits of different axes, strided at random, that fill an instruction axis."""
    found: list[Digit] = []
    left = list(axes)
    while extent > 1:
        axis = left.pop(rng.randrange(len(left)))
        count = rng.choice([c for c in (2, 4, 8) if extent % c == 0]) if left else extent
        stride = rng.choice([1, 1, 2, -(-sizes[axis] // count)])
        found.append(Digit(axis, count, stride))
        extent //= count
    return found


def hand_programs(seeds: range) -> Iterator[DerivedProgram]:
    """Programs with several digits a lane and strided digits, on a contraction of many axes."""
    for seed in seeds:
        rng = random.Random(seed)
        instruction = matrix_instruction(rng)
        sizes = {axis: rng.randint(1, 5) for axis in "npqkcd"}
        workload = parse_computation(CONTRACTION, sizes, name="contraction")
        digits = {
            lane: tuple(random_digits(rng, axes, instruction.extents[lane], sizes))
            for lane, axes in (("x", "npq"), ("y", "k"), ("z", "cd"))
        }
        roles = {"A": "I", "B": "W", "C": "O"}
        yield derive(workload, instruction, Embedding(roles, instruction.extents, digits))


def unrolled_convolution(extents: dict[str, int]) -> DerivedProgram:
    """A convolution over an image with ``p`` and ``r`` unrolled: packed elements are duplicates."""
    workload = parse_computation("O[p,k] += I[p+r] * W[r,k]", extents, name="unrolled")
    sizes = {"x": 4, "y": 4, "z": 2}
    instruction = matrix_instruction(random.Random(0))
    computation = parse_computation("C[x,y] += A[x,z] * B[z,y]", sizes, name="matrix")
    memory = {
        name: OperandMemory("m", tuple(TileDimension(axis) for axis in tile))
        for name, tile in (("A", "xz"), ("B", "zy"), ("C", "xy"))
    }
    axes = tuple(InstructionAxis(name, size, size) for name, size in sizes.items())
    instruction = replace(instruction, axes=axes, computation=computation, memory=memory)
    digits = {"x": (Digit("p", 4),), "y": (Digit("k", 4),), "z": (Digit("r", 2),)}
    embedding = Embedding({"A": "I", "B": "W", "C": "O"}, sizes, digits)
    # Derived from a matrix in the image's place; its two dimensions then walk the image's one.
    plain = parse_computation("O[p,k] += I[p,r] * W[r,k]", extents, name="matrix")
    program = derive(plain, instruction, embedding)
    image = program.operand("I")
    row, column = image.source
    merged = replace(image, original_shape=workload.operand("I").shape, source=(row + column,))
    operands = tuple(merged if o.name == "I" else o for o in program.operands)
    return replace(program, workload=workload, operands=operands)


def rewire(program: DerivedProgram, rng: random.Random) -> DerivedProgram:
    """A fault in how the parts are connected: another iterator, digit or order."""
    kind = rng.choice(["axes", "iterator", "access", "source", "lane", "shape"])
    operands = list(program.operands)
    position = rng.randrange(len(operands))
    operand = operands[position]
    if kind == "axes":
        first, second = (rng.choice(sorted(program.axis_map)) for _ in range(2))
        changed = dict(program.axis_map)
        changed[first], changed[second] = changed[second], changed[first]
        return replace(program, axis_map=changed)
    if kind == "iterator":
        axis = rng.choice(sorted(program.axis_map))
        other = rng.choice(sorted(program.extents))
        changed = rewired(program.axis_map[axis], other, rng)
        return replace(program, axis_map={**program.axis_map, axis: changed})
    if kind == "lane":
        lanes = list(program.instruction_axes)
        at = rng.randrange(len(lanes))
        lanes[at] = replace(lanes[at], extent=max(1, lanes[at].extent + rng.choice([-1, 1, 4])))
        return replace(program, instruction_axes=tuple(lanes))
    if not operand.source:
        return program
    if kind == "access":
        indices = list(operand.access)
        at = rng.randrange(len(indices))
        indices[at] = rewired(indices[at], rng.choice(sorted(program.extents)), rng)
        operands[position] = replace(operand, access=tuple(indices))
    elif kind == "source":
        indices = list(operand.source)
        at = rng.randrange(len(indices))
        indices[at] = rewired(indices[at], rng.choice(operand.dimensions).name, rng)
        operands[position] = replace(operand, source=tuple(indices))
    else:
        dimensions = list(operand.dimensions)
        at = rng.randrange(len(dimensions))
        old = dimensions[at]
        dimensions[at] = PackedDimension(old.name, old.extent + rng.choice([1, 3]), old.lane)
        operands[position] = replace(operand, dimensions=tuple(dimensions))
    return replace(program, operands=tuple(operands))


def rewired(index: IndexExpr, name: str, rng: random.Random) -> IndexExpr:
    """One term moved to another iterator, or a new one of it added."""
    terms = list(index.terms)
    if terms and rng.random() < 0.7:
        at = rng.randrange(len(terms))
        terms[at] = replace(terms[at], iterator=name)
    else:
        terms.append(IndexTerm(name, rng.choice([1, 2])))
    return IndexExpr.sum(terms, index.constant)


def agree(programs: Iterator[DerivedProgram], each: int) -> tuple[int, int]:
    """(mutants, accepted ones) of programs on which both proofs say the same.

    A mutant shares layouts with its program, so what was shown of these is at hand.
    """
    mutants = accepted = 0
    for number, program in enumerate(programs):
        shared = SharedLemmas()
        assert prove(program, shared) == prove_whole(program), program
        rng = random.Random(number)
        for _ in range(each):
            mutant = rng.choice([mutate, rewire])(program, rng)
            if mutant == program:
                continue
            proof = prove(mutant, shared)
            assert proof == prove_whole(mutant), mutant
            mutants += 1
            accepted += proof.holds
    return mutants, accepted


@pytest.mark.quick(2)
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_random_programs_have_the_verdict_of_the_whole_proof(constraints: str) -> None:
    mutants, accepted = agree(random_programs(range(15), constraints), 5)
    assert 0 < accepted < mutants / 2


@pytest.mark.slow
def test_several_and_strided_digits_have_the_verdict_of_the_whole_proof() -> None:
    mutants, accepted = agree(hand_programs(range(12)), 5)
    assert 0 < accepted < mutants / 2


@pytest.mark.slow
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_thousands_of_mutants_have_the_verdict_of_the_whole_proof(constraints: str) -> None:
    mutants, _ = agree(random_programs(range(15, 250), constraints), 12)
    assert mutants > 500


@pytest.mark.slow
def test_a_thousand_mutants_with_digits_have_the_verdict_of_the_whole_proof() -> None:
    mutants, _ = agree(hand_programs(range(12, 132)), 12)
    assert mutants > 1000


@pytest.fixture
def no_whole_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[str]:
        pytest.fail("the lemmas did not show an obligation")

    for obligation in ("coverage", "access", "neutral", "output", "tile"):
        monkeypatch.setattr(general, obligation, refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("no_whole_proof")
def test_lemmas_suffice_for_derived_programs() -> None:
    programs = list(random_programs(range(60)))
    programs += random_programs(range(1000, 1100), "relaxed")
    programs += hand_programs(range(100))
    digits = [d for p in programs for ds in p.embedding.digits.values() for d in ds]
    assert any(digit.stride > 1 for digit in digits)
    assert all(prove(program).holds for program in programs)


def test_hand_programs_compute_their_workload() -> None:
    for seed, program in enumerate(hand_programs(range(15))):
        assert computes_workload(program, seed)


@pytest.mark.usefixtures("no_whole_proof")
@pytest.mark.parametrize("p, k, r", [(8, 4, 2), (5, 3, 3), (1, 1, 1)])
def test_an_unrolled_image_is_proven_by_lemmas(p: int, k: int, r: int) -> None:
    program = unrolled_convolution({"p": p, "k": k, "r": r})
    assert prove(program).holds
    assert computes_workload(program, 0)


def test_mutants_of_an_unrolled_image_have_the_verdict_of_the_whole_proof() -> None:
    program = unrolled_convolution({"p": 5, "k": 3, "r": 3})
    assert agree(iter([program]), 60)[0] > 30


def test_duplicates_of_an_output_are_refused() -> None:
    program = unrolled_convolution({"p": 8, "k": 4, "r": 4})
    output = program.operand("O")
    twice = replace(
        output,
        dimensions=(PackedDimension("copy", 2), *output.dimensions),
        access=(IndexExpr.iterator("r.o"), *output.access),
    )
    wrong = replace(program, operands=(*program.operands[:-1], twice))
    assert prove(wrong).failed == prove_whole(wrong).failed
    assert prove(wrong).failed == ("output: an element is written to two places",)
    # A layout with room for copies is right as long as the program writes one of them.
    once = replace(twice, access=(IndexExpr(), *output.access))
    right = replace(program, operands=(*program.operands[:-1], once))
    assert prove(right).holds
    assert prove_whole(right).holds


def test_shared_digits_are_left_to_the_whole_proof() -> None:
    """Two axes along one loop: a diagonal, which covers nothing but itself."""
    program = unrolled_convolution({"p": 8, "k": 8, "r": 2})
    moved = program.axis_map["k"].rename(lambda name: "p.o" if name == "k.o" else name)
    diagonal = {**program.axis_map, "k": moved}
    wrong = replace(program, axis_map=diagonal)
    assert prove(wrong).failed == prove_whole(wrong).failed
    assert "coverage: the loops do not reach every point" in prove(wrong).failed


def test_only_factors_of_a_sum_make_padding_neutral() -> None:
    workload = parse_computation("O[i] += A[i,k] * B[k]", {"i": 2, "k": 2}, name="w")
    left, right = workload.reads

    def absorbing(value: Operation | Access, reduction: str = "add") -> tuple[str, ...]:
        changed: Computation = replace(
            workload, statements=(replace(workload.statement, value=value, reduction=reduction),)
        )
        return general.absorbing(changed)

    assert absorbing(Operation("mul", (left, right))) == ("O", "A", "B")
    assert absorbing(Operation("mul", (Operation("add", (left, left)), right))) == ("O", "B")
    assert absorbing(Operation("add", (left, right))) == ("O",)
    assert absorbing(Operation("mul", (left, right)), "max") == ("O",)


@pytest.mark.slow
def test_lanes_of_two_axes_in_digits_that_end_at_neither() -> None:
    """x counts 3 pixels for each of 2 images, and pairs of its 6 points are stored together: a
    pixel is a digit of a sum, of which the lemmas do not speak."""
    axes = InstructionAxis("x", 2, 8, 2), InstructionAxis("z", 2, 2)
    pairs = (TileDimension("x", 2), TileDimension("z"), TileDimension("x", 1, 2))
    memory = {
        "A": OperandMemory("local", pairs),
        "B": OperandMemory("local", (TileDimension("z"),)),
        "C": OperandMemory("local", (TileDimension("x"),)),
    }
    computation = parse_computation("C[x] += A[x,z] * B[z]", {"x": 8, "z": 2})
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    spec = HardwareSpec("pairs", "", "", Instruction("pairs", axes, computation, dtypes, memory))
    workload = parse_computation(
        "O[n,k,q] += I[n,c,q+s] * W[k,c,s]", {"n": 2, "k": 4, "q": 6, "c": 8, "s": 3}
    )
    found = [
        item.candidate.program
        for item in solve(workload, spec, constraints="complete", top=40).embeddings
    ]
    of_sums = [
        program
        for program in found
        if any(t.inner is not None for o in program.operands for i in o.source for t in i.terms)
    ]
    assert of_sums
    assert all(prove(program).holds for program in of_sums)

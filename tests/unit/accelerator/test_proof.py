"""Programs are proven if, and only if, they compute their specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.accelerator.program import (
    Address,
    Content,
    Issue,
    Loop,
    MainTensor,
    Meaning,
    Node,
    Program,
)
from cpembed.accelerator.proof import ProgramProof, prove, require
from cpembed.accelerator.specification import Specification, Statement
from cpembed.errors import BackendUnavailable, ExecutionFault, InvariantError
from cpembed.hw.isa import IMMEDIATE, Channel, InstructionSet, Synchronization
from cpembed.ir.index import IndexExpr
from cpembed.ir.parser import parse_computation
from tests.unit.accelerator.machines import (
    instruction,
    machine,
    main,
    place,
    rows_memory,
    systolic,
)
from tests.unit.accelerator.proof_mutants import mutant
from tests.unit.accelerator.proof_programs import (
    Product,
    chain,
    convolution,
    index,
    pooling,
)

PROGRAMS: dict[str, Callable[[], Program]] = {
    "product": Product(20, 24, 17).program,
    "requantized": Product(40, 33, 50, (2, 1, 2), with_bias=True, is_requantized=True).program,
    "panel": Product(40, 33, 50, (2, 2, 1), 1, keeps_a=True).program,
    "chain": chain,
    "convolution": convolution,
    "pooling": pooling,
}


def by_isl(program: Program) -> ProgramProof:
    return prove(program)


def by_enumeration(program: Program) -> ProgramProof:
    return prove(program, isl_seconds=0)


def results_are_right(program: Program, seed: int = 0) -> bool:
    """Execute a program, and compare its outputs with the specification's; False for a fault."""
    generator = np.random.default_rng(seed)
    specification = program.specification
    assert specification is not None
    arrays: dict[str, Any] = dict(specification.constants)
    for name in specification.inputs:
        arrays[name] = generator.integers(-128, 128, program.tensors[name].shape).astype(np.int8)
    buffers = {
        name: program.tensors[name].buffer(array)
        for name, array in arrays.items()
        if name in program.tensors
    }
    expected = specification.evaluate(arrays)
    try:
        run = execute(program, buffers, seed)
    except ExecutionFault:
        return False
    except BackendUnavailable:
        pytest.skip("no C++ compiler")
    return all(
        np.array_equal(program.tensors[name].array(run.buffers[name]), expected[name])
        for name in specification.outputs
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_correct_programs_are_proven_by_both_mechanisms(name: str) -> None:
    program = PROGRAMS[name]()
    proof = by_isl(program)
    assert proof.holds, proof.refusal
    assert proof.mechanism == "isl"
    enumerated = by_enumeration(program)
    assert enumerated.holds, enumerated.refusal
    assert enumerated.mechanism == "enumeration"
    assert [o.name for o in proof.obligations] == [o.name for o in enumerated.obligations]
    assert results_are_right(program)


def random_product(random: Random) -> Product:
    """Return a product of random sizes, tiles, order and residency that fits the machine."""
    m, n, k = (random.randint(1, 50) for _ in range(3))
    tile = random.choice([(1, 1, 1), (2, 1, 2), (1, 2, 1), (2, 2, 1), (1, 1, 2), (1, 2, 2)])
    product = Product(
        m, n, k, tile, random.choice((1, 2)), random.random() < 0.5, random.random() < 0.5,
        order=random.choice(("mn", "nm")),
    )  # fmt: skip
    fits = tile[0] * tile[2] * product.counts["k0"] <= 8
    return replace(product, keeps_a=fits and product.order == "mn" and random.random() < 0.5)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_proven_by_both_mechanisms(seed: int) -> None:
    product = random_product(Random(seed))
    program = product.program()
    # In the other order the counter of double buffers is not the one of the text, and still right.
    for proof in (by_isl(program), by_enumeration(program)):
        assert proof.holds, (product, proof.refusal)
    assert by_isl(program).mechanism == "isl", product


def test_random_convolutions_are_proven_by_both_mechanisms() -> None:
    random = Random(3)
    for _ in range(4):
        sizes = random.randint(1, 9), random.randint(1, 14), random.randint(1, 16)
        program = convolution(*sizes, random.choice((16, 7)))
        for proof in (by_isl(program), by_enumeration(program)):
            assert proof.holds, (sizes, proof.refusal)


def check_mutants(seed: int, count: int) -> int:
    """Check that no wrong mutant is proven, and return the number that is refused."""
    random = Random(seed)
    programs = [make() for make in PROGRAMS.values()]
    refused = 0
    for _ in range(count):
        kind, changed = mutant(random.choice(programs), random)
        proof, enumerated = by_isl(changed), by_enumeration(changed)
        assert proof.holds == enumerated.holds, (kind, proof.refusal, enumerated.refusal)
        if not proof.holds:
            assert "\n" not in proof.refusal
            refused += 1
        else:
            assert results_are_right(changed), (changed.name, kind, proof.mechanism)
    return refused


def test_wrong_mutants_are_refused() -> None:
    assert check_mutants(1, 40) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_wrong_mutants_are_refused(seed: int) -> None:
    assert check_mutants(seed, 150) > 75


# -- what a refusal says --------------------------------------------------------------------------


def changed_issue(program: Program, note: str, change: Callable[[Issue], Issue | None]) -> Program:
    """Return a program in which an instruction of the text is changed, or removed."""

    def rewrite(body: tuple[Node, ...]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for node in body:
            if isinstance(node, Loop):
                nodes.append(replace(node, body=rewrite(node.body)))
            elif node.note == note:
                new = change(node)
                nodes += [] if new is None else [new]
            else:
                nodes.append(node)
        return tuple(nodes)

    return replace(program, body=rewrite(program.body))


def moved(operand: str, distance: int) -> Callable[[Issue], Issue]:
    """Return a change of the place of an operand."""

    def change(issue: Issue) -> Issue:
        address = issue.operands[operand]
        new = replace(address, base=address.base + distance)
        return replace(issue, operands={**issue.operands, operand: new})

    return change


def test_a_refusal_names_execution_element_place_and_writer() -> None:
    program = changed_issue(PROGRAMS["requantized"](), "multiply", moved("A", 1))
    refusal = prove(program).refusal
    assert refusal == (
        "matmul (multiply) at m0=0, n0=0, k0=0, mi=0, ni=0, ki=0: A is claimed to hold A[0, 0], "
        "and row 1 of scratchpad, byte 0 holds A[1, 0], written by mvin (load A) at m0=0, n0=0, "
        "k0=0, mi=0, ki=0"
    )
    with pytest.raises(InvariantError, match="claimed to hold"):
        require(program)


def test_a_stale_stride_is_refused() -> None:
    program = changed_issue(PROGRAMS["product"](), "stride of B", lambda issue: None)
    proof = prove(program)
    assert "S is claimed to hold B[1, 0]" in proof.refusal
    assert not results_are_right(program)


def test_a_register_that_nothing_wrote_is_refused() -> None:
    program = changed_issue(PROGRAMS["requantized"](), "", lambda issue: None)
    assert "reads register scale, which nothing has written" in prove(program).refusal


def test_another_scale_is_refused() -> None:
    program = changed_issue(
        PROGRAMS["requantized"](),
        "",
        lambda i: replace(i, operands={**i.operands, "V": Address(value=0.5)}),
    )
    assert "computes int8((S[r, e] * 0.5))" in prove(program).refusal


def test_buffers_that_are_reused_too_early_are_refused() -> None:
    # All of A's tiles are loaded before the first product, into two buffers.
    product = Product(16, 16, 64)
    program = product.program()
    loop = next(node for node in program.body if isinstance(node, Loop))
    names: list[str] = []

    def split(node: Loop) -> tuple[Node, ...]:
        names.append(node.name)
        if node.name != "k0":
            body = tuple(m for n in node.body for m in (split(n) if isinstance(n, Loop) else (n,)))
            return (replace(node, body=body),)
        loads = replace(node, body=node.body[:2])
        return (loads, replace(node, body=node.body[2:]))

    early = replace(program, body=split(loop))
    assert "k0" in names
    assert "is claimed to hold" in prove(early).refusal


def test_a_bank_that_two_operands_share_is_refused() -> None:
    program = PROGRAMS["product"]()

    def near(operand: str) -> Callable[[Issue], Issue]:
        def change(issue: Issue) -> Issue:
            address = issue.operands[operand]
            new = replace(address, base=IndexExpr(address.base.terms, 32))
            return replace(issue, operands={**issue.operands, operand: new})

        return change

    program = changed_issue(program, "load B", near("D"))
    refusal = prove(changed_issue(program, "multiply", near("B"))).refusal
    assert "A and B are both in bank 0 of scratchpad" in refusal


def test_a_specification_is_needed() -> None:
    program = replace(PROGRAMS["product"](), specification=None)
    assert "has no specification" in prove(program).refusal


# -- margins, sums and types ----------------------------------------------------------------------


def test_margins_have_to_be_the_zeros_of_the_statement() -> None:
    program = convolution()
    image = replace(program.tensors["I"], fill=1)
    wrong = replace(program, tensors={**program.tensors, "I": image})
    for proof in (by_isl(wrong), by_enumeration(wrong)):
        assert "is claimed to hold the number 0" in proof.refusal


def test_margins_of_inputs_may_be_declared_spoiled() -> None:
    program = convolution()
    assert prove(program).spoiled_margins == ()
    for seconds in (20.0, 0.0):
        proof = prove(program, spoiled_margins=["I"], isl_seconds=seconds)
        assert "holds a value that no claim describes" in proof.refusal


def padded_product(fill: int, dtype: str = "int32") -> Program:
    """Return a product that multiplies and stores full tiles, over margins of its tensors."""
    program = Product(20, 24, 17).program()
    full = IndexExpr((), 16)
    margins = {"A": (12, 15), "B": (15, 8), "C": (12, 8)}
    tensors = {
        name: replace(tensor, after=margins[name], fill=fill if name == "A" else 0)
        for name, tensor in program.tensors.items()
    }

    def widen(body: tuple[Node, ...]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for node in body:
            if isinstance(node, Loop):
                nodes.append(replace(node, body=widen(node.body)))
                continue
            new = replace(node, sizes=dict.fromkeys(node.sizes, (full,)))
            pitch = {"A": 32, "B": 32, "C": 32}
            if node.instruction == "set_stride":
                new = replace(new, operands={**node.operands, "V": Address(index(32))})
            operands = dict(new.operands)
            for key, address in operands.items():
                if address.tensor:
                    content = node.contents[key]
                    first = [i.substitute({"r": IndexExpr(), "e": IndexExpr()})
                             for i in content.index]  # fmt: skip
                    step = pitch[address.tensor]
                    base = first[0].times(step) + first[1]
                    strides = dict.fromkeys(address.strides, step)
                    operands[key] = replace(address, base=base, strides=strides)
            nodes.append(replace(new, operands=operands))
        return tuple(nodes)

    return replace(program, tensors=tensors, body=widen(program.body))


def test_products_with_zeros_of_margins_are_neutral() -> None:
    program = padded_product(0)
    for proof in (by_isl(program), by_enumeration(program)):
        assert proof.holds, proof.refusal
    assert results_are_right(program)
    # B's margins are zeros: whatever A has there, products are zero, but sums of margins may not.
    program = padded_product(7)
    for proof in (by_isl(program), by_enumeration(program)):
        assert proof.holds, proof.refusal
    assert results_are_right(program)
    both = replace(program, tensors={
        name: replace(tensor, fill=7) for name, tensor in program.tensors.items()})  # fmt: skip
    for proof in (by_isl(both), by_enumeration(both)):
        assert "none of the statement's" in proof.refusal
    assert not results_are_right(both)


def test_outputs_whose_margins_are_overwritten_are_listed() -> None:
    assert by_enumeration(padded_product(0)).spoiled_margins == ()
    program = padded_product(0)
    # A store that is not the number of the margin's fill.
    output = replace(program.tensors["C"], fill=3)
    changed = replace(program, tensors={**program.tensors, "C": output})
    for proof in (by_isl(changed), by_enumeration(changed)):
        assert proof.holds, proof.refusal
        assert proof.spoiled_margins == ("C",)


@pytest.mark.parametrize("number, is_least", [(-128, True), (-127, False), (0, False)])
def test_a_maximum_begins_from_the_least_number_of_its_type(number: int, is_least: bool) -> None:
    program = pooling(begins_with=number)
    for proof in (by_isl(program), by_enumeration(program)):
        assert proof.holds == is_least, proof.refusal


def test_a_sum_may_be_computed_again_from_its_beginning() -> None:
    program = Product(20, 24, 17).program()
    twice = replace(program, body=(*program.body, *program.body))
    proof = prove(twice)
    assert proof.holds, proof.refusal
    assert proof.mechanism == "enumeration"
    assert results_are_right(twice)


def test_a_point_that_is_added_twice_is_refused() -> None:
    program = PROGRAMS["product"]()

    def doubled(body: tuple[Node, ...]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for node in body:
            inner = replace(node, body=doubled(node.body)) if isinstance(node, Loop) else node
            nodes += [inner] * (1 if isinstance(node, Loop) or node.note != "multiply" else 2)
        return tuple(nodes)

    refusal = prove(replace(program, body=doubled(program.body))).refusal
    assert "a second time" in refusal


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_sum_that_begins_anew_in_the_middle_is_refused(with_bias: bool) -> None:
    program = Product(20, 24, 40, with_bias=with_bias).program()

    def rewrite(node: Node) -> Node:
        if not isinstance(node, Loop):
            return node
        if any(isinstance(n, Loop) and n.name == "k0" for n in node.body):
            begin, tile, *rest = node.body
            assert isinstance(tile, Loop)
            return replace(node, body=(replace(tile, body=(begin, *tile.body)), *rest))
        return replace(node, body=tuple(map(rewrite, node.body)))

    wrong = replace(program, body=tuple(map(rewrite, program.body)))
    proof = prove(wrong)
    assert "is claimed to hold C[0, 0] of" in proof.refusal or "after" in proof.refusal
    assert not results_are_right(wrong)


def sum_of_rows(previous: tuple[int, int, int]) -> Program:
    """Return a sum of three rows, each added to the partial sum in the row that is named."""
    row = place("rows", "int32", "r e", rows="r", lanes="e", strides={"r": 1})
    in_main = place("dram", "int32", "r e", strides={"r": 4, "e": 1})
    axes = {"r": 1, "e": 4}
    described = machine(
        "vector",
        [main(), rows_memory("rows", 16, 16)],
        ("unit",),
        [
            instruction("read", "unit", "D[r,e] = S[r,e]", axes, {"D": row, "S": in_main}),
            instruction("write", "unit", "D[r,e] = S[r,e]", axes, {"D": in_main, "S": row}),
            instruction(
                "zero",
                "unit",
                "D[r,e] = V[] * 0",
                axes,
                {"D": row, "V": place(IMMEDIATE, "int32")},
            ),
            instruction(
                "add", "unit", "D[r,e] = P[r,e] + S[r,e]", axes, {"D": row, "P": row, "S": row}
            ),
        ],
    )
    sums = parse_computation(
        "O[x,e] += X[k,e,x]", {"x": 1, "e": 4, "k": 3}, dtypes={"X": "int32", "O": "int32"}
    )
    result = Content("O", (index(r=1), index(e=1)))
    body: list[Node] = [
        Issue(
            "zero", {"D": Address(index(8)), "V": Address()}, contents={"D": result}, note="begin"
        )
    ]
    for k, source in enumerate(previous):
        element = Content("X", (index(k), index(e=1), index(r=1)))
        body += [
            Issue(
                "read",
                {"D": Address(index(k)), "S": Address(index(4 * k), "X")},
                contents={"D": element, "S": element},
            ),
            Issue(
                "add",
                {"D": Address(index(9 + k)), "P": Address(index(source)), "S": Address(index(k))},
                contents={"D": result, "P": result, "S": element},
                meaning=Meaning(0, {"x": index(r=1), "e": index(e=1), "k": index(k)}),
                note=f"add row {k}",
            ),
        ]
    body.append(
        Issue(
            "write",
            {"D": Address(index(), "O"), "S": Address(index(11))},
            contents={"D": result, "S": result},
        )
    )
    tensors = {
        "X": MainTensor.dense("X", (3, 4, 1), "int32", "input"),
        "O": MainTensor.dense("O", (1, 4), "int32", "output"),
    }
    specification = Specification("sum", (Statement(sums),), ("X",), ("O",), {})
    return Program("sum", described, tensors, tuple(body), specification)


def test_partial_sums_may_move_and_form_one_chain() -> None:
    for proof in (by_isl(sum_of_rows((8, 9, 10))), by_enumeration(sum_of_rows((8, 9, 10)))):
        assert proof.holds, proof.refusal
    assert by_isl(sum_of_rows((8, 9, 10))).mechanism == "isl"
    # Two of them go on from one partial sum, or from the beginning.
    for previous in ((8, 9, 9), (8, 8, 10), (8, 9, 8)):
        assert not by_isl(sum_of_rows(previous)).holds
        assert not by_enumeration(sum_of_rows(previous)).holds


def test_bytes_of_a_wider_element_are_no_elements() -> None:
    # The accumulator's words are read as bytes of the claimed tensor.
    machine = systolic()
    wide = machine.instructions["mvout_full"]
    place = replace(wide.places["S"], dtype="int8")
    narrow = replace(
        wide,
        name="mvout_bytes",
        computation=wide.computation.with_dtypes({"S": "int8"}),
        places={**wide.places, "S": place},
    )
    machine = replace(machine, instructions={**machine.instructions, narrow.name: narrow})
    program = changed_issue(
        Product(20, 24, 17).program(machine),
        "store",
        lambda issue: replace(issue, instruction="mvout_bytes"),
    )
    assert not prove(program).holds


def saturating(machine: InstructionSet) -> InstructionSet:
    product = replace(machine.instructions["matmul"], saturates=True)
    return replace(machine, instructions={**machine.instructions, "matmul": product})


def test_sums_that_saturate_need_a_bound() -> None:
    machine = saturating(systolic())
    assert prove(Product(20, 24, 17).program(machine)).holds
    # The bias alone is small; 150,000 products of bytes may leave 32 bits.
    long = Product(1, 1, 150_000).program(machine)
    assert "saturates" in prove(long).refusal


# -- channels -------------------------------------------------------------------------------------


def unrolled(program: Program) -> list[Issue]:
    """Return the executions of a program in its order, each with constants for its loops."""
    issues: list[Issue] = []

    def visit(body: tuple[Node, ...], values: dict[str, IndexExpr]) -> None:
        for node in body:
            if isinstance(node, Loop):
                for value in range(node.extent):
                    visit(node.body, {**values, node.name: IndexExpr((), value)})
                continue
            if any(guard.substitute(values).constant < 0 for guard in node.guards):
                continue
            issues.append(Issue(
                node.instruction,
                {n: replace(a, base=_constant(a.base, values)) for n, a in node.operands.items()},
                {a: tuple(_constant(s, values) for s in size) for a, size in node.sizes.items()},
                contents={n: Content(c.tensor, tuple(i.substitute(values) for i in c.index))
                          for n, c in node.contents.items()},
                meaning=None if node.meaning is None else Meaning(
                    node.meaning.statement,
                    {a: p.substitute(values) for a, p in node.meaning.points.items()}),
                note=node.note,
            ))  # fmt: skip

    visit(program.body, {})
    return issues


def _constant(expression: IndexExpr, values: dict[str, IndexExpr]) -> IndexExpr:
    numbers = {name: value.constant for name, value in values.items()}
    return IndexExpr((), int(expression.evaluate(numbers)))


def with_channels(program: Program, issues: list[Issue]) -> Program:
    """Return a program whose units hand over to each other by signals."""
    units = ("load", "execute", "store")
    names = [(a, b) for a in units for b in units if a != b]
    channels = tuple(Channel(name=f"{a}_{b}", sender=a, receiver=b, depth=64) for a, b in names)
    machine = systolic(Synchronization.CHANNELS, channels=channels)
    signalled = list(issues)
    for position, (first, second) in enumerate(pairwise(issues)):
        units_of = [machine.instructions[i.instruction].unit for i in (first, second)]
        if units_of[0] != units_of[1]:
            name = f"{units_of[0]}_{units_of[1]}"
            before = signalled[position]
            signalled[position] = replace(before, signals=(*before.signals, name))
            signalled[position + 1] = replace(second, waits=(name,))
    return replace(program, machine=machine, body=tuple(signalled))


def test_signals_order_conflicting_accesses() -> None:
    base = Product(20, 24, 17).program()
    program = with_channels(base, unrolled(base))
    proof = prove(program)
    assert proof.holds, proof.refusal
    assert {o.name: o.mechanism for o in proof.obligations}["order"] == "trace"
    random, refused = Random(4), 0
    positions = [n for n, node in enumerate(program.body) if isinstance(node, Issue) and node.waits]
    for at in random.sample(positions, 12):
        body = list(program.body)
        issue, sender = body[at], body[at - 1]
        assert isinstance(issue, Issue)
        assert isinstance(sender, Issue)
        body[at] = replace(issue, waits=())
        body[at - 1] = replace(sender, signals=())
        changed = replace(program, body=tuple(body))
        proof = prove(changed)
        refused += not proof.holds
        # The executor finds unordered accesses for every order, not only the one it executes.
        assert proof.holds == results_are_right(changed), proof.refusal
    assert refused > 3


def test_a_wait_without_a_signal_is_refused() -> None:
    base = Product(16, 16, 16).program()
    program = with_channels(base, unrolled(base))
    first = program.body[0]
    assert isinstance(first, Issue)
    blocked = replace(program, body=(replace(first, waits=("load_execute",)), *program.body[1:]))
    assert "waits on load_execute, on which nothing before it signals" in prove(blocked).refusal


# -- limits ---------------------------------------------------------------------------------------


def test_isl_out_of_time_leaves_the_program_to_the_enumeration() -> None:
    proof = prove(Product(20, 24, 17).program(), isl_seconds=1e-6)
    assert proof.holds
    assert proof.mechanism == "enumeration"


def test_programs_of_any_size_are_proven_by_isl() -> None:
    # 64 million executions, far more than are enumerated.
    program = Product(1 << 14, 1 << 12, 1 << 12, (2, 2, 2)).program()
    proof = prove(program)
    assert proof.holds, proof.refusal
    wrong = changed_issue(program, "multiply", moved("A", 1))
    assert "too large to be enumerated" in prove(wrong).refusal


@pytest.mark.parametrize("claim", ["contents", "meaning"])
def test_claims_over_names_that_are_nowhere_are_refused(claim: str) -> None:
    def change(issue: Issue) -> Issue:
        unbound = index(nowhere=1)
        if claim == "contents":
            return replace(
                issue, contents={**issue.contents, "A": Content("A", (unbound, unbound))}
            )
        assert issue.meaning is not None
        points = {**issue.meaning.points, "k": unbound}
        return replace(issue, meaning=Meaning(issue.meaning.statement, points))

    program = changed_issue(PROGRAMS["product"](), "multiply", change)
    assert "nowhere of a claim names nowhere" in prove(program).refusal

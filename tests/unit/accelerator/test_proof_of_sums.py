"""Margins, sums, types and signals in proofs of programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa import IMMEDIATE, InstructionSet
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
from tests.unit.accelerator.proof_checks import (
    PROGRAMS,
    by_enumeration,
    by_isl,
    changed_issue,
    results_are_right,
)
from tests.unit.accelerator.proof_programs import (
    Product,
    convolution,
    index,
    pooling,
)


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

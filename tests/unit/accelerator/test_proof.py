"""Programs are proven if, and only if, they compute their specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from cpembed.accelerator.program import (
    Address,
    Content,
    Issue,
    Loop,
    Meaning,
    Node,
    Program,
)
from cpembed.accelerator.proof import prove, require
from cpembed.errors import InvariantError
from cpembed.hw.isa import Channel, Synchronization
from cpembed.ir.index import IndexExpr
from tests.unit.accelerator.machines import (
    systolic,
)
from tests.unit.accelerator.proof_checks import (
    PROGRAMS,
    by_enumeration,
    by_isl,
    changed_issue,
    results_are_right,
)
from tests.unit.accelerator.proof_mutants import mutant
from tests.unit.accelerator.proof_programs import (
    Product,
    convolution,
    index,
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

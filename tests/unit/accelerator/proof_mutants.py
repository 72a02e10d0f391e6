"""Mutants of programs: each differs from a correct one at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from cpembed.accelerator.program import Address, Content, Issue, Loop, Meaning, Node, Program
from cpembed.ir.index import IndexExpr

Body = tuple[Node, ...]


def bodies(body: Body) -> Iterator[Body]:
    """Yield every body of a program, the outermost first."""
    yield body
    for node in body:
        if isinstance(node, Loop):
            yield from bodies(node.body)


def changed(body: Body, target: Body, new: Body) -> Body:
    """Return a body in which one (by identity) is replaced."""
    if body is target:
        return new
    return tuple(
        replace(node, body=changed(node.body, target, new)) if isinstance(node, Loop) else node
        for node in body
    )


def mutant(program: Program, random: Random) -> tuple[str, Program]:
    """Return a description and a program with one random change."""
    while True:
        target = random.choice(list(bodies(program.body)))
        kind, new = random.choice(MUTATIONS)(target, random)
        if new is not None and new != target:
            return kind, replace(program, body=changed(program.body, target, new))


def _position(body: Body, random: Random, kind: type) -> int | None:
    positions = [i for i, node in enumerate(body) if isinstance(node, kind)]
    return random.choice(positions) if positions else None


def _on_issue(
    change: Callable[[Issue, Random], Issue | None],
) -> Callable[[Body, Random], tuple[str, Body | None]]:
    def mutate(body: Body, random: Random) -> tuple[str, Body | None]:
        position = _position(body, random, Issue)
        if position is None:
            return "", None
        issue = body[position]
        assert isinstance(issue, Issue)
        new = change(issue, random)
        if new is None:
            return "", None
        name = f"{change.__name__.strip('_')} of {issue.instruction} ({issue.note})"
        return name, (*body[:position], new, *body[position + 1 :])

    return mutate


def _base(issue: Issue, random: Random) -> Issue:
    name = random.choice(list(issue.operands))
    address = issue.operands[name]
    if address.value is not None:
        moved = replace(address, value=address.value * 1.5)
    else:
        moved = replace(address, base=address.base + random.choice((-16, -1, 1, 16)))
    return replace(issue, operands={**issue.operands, name: moved})


def _coefficient(issue: Issue, random: Random) -> Issue | None:
    names = [name for name, address in issue.operands.items() if address.base.terms]
    if not names:
        return None
    name = random.choice(names)
    address = issue.operands[name]
    base = _changed_term(address.base, random)
    return replace(issue, operands={**issue.operands, name: replace(address, base=base)})


def _changed_term(index: IndexExpr, random: Random) -> IndexExpr:
    terms = list(index.terms)
    at = random.randrange(len(terms))
    term = terms[at]
    if term.modulus is not None and random.random() < 0.5:
        # As of single buffers where there are two, or of three.
        terms[at] = replace(term, modulus=random.choice((1, term.modulus + 1)))
    else:
        terms[at] = replace(term, coefficient=random.choice((0, term.coefficient + 1,
                                                             term.coefficient * 2)))  # fmt: skip
    return IndexExpr.sum(terms, index.constant)


def _lane(issue: Issue, random: Random) -> Issue:
    name = random.choice(list(issue.operands))
    address: Address = issue.operands[name]
    return replace(
        issue, operands={**issue.operands, name: replace(address, lane=address.lane + 1)}
    )


def _stride(issue: Issue, random: Random) -> Issue | None:
    for name, address in issue.operands.items():
        if address.strides:
            key = random.choice(list(address.strides))
            strides = {**address.strides, key: address.strides[key] + random.choice((-1, 1))}
            operands = {**issue.operands, name: replace(address, strides=strides)}
            return replace(issue, operands=operands)
    return None


def _size(issue: Issue, random: Random) -> Issue | None:
    if not issue.sizes:
        return None
    axis = random.choice(list(issue.sizes))
    size = issue.sizes[axis]
    new = random.choice((tuple(s + -1 for s in size), tuple(s + 1 for s in size), size[:1]))
    return replace(issue, sizes={**issue.sizes, axis: new})


def _guard(issue: Issue, random: Random) -> Issue | None:
    if not issue.guards:
        return None
    at = random.randrange(len(issue.guards))
    changed_guard = issue.guards[at] + random.choice((-16, -1))
    return replace(issue, guards=(*issue.guards[:at], changed_guard, *issue.guards[at + 1 :]))


def _unguarded(issue: Issue, random: Random) -> Issue | None:
    return replace(issue, guards=()) if issue.guards else None


def _swapped_operands(issue: Issue, random: Random) -> Issue | None:
    names = [n for n, a in issue.operands.items() if not a.tensor and a.value is None]
    if len(names) < 2:
        return None
    first, second = random.sample(names, 2)
    operands = {
        **issue.operands, first: issue.operands[second], second: issue.operands[first]
    }  # fmt: skip
    return replace(issue, operands=operands)


def _content(issue: Issue, random: Random) -> Issue | None:
    if not issue.contents:
        return None
    name = random.choice(list(issue.contents))
    content = issue.contents[name]
    at = random.randrange(len(content.index))
    index = list(content.index)
    index[at] = index[at] + 1
    return replace(issue, contents={**issue.contents, name: Content(content.tensor, tuple(index))})


def _meaning(issue: Issue, random: Random) -> Issue | None:
    if issue.meaning is None:
        return None
    axis = random.choice(list(issue.meaning.points))
    points = {**issue.meaning.points, axis: issue.meaning.points[axis] + random.choice((-1, 1))}
    return replace(issue, meaning=Meaning(issue.meaning.statement, points))


def _waits(issue: Issue, random: Random) -> Issue | None:
    if issue.waits and random.random() < 0.5:
        return replace(issue, waits=issue.waits[1:])
    return replace(issue, signals=issue.signals[1:]) if issue.signals else None


def _dropped(body: Body, random: Random) -> tuple[str, Body | None]:
    at = random.randrange(len(body))
    if len(body) == 1:
        return "", None
    return f"without {_name(body[at])}", (*body[:at], *body[at + 1 :])


def _repeated(body: Body, random: Random) -> tuple[str, Body | None]:
    at = random.randrange(len(body))
    to = random.randrange(len(body) + 1)
    return f"{_name(body[at])} repeated", (*body[:to], body[at], *body[to:])


def _swapped(body: Body, random: Random) -> tuple[str, Body | None]:
    if len(body) < 2:
        return "", None
    at = random.randrange(len(body) - 1)
    name = f"{_name(body[at])} after {_name(body[at + 1])}"
    return name, (*body[:at], body[at + 1], body[at], *body[at + 2 :])


def _extent(body: Body, random: Random) -> tuple[str, Body | None]:
    at = _position(body, random, Loop)
    if at is None:
        return "", None
    loop = body[at]
    assert isinstance(loop, Loop)
    extent = loop.extent + random.choice((-1, 1))
    if extent < 1:
        return "", None
    new = replace(loop, extent=extent)
    return f"extent of {loop.name}", (*body[:at], new, *body[at + 1 :])


def _interchanged(body: Body, random: Random) -> tuple[str, Body | None]:
    at = _position(body, random, Loop)
    loop = body[at] if at is not None else None
    if not isinstance(loop, Loop) or len(loop.body) != 1 or not isinstance(loop.body[0], Loop):
        return "", None
    inner = loop.body[0]
    new = replace(inner, body=(replace(loop, body=inner.body),))
    assert at is not None
    return f"{loop.name} inside of {inner.name}", (*body[:at], new, *body[at + 1 :])


def _name(node: Node) -> str:
    return f"loop {node.name}" if isinstance(node, Loop) else f"{node.instruction} ({node.note})"


MUTATIONS: tuple[Callable[[Body, Random], tuple[str, Body | None]], ...] = (
    *(map(_on_issue, (
        _base, _base, _coefficient, _coefficient, _lane, _stride, _size, _guard, _unguarded,
        _swapped_operands, _content, _meaning, _waits,
    ))),
    _dropped, _repeated, _swapped, _extent, _interchanged,
)  # fmt: skip

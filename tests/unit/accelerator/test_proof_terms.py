"""Normal forms keep every value; expressions match if, and only if, their values can be equal."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

import numpy as np

from cpembed.accelerator.proof.terms import Forms, matchings
from cpembed.ir.arithmetic import evaluate
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.grammar import parse_body

DTYPES = {"a": "int8", "b": "int8", "c": "int32", "s": "float32"}


def random_expression(random: Random, depth: int) -> Expression:
    """Return an expression over three integers and a float."""
    if depth == 0 or random.random() < 0.15:
        leaves: list[Expression] = [Access(name, ()) for name in "abcs"]
        leaves += [Constant(random.choice((-128, -1, 0, 1, 2, 127))), Constant(0.5)]
        return random.choice(leaves)
    first = random_expression(random, depth - 1)
    if random.random() < 0.2:
        return Cast(random.choice(("int8", "int32", "float32")), first, random.random() < 0.7)
    op = random.choice(("add", "sub", "mul", "max", "min", "neg"))
    if op == "neg":
        return Operation(op, (first,))
    return Operation(op, (first, random_expression(random, depth - 1)))


def binary(expression: Expression) -> Expression:
    """Return an expression in which operations have two arguments at most."""
    if isinstance(expression, Cast):
        return Cast(expression.dtype, binary(expression.arg), expression.saturate)
    if isinstance(expression, Operation):
        args = [binary(arg) for arg in expression.args]
        if len(args) <= 2:
            return Operation(expression.op, tuple(args))
        return reduce(lambda x, y: Operation(expression.op, (x, y)), args)
    return expression


def values(expression: Expression, arrays: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        result = evaluate(expression, lambda access: arrays[access.operand], wide=False)
    return np.broadcast_to(result, (64,))


def test_normal_forms_keep_every_value() -> None:
    random, generator = Random(8), np.random.default_rng(8)
    arrays: dict[str, Any] = {
        "a": generator.integers(-128, 128, 64).astype(np.int8),
        "b": generator.choice([-128, -1, 0, 1, 127], 64).astype(np.int8),
        "c": generator.integers(-(2**31), 2**31, 64).astype(np.int32),
        "s": generator.uniform(-4, 4, 64).astype(np.float32),
    }
    changed = 0
    for _ in range(1500):
        expression = random_expression(random, 3)
        # A number in place of an operand, as a register holds it.
        constants = {Access("b", ()): 7} if random.random() < 0.3 else {}
        used = arrays | ({"b": np.full(64, 7, np.int8)} if constants else {})
        normal = Forms(DTYPES).normal(expression, constants)
        changed += normal != expression
        np.testing.assert_array_equal(
            values(binary(normal), used), values(expression, used), str(expression)
        )
    assert changed > 500


def count(first: str, second: str) -> int:
    """Return the number of matchings of two expressions whose reads of one name agree."""
    forms = Forms(DTYPES)
    texts = (parse_body(f"O[x] = {text}").statements[0].value for text in (first, second))
    own, required = (forms.normal(expression) for expression in texts)

    def agree(leaf: Expression, required_leaf: Expression) -> bool:
        if isinstance(leaf, Access) and isinstance(required_leaf, Access):
            return leaf.operand == required_leaf.operand
        return leaf == required_leaf

    return sum(1 for _ in matchings(own, required, agree))


def test_integers_match_in_any_order_and_floats_in_theirs() -> None:
    assert count("a[] + b[] * c[]", "c[] * b[] + a[]") == 1
    assert count("a[] + b[] + c[]", "c[] + (b[] + a[])") == 1
    assert count("a[] - b[]", "b[] - a[]") == 0
    assert count("a[] * s[]", "s[] * a[]") == 1
    assert count("a[] * s[] * b[]", "a[] * b[] * s[]") == 0
    assert count("int8(max(c[], 0) * 0.5)", "max(int8(c[] * 0.5), 0)") == 1
    assert count("int8(c[])", "cast(c[], int8)") == 0
    assert count("cast(a[], int32)", "a[]") == 1

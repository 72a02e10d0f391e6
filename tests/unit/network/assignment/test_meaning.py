"""What a problem means, one statement a test, and what is no problem."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cpembed.errors import InvariantError, LoweringError
from cpembed.network.assignment import ANY, Conversion, Node, Option, Problem, Tensor, assign

PLAIN, LAST, BLOCKED = 0, 1, 2
NAMES = ("NCHW", "NHWC", "NCHW16c")
BOTH_WAYS = {(PLAIN, LAST): 3.0, (LAST, PLAIN): 4.0}


def reader(name: str, tensor: str, layout: int, cost: float = 1.0) -> Node:
    return Node(name, (tensor,), (), (Option("only", (layout,), cost),))


def writer(layout: int, cost: float = 1.0) -> Node:
    return Node("writer", (), ("t",), (Option("only", (layout,), cost),))


def test_a_conversion_is_paid_once_for_all_readers() -> None:
    nodes = (writer(PLAIN), reader("a", "t", LAST), reader("b", "t", LAST))
    found = assign(Problem(nodes, (Tensor("t", NAMES, BOTH_WAYS),)))
    assert (found.cost, found.conversions) == (6.0, (Conversion("t", PLAIN, LAST),))


def test_a_tensor_may_exist_in_several_layouts() -> None:
    nodes = (writer(PLAIN), reader("a", "t", LAST), reader("b", "t", PLAIN))
    found = assign(Problem(nodes, (Tensor("t", NAMES, BOTH_WAYS, output_layouts=(LAST,)),)))
    assert (found.cost, found.written) == (6.0, {"t": PLAIN})


def test_conversions_start_from_the_written_layout_only() -> None:
    # Through NHWC it would cost 3 + 1.
    conversion = {(PLAIN, LAST): 3.0, (LAST, BLOCKED): 1.0, (PLAIN, BLOCKED): 9.0}
    nodes = (writer(PLAIN), reader("a", "t", BLOCKED), reader("b", "t", LAST))
    assert assign(Problem(nodes, (Tensor("t", NAMES, conversion),))).cost == 3 + 3 + 9


def test_a_given_tensor_is_converted_and_a_wanted_layout_paid_for() -> None:
    node = Node("n", ("x",), ("y",), (Option("last", (LAST, LAST), 1.0),))
    tensors = (
        Tensor("x", NAMES, BOTH_WAYS, input_layout=PLAIN),
        Tensor("y", NAMES, BOTH_WAYS, output_layouts=(PLAIN,)),
    )
    found = assign(Problem((node,), tensors))
    assert found.cost == 1 + 3 + 4
    assert found.conversions == (Conversion("x", PLAIN, LAST), Conversion("y", LAST, PLAIN))


def test_any_reads_what_is_there_and_writes_what_is_best() -> None:
    nodes = (writer(ANY), reader("a", "t", ANY), reader("b", "t", LAST))
    found = assign(Problem(nodes, (Tensor("t", NAMES, BOTH_WAYS),)))
    assert (found.cost, found.written, found.conversions) == (3.0, {"t": LAST}, ())


def test_a_dearer_option_is_taken_where_it_saves_conversions() -> None:
    options = (Option("plain", (PLAIN,), 1.0), Option("last", (LAST,), 3.5))
    nodes = (Node("w", (), ("t",), options), reader("a", "t", LAST))
    assert assign(Problem(nodes, (Tensor("t", NAMES, BOTH_WAYS),))).options["w"] == 1


def test_an_empty_problem_costs_nothing() -> None:
    found = assign(Problem((), ()))
    assert (found.cost, found.bound, found.gap, found.proven) == (0.0, 0.0, 0.0, True)


def test_an_impossible_conversion_is_an_error_that_names_tensor_and_layouts() -> None:
    nodes = (writer(PLAIN), reader("a", "t", BLOCKED), reader("b", "t", LAST))
    with pytest.raises(LoweringError) as error:
        assign(Problem(nodes, (Tensor("t", NAMES, BOTH_WAYS),)))
    assert str(error.value) == (
        "tensor t: written as NCHW and needed as NCHW16c, and no choice of options has all the "
        "conversions that it needs: add this one, or an option to a node that writes or reads the "
        "tensor"
    )


T = Tensor("t", NAMES, BOTH_WAYS)
WRONG: dict[str, Callable[[], Problem]] = {
    "node a: there are two": lambda: Problem(
        (writer(PLAIN), reader("a", "t", 0), reader("a", "t", 0)), (T,)
    ),
    "tensor t: there are two": lambda: Problem((writer(PLAIN),), (T, T)),
    "tensor t: neither given nor written": lambda: Problem((), (T,)),
    "node a: reads t before it is there": lambda: Problem((reader("a", "t", 0), writer(0)), (T,)),
    "node writer: writes t, which is no tensor": lambda: Problem((writer(PLAIN),), ()),
    "node writer: writes t a second time": lambda: Problem(
        (writer(PLAIN),), (Tensor("t", NAMES, input_layout=0),)
    ),
    "node n: has no option": lambda: Problem((Node("n", (), ("t",), ()),), (T,)),
    "option o: 2 layouts, not 1": lambda: Problem(
        (Node("n", (), ("t",), (Option("o", (0, 0), 1.0),)),), (T,)
    ),
    "option only: t has no layout 3": lambda: Problem((writer(3),), (T,)),
    "option only: its cost is not finite": lambda: Problem((writer(0, float("nan")),), (T,)),
    "tensor t: has no layout 7": lambda: Problem(
        (writer(0),), (Tensor("t", NAMES, output_layouts=(7,)),)
    ),
    "tensor t: converting 0 to 1 costs -1.0": lambda: Problem(
        (writer(0),), (Tensor("t", NAMES, {(0, 1): -1.0}),)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_malformed_problem_is_refused(message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        WRONG[message]()

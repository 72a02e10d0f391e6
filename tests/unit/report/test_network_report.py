"""The terminal's report of a network says what its document says."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from cpembed.report.network import report
from cpembed.report.network_page import page
from tests.unit.report.network_documents import document, operator, product, residual


def printed(given: dict[str, Any], width: int = 1000) -> str:
    page = io.StringIO()
    console = Console(file=page, width=width, color_system=None, highlight=False)
    for part in report(given):
        console.print(part)
    return page.getvalue()


def line(text: str, beginning: str) -> str:
    (found,) = [each for each in text.splitlines() if each.startswith(beginning)]
    return found


def test_each_operator_has_its_times_and_share() -> None:
    given = document([product("a", ["x"], ["y"], measured_us=75.0), operator("b", ["y"], ["z"],
                      measured_us=25.0, predicted_us=20.0)])  # fmt: skip
    text = printed(given)
    assert "75.0%" in line(text, "a ")
    assert "slowest" in line(text, "a ")
    assert "120 us" in line(text, "a ")
    assert "x1.25" in line(text, "b ")
    assert "25.0%" in line(text, "b ")
    assert "NHWC halo 1,1" in line(text, "b ")


def test_the_three_slowest_are_marked_in_their_order() -> None:
    operators = [
        operator(f"op{n}", [f"t{n}"], [f"t{n + 1}"], measured_us=us)
        for n, us in enumerate([5.0, 40.0, 1.0, 30.0, 20.0])
    ]
    text = printed(document(operators))
    marks = {f"op{n}": line(text, f"op{n} ").split()[-1] for n in range(5)}
    assert [name for name, mark in marks.items() if mark == "slowest"] == ["op1"]
    assert [name for name, mark in marks.items() if mark == "2nd"] == ["op3"]
    assert [name for name, mark in marks.items() if mark == "3rd"] == ["op4"]


def test_two_products_in_one_kernel_name_each_other() -> None:
    first = product("a", ["x"], ["y"], predicted_us=0.0, measured_us=0.0, fused_with="b")
    second = product("b", ["y"], ["z"], fused_with="a")
    reasons = ("little to save: 1 us", "little to save: 2 us", "no clear gain: 3 us")
    others = [
        product(f"c{number}", ["z"], [f"c{number}"], not_fused=reason)
        for number, reason in enumerate(reasons)
    ]
    text = printed(document([first, second, *others]))
    assert line(text, "a ").split()[-2:] == ["with", "b"]
    assert line(text, "b ").split()[-1] == "slowest"
    pairs = "1 pair of operators in one kernel each; not in one: 2 (little to save), 1 (no clear"
    assert pairs in line(text, "pairs ")
    assert "pairs " not in printed(document([product("a", ["x"], ["y"])]))


def test_totals_and_the_choice_of_layouts() -> None:
    given = residual(3)
    text = printed(given)
    assert "8 of 9 products embedded, 1 on alternatives" in text
    totals = given["totals"]
    rate = 2 * totals["macs"] / totals["measured_us"] / 1e3
    assert f"{rate:,.1f} GOPS" in line(text, "measured ")
    assert "2 threads" in line(text, "measured ")
    assert "1 copy to another layout, 3.25 us" in text
    assert "x1.10 of the chosen" in line(text, "channels last")
    assert "no choice takes less than 990 us, within 1.0%" in text
    given["assignment"]["proven"] = True
    assert "proven the least" in printed(given)


def test_what_is_wrong_unmatched_or_far_off_is_said() -> None:
    given = document(
        [
            product("wrong", ["x"], ["y"], verified=False),
            product("alone", ["y"], ["z"], embedded_on=None, reason="axis z cannot be fed"),
            product("late", ["z"], ["w"], predicted_us=10.0, measured_us=31.0),
            product("fine", ["w"], ["v"], predicted_us=10.0, measured_us=29.0),
            product("small", ["v"], ["u"], predicted_us=0.1, measured_us=3.0),
        ]
    )
    text = printed(given).partition("Worth a look")[2]
    assert "wrong: the numbers are WRONG" in text
    assert "alone: no instruction: axis z cannot be fed" in text
    assert "late: took 31 us, 10 us were predicted" in text
    assert "fine" not in text
    assert "small" not in text


def test_a_network_that_was_not_measured_has_its_predictions() -> None:
    given = document([product("a", ["x"], ["y"], measured_us=None, verified=None)])
    given["totals"] |= {"measured_us": None, "cold_us": None}
    given["assignment"] = None
    text = printed(given)
    assert "slowest" in line(text, "a ")
    assert "predicted" in text
    assert "GOPS" not in text
    assert "Worth a look" not in text


def test_names_of_a_model_are_no_markup() -> None:
    given = document([product("[bold]a[/bold]", ["x"], ["y"], verified=False)], "[red]n[/red]")
    text = printed(given)
    assert text.count("[bold]a[/bold]") == 2
    assert "[red]n[/red]" in text
    assert "a" in printed(document([]), 40)


def in_cycles() -> dict[str, Any]:
    none = {"predicted_us": None, "measured_us": None}
    own = product("a", ["x"], ["y"], **none, estimated_cycles=995.0, cycles=1047)
    given = document([own, operator("b", ["y"], ["z"], **none)])
    totals = {**given["totals"], **none, "cold_us": None, "total_cycles": 1047}
    simulated = {"unit": "cycles", "provenance": "simulated", "assignment": None}
    return {**given, **simulated, "totals": totals}


def test_simulated_cycles_are_said_as_such() -> None:
    text = printed(in_cycles())
    assert "995 cycles  1,047 cycles  100.0%  x1.05" in line(text, "a ")
    assert "cycles" not in line(text, "b ")
    assert line(text, "simulated").split()[1:] == ["1,047", "cycles"]
    assert "measured" not in text
    body = page(in_cycles())
    assert "<dt>simulated</dt><dd>1,047 cycles</dd>" in body
    assert "995 cycles" in body


def test_costs_that_were_measured_are_said_as_such() -> None:
    given = document([product("a", ["x"], ["y"])])
    assignment = {**(given["assignment"] or {}), "cost_us": 5.0, "proven": True}
    for costs in ("measured", "estimated"):
        text = printed({**given, "assignment": {**assignment, "costs": costs}})
        assert f"proven the least of the {costs} costs" in text


@pytest.mark.parametrize("gap", [0.0, 1e-7])
def test_what_the_solver_proves_is_proven_up_to_its_rounding(gap: float) -> None:
    given = document([product("a", ["x"], ["y"])])
    given["assignment"] = {**(given["assignment"] or {}), "proven": True, "gap": gap}
    for text in (printed(given), page(given)):
        assert ("up to 1e-07 of it by rounding" in text) is bool(gap)


def test_operators_in_which_padding_spreads_nan_are_named() -> None:
    given = document([{**product("a", ["x"], ["y"]), "verified": True}])
    given["special_inputs"] = ["x"]
    assert "spreads" not in printed(given)
    given["spreads_nan"] = ["a", "b", "c", "d"]
    text = " ".join(printed(given).split())
    assert "with special values in x; padding spreads NaN in a, b, c, …" in text


def test_what_the_host_computes_by_its_definition_is_not_called_verified() -> None:
    given = document([{**product("a", ["x"], ["y"]), "verified": True}, product("b", ["y"], ["z"])])
    given["operators"][1]["verified"] = None
    text = " ".join(printed(given).split())
    assert "1 of 2 operators on the inputs" in text
    assert "the host computes the others by their definitions" in text

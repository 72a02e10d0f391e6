"""Instructions that read windows: units of a convolution of some size.

They are found in place where memory takes the rows of the window as they lie, else with windows
unrolled, on the convolution of their own size, on larger ones, and never on another stride or
dilation than the unit has. Every program computes what the workload does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.driver.estimate import estimate
from cpembed.driver.explain import explain
from cpembed.driver.named import workload
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from tests.executed import assert_programs_compute

UNITS = {
    # expression, extents, axes of A with any stride; the last one is contiguous.
    "1-D": ("C[x] += A[x+z] * B[z]", "x=2 z=3", "x"),
    "1-D strided": ("C[x] += A[2*x+z] * B[z]", "x=2 z=3", "x"),
    "1-D dilated": ("C[x] += A[x+2*z] * B[z]", "x=3 z=2", "z"),
    "1-D channels": ("C[k,x] += A[c,x+z] * B[k,c,z]", "k=2 x=2 c=2 z=3", "c x"),
    "2-D": ("C[x,y] += A[x+r,y+s] * B[r,s]", "x=2 y=2 r=3 s=3", "x r y"),
    "2-D channels": (
        "C[k,x,y] += A[c,x+r,y+s] * B[k,c,r,s]",
        "k=2 x=2 y=3 c=2 r=3 s=3",
        "c x r y",
    ),
}
ONE = "O[k,p] += I[c,p+r] * W[k,c,r]"
TWO = "O[k,p,q] += I[c,p+r,q+s] * W[k,c,r,s]"
CASES = {
    # unit, workload, sizes, share of the unit that is used (None: no embedding).
    "same": ("1-D", "O[p] += I[p+r] * W[r]", "p=2 r=3", 1.0),
    "longer": ("1-D", "O[p] += I[p+r] * W[r]", "p=8 r=6", 1.0),
    "padded": ("1-D", "O[p] += I[p+r] * W[r]", "p=3 r=2", 0.5),
    "one tap": ("1-D", "O[p] += I[p+r] * W[r]", "p=4 r=1", 1 / 3),
    "scaled": ("1-D", "O[p] += I[2*p+2*r] * W[r]", "p=4 r=3", 1.0),
    "other stride": ("1-D", "O[p] += I[3*p+r] * W[r]", "p=4 r=2", None),
    "strided": ("1-D strided", "O[p] += I[2*p+r] * W[r]", "p=4 r=3", 1.0),
    "dilated": ("1-D dilated", "O[p] += I[p+2*r] * W[r]", "p=6 r=2", 1.0),
    "channels": ("1-D channels", ONE, "k=4 p=4 c=2 r=3", 1.0),
    "image": ("2-D", "O[p,q] += I[p+r,q+s] * W[r,s]", "p=2 q=2 r=3 s=3", 1.0),
    "larger image": ("2-D", "O[n,p,q] += I[n,p+r,q+s] * W[r,s]", "n=2 p=4 q=6 r=3 s=3", 1.0),
    "layer": ("2-D channels", TWO, "k=2 p=2 q=3 c=2 r=3 s=3", 1.0),
    "larger layer": ("2-D channels", TWO, "k=4 p=4 q=3 c=4 r=3 s=3", 1.0),
}


MACHINE = """
[machines.board]
source = "virtual"
known = "assumed"
clock_mhz = 100

[machines.board.compute]
cycles = 1

[machines.board.memories.dram]
read_bytes_per_cycle = 16
write_bytes_per_cycle = 16
"""
SCOPE = """
[machines.board.memories."local.{operand}"]
parent = "dram"
"""


def unit(folder: Path, name: str, *, dense: bool) -> HardwareSpec:
    """The target of a unit; ``dense``: its tiles are dense, so that windows are unrolled."""
    expression, sizes, strided = UNITS[name]
    lines = ['name = "window"', 'description = "a unit"', 'source = "virtual"', "[instruction]"]
    lines += [f'expression = "{expression}"', "[instruction.axes]"]
    extents = dict(item.split("=") for item in sizes.split())
    lines += [f"{axis} = {extent}" for axis, extent in extents.items()]
    scopes: list[str] = []
    for operand, axes in (("A", strided.split()), ("B", None), ("C", None)):
        index = expression[expression.index(f"{operand}[") + 2 :]
        own = [letter for letter in index[: index.index("]")] if letter in extents]
        tile = [*(a for a in own if a in (axes or ())), *(a for a in own if a not in (axes or ()))]
        lines += [f"[operands.{operand}]", f'dtype = "{"int32" if operand == "C" else "int8"}"']
        lines += [f'scope = "local.{operand}"', f"tile = {tile}".replace("'", '"')]
        if axes and not dense:
            lines.append("stride = {" + ", ".join(f'{axis} = "any"' for axis in axes) + "}")
        scopes.append(f'[memories."local.{operand}"]')
    path = folder / "window.toml"
    board = MACHINE + "".join(SCOPE.format(operand=operand) for operand in "ABC")
    path.write_text("\n".join([*lines, *scopes, board]), encoding="utf-8")
    return load_hardware_spec(str(path))


@pytest.mark.quick(6)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_window_unit_is_found(case: str, dense: bool, tmp_path: Path) -> None:
    name, text, sizes, used = CASES[case]
    spec = unit(tmp_path, name, dense=dense)
    layer = workload([text, *sizes.split()], spec)
    result = solve(layer, spec, top=3)
    assert result.complete
    if used is None:
        assert not result.count
        assert result.conflict is not None
        return
    best = result.embeddings[0]
    assert best.overheads.utilisation == pytest.approx(used)
    assert_programs_compute(result)
    story = explain(layer, spec)
    assert not isinstance(story, SolveResult)
    assert story.steps.keys() == {"I", "W", "O"}
    assert estimate(layer, spec, top=1)


@pytest.mark.parametrize("case", ["same", "strided", "dilated", "layer"])
def test_rows_of_a_window_are_read_in_place(case: str, tmp_path: Path) -> None:
    name, text, sizes, _ = CASES[case]
    spec = unit(tmp_path, name, dense=False)
    for constraints in (None, "in_place", "relaxed"):
        result = solve(workload([text, *sizes.split()], spec), spec, constraints=constraints, top=1)
        assert set(result.embeddings[0].overheads.in_place) == {"I", "W", "O"}

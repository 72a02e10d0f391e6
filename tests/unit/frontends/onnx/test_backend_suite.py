"""The backend suite that comes with the format: what loads is right, the rest is refused in one
line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from benchmarks.onnx_operators import FORMS, PAGE, cases, outcome, page, results
from cpembed.errors import WorkloadError
from cpembed.frontends.onnx.operators import TRANSLATIONS
from cpembed.graph.graph import evaluate
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for

GROUPS = 24
COMPILED = 24
"""Cases that are compiled, spread evenly over the suite."""
TARGETS = ("avx512_vnni", "avx_vnni", "avx2_int8")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.slow
def test_what_loads_is_right(form: str, group: int, tmp_path: Path) -> None:
    computed = sum(
        outcome(case, form, tmp_path).graph is not None for case in cases()[group::GROUPS]
    )
    assert computed > 35


@pytest.mark.parametrize("number", range(COMPILED))
@pytest.mark.slow
def test_what_is_compiled_is_what_is_defined(number: int, tmp_path: Path) -> None:
    from cpembed.network.build import compile_network

    target = next((n for n in TARGETS if not missing_for(load_hardware_spec(n))), None)
    if target is None:
        pytest.skip(f"the processor has none of {', '.join(TARGETS)}")
    case = cases()[round((number + 0.5) * len(cases()) / COMPILED)]
    found = [outcome(case, form, tmp_path) for form in FORMS]
    computed = next((outcome for outcome in found if outcome.graph is not None), None)
    if computed is None or computed.graph is None:
        pytest.skip(f"{case.name} is refused: {found[-1].reason}")
    try:
        compiled = compile_network(computed.graph, target, tmp_path / "library")
    except WorkloadError as error:
        pytest.skip(f"{case.name} is not compiled: {error}")
    expected = evaluate(computed.graph, computed.inputs)
    with compiled.open() as network:
        results = network.run(computed.inputs)
    for name in computed.graph.outputs:
        a, b = (array.astype(np.float64) for array in (results[name], expected[name]))
        np.testing.assert_allclose(a, b, 2e-5, 2e-5 * np.abs(b).max(initial=1), err_msg=case.name)


def rows() -> dict[str, tuple[int, int]]:
    """Of each operator in the table, its cases and how many of them are computed."""
    found: dict[str, tuple[int, int]] = {}
    pattern = r"^\| ([\w.]+) \| (\d+) \| (\d+) \| (\d*) \|"
    for name, count, published, constant in re.findall(
        pattern, PAGE.read_text("utf-8"), re.MULTILINE
    ):
        found[name] = int(count), int(published) + int(constant or 0)
    return found


def test_the_table_knows_the_operators_that_are_read() -> None:
    found = rows()
    assert len(found) > 150
    for name, (count, computed) in found.items():
        assert computed <= count
        if name in TRANSLATIONS and name not in {"Loop", "Scan", "If"}:
            assert computed, name


@pytest.mark.slow
def test_the_table_is_current(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    if f"of onnx {onnx.__version__} " not in text:
        pytest.skip(f"the table was made with another version than onnx {onnx.__version__}")
    assert page([*results(tmp_path)]) == text, "run python -m benchmarks.onnx_operators"

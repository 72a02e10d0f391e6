"""The names that ``import cpembed`` offers, and results that show themselves."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import cpembed
from cpembed.errors import WorkloadError


@pytest.fixture(scope="module")
def result() -> cpembed.SolveResult:
    layer = cpembed.workload("gemm m=8 n=16 k=32", target="vta_1x16x16")
    return cpembed.solve(layer, "vta_1x16x16", constraints="relaxed", top=2)


@pytest.mark.parametrize("name", cpembed.__all__)
def test_each_name_is_there_and_documented(name: str) -> None:
    value = getattr(cpembed, name)
    assert inspect.getdoc(value)
    assert name in dir(cpembed)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(cpembed.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(name for name in imported if name) == cpembed.__all__
    for name, (module, original) in imported.items():
        assert name is not None
        assert getattr(sys.modules[str(module)], original) is getattr(cpembed, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        cpembed.sovle  # noqa: B018


def test_importing_the_package_loads_neither_solver_nor_compiler() -> None:
    script = (
        "import sys, cpembed; print([m for m in ('ortools', 'tvm', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_result_prints_what_the_command_prints(result: cpembed.SolveResult) -> None:
    text = str(result)
    assert repr(result) == text
    assert text.startswith("gemm")
    assert "vta_1x16x16" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_result_is_a_table_and_a_picture_in_a_notebook(result: cpembed.SolveResult) -> None:
    page = result._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert page.count("<pre") == 1
    assert "data:image/svg+xml;base64," in page
    assert "<html" not in page


def test_the_best_candidate_and_its_explanation(result: cpembed.SolveResult) -> None:
    assert result.best is result.embeddings[0]
    story = result.explain(2)
    assert story.candidate is result.embeddings[1]
    assert (
        story.to_json()
        == cpembed.explain(result.workload, result.target, rank=2, constraints="relaxed").to_json()
    )
    assert "Loop nest" in str(story)
    with pytest.raises(WorkloadError, match="no candidate of rank 3"):
        result.explain(3)


def test_a_search_that_found_nothing_has_no_best() -> None:
    layer = cpembed.workload("gemm m=4 n=8 k=64", target="vta_1x16x16")
    nothing = cpembed.solve(layer, "vta_1x16x16", constraints="strict")
    assert nothing.best is None
    assert "padding" in str(nothing)
    assert "<img" not in nothing._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_a_notebook_shows_a_result_once(
    result: cpembed.SolveResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich shows in a cell what is printed on a console, which would repeat the report."""
    import rich.console
    import rich.jupyter

    shown: list[object] = []
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setattr(rich.jupyter, "display", lambda *parts: shown.append(parts))
    rich.console.Console(file=None).print("shown")
    assert len(shown) == 1
    assert "<pre" in result._repr_html_()
    assert "embedding" in repr(result)
    assert len(shown) == 1


def test_values_that_a_person_prints_fit_a_line(result: cpembed.SolveResult) -> None:
    best = result.best
    assert best is not None
    assert "y ← n:16" in repr(best.embedding)
    values = [best, best.candidate, best.embedding, cpembed.hardware_spec("vta_1x16x16")]
    assert [len(repr(value)) < 100 and "\n" not in repr(value) for value in values] == [True] * 4

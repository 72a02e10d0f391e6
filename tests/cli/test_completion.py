"""What the shell offers after TAB, as click asks for it."""

from __future__ import annotations

import pytest

from cpembed.resources import constraint_files, hardware_spec_files
from cpembed.workloads.operators import OPERATORS
from cpembed.workloads.suites import SUITES, suite
from tests.cli.calling import Caller, in_a_process


@pytest.fixture
def offered(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> object:
    """Calls with the words of a line, the last of which is completed, as a shell splits them."""

    def complete(*words: str) -> list[str]:
        monkeypatch.setenv("_CPEMBED_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("cpembed", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        called = cpembed()
        assert (called.code, called.err) == (0, "")
        return called.out.split()

    return complete


def plain(*names: str) -> set[str]:
    return {f"plain,{name}" for name in names}


def test_names_are_offered(offered) -> None:  # type: ignore[no-untyped-def]
    assert set(offered("solve", "gemm", "--target", "avx")) == plain(
        *(name for name in hardware_spec_files() if name.startswith("avx"))
    )
    assert set(offered("run", "gemm", "--constraints", "")) == plain(*constraint_files())
    assert set(offered("bench", "")) == plain(*SUITES)
    assert set(offered("tune", "")) == plain(*OPERATORS, *(f"{name}:" for name in SUITES))
    assert plain("solve", "run") <= set(offered(""))
    assert offered("explain", "gemm", "--chos") == ["plain,--chosen"]


def test_files_where_no_name_begins_so(offered) -> None:  # type: ignore[no-untyped-def]
    assert offered("solve", "gemm", "--target", "./own") == ["file,./own"]
    assert offered("explain", "gemm", "--svg", "x")[0].startswith("file,")


def test_layers_of_a_suite(offered) -> None:  # type: ignore[no-untyped-def]
    numbers = [str(layer.index) for layer in suite("deepbench")]
    whole = plain(*(f"deepbench:{number}" for number in numbers))
    assert set(offered("solve", "deepb")) == set(offered("solve", "deepbench:")) == whole
    # bash takes the colon for a word.
    assert set(offered("solve", "deepbench", ":")) == plain(*numbers)
    assert set(offered("solve", "deepbench", ":", "10")) == plain(
        *(number for number in numbers if number.startswith("10"))
    )


def test_suites_and_files_in_their_place(offered) -> None:  # type: ignore[no-untyped-def]
    assert set(offered("bench", "resnet")) == plain("resnet18", "resnet50")
    assert offered("bench", "./mine.c") == ["file,./mine.c"]


def test_sizes_and_options_of_an_operator(offered) -> None:  # type: ignore[no-untyped-def]
    assert set(offered("solve", "gemm", "m=4", "n")) == plain("n=")
    assert plain("layout=NHWC") <= set(offered("solve", "conv2d", "n=1", "lay"))
    # bash takes the equals sign for a word.
    assert "plain,NHWC" in offered("solve", "conv2d", "n", "=", "1", "layout", "=", "N")


def test_a_completion_loads_neither_compiler_nor_solver() -> None:
    script = (
        "import os, sys; from cpembed.cli import main; os.environ.update("
        "_CPEMBED_COMPLETE='bash_complete', COMP_CWORD='2', COMP_WORDS='cpembed solve conv'); "
        "main(); print(*{'tvm', 'ortools', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    called = in_a_process(script=script)
    assert "plain,conv2d" in called.out.split()
    assert called.err.strip() == ""

"""Chains of products as a person or a script sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.unit.targets.cuda.emulator.running import needs_compiler

HEADS = ("attention", "b=1", "h=4", "kv=2", "q=32", "k=48", "d=16", "causal")


def test_pairs_are_counted_with_their_reasons(cpembed: Caller) -> None:
    called = cpembed("solve", *HEADS, "--target", "mma_f16", "--json")
    document = json.loads(called.out)
    first, second = document["embeddings"]
    assert sum(count["pairs"] for count in document["pairs"]) == first * second
    outcomes = {count["outcome"] for count in document["pairs"]}
    assert outcomes == {"registers", "shared memory", "rejected"}
    assert all(count["reason"] or count["outcome"] == "registers" for count in document["pairs"])
    assert document["candidates"][0]["via"] == "registers"
    assert document["provenance"] == "estimated"


def test_explain_and_solve_say_the_same(cpembed: Caller) -> None:
    texts = [cpembed(name, *HEADS, "--target", "mma_f16").out for name in ("solve", "explain")]
    assert texts[0] == texts[1]
    assert "rows of tiles differ" in texts[0]
    assert "estimated: faster than apart" in texts[0]


@needs_compiler
def test_a_chain_is_built_verified_and_saved(cpembed: Caller, tmp_path: Path) -> None:
    folder = tmp_path / "kernel"
    called = cpembed("run", *HEADS, "--target", "mma_f16", "--seed", "3", "--save", str(folder))
    assert "verified  yes, emulated, largest error" in called.out
    document = json.loads((folder / "kernel.json").read_text())
    assert {buffer["tensor"] for buffer in document["buffers"]} >= {"Q", "K", "V"}
    assert "kernel_chain" in (folder / "kernel.cu").read_text()
    assert [case["name"] for case in document["cases"]] == ["numbers", "large"]
    assert {case["expected"]["C"]["rule"] for case in document["cases"]} == {"tolerance"}
    assert (folder / "check.py").exists()


@needs_compiler
def test_a_folder_has_the_name_and_operator_that_are_asked_for(
    cpembed: Caller, tmp_path: Path
) -> None:
    words = ("mlp", "m=16", "n=16", "k=16", "p=16", "--target", "mma_f16")
    cpembed("build", *words, "-o", str(tmp_path), "--name", "layers", "--torch", "--json")
    kernels = tmp_path / "layers"
    assert json.loads((kernels / "layers.json").read_text())["name"] == "layers"
    assert (kernels / "layers_torch.py").exists()
    assert "python check.py" in (tmp_path / "README.md").read_text()


def test_tiles_are_not_padded_where_a_launch_takes_all_of_the_time(cpembed: Caller) -> None:
    words = ("attention", "b=1", "h=2", "q=32", "k=32", "d=32", "--target", "mma_f16")
    document = json.loads(cpembed("solve", *words, "--json").out)
    first = document["candidates"][0]
    assert first["bound_by"] == "launch"
    # Each head has its own keys, so rows of other heads in a tile would be padding.
    assert first["mappings"][0].startswith("x ← q:16 ")


@needs_compiler
def test_kernels_apart_are_built_where_they_are_asked_for(cpembed: Caller) -> None:
    called = cpembed("run", *HEADS, "--target", "mma_f16", "--apart", "--json")
    document = json.loads(called.out)
    assert (document["fuses"], document["fused"], document["verified"]) == (True, False, True)
    assert document["executed"] == document["apart"]


@pytest.mark.parametrize(
    "words, problem",
    [
        (
            ("solve", *HEADS, "--target", "mma_f16", "--pareto"),
            "--pareto means nothing for a chain",
        ),
        (
            ("run", *HEADS, "--target", "mma_f16", "--fuse", "--apart"),
            "--fuse and --apart exclude each other",
        ),
        (
            ("build", *HEADS, "--target", "mma_f16", "-o", "x", "--apart", "--fuse"),
            "--fuse and --apart exclude each other",
        ),
        (
            ("run", "gemm", "m=8", "n=8", "k=8", "--target", "mma_f16", "--threads", "2"),
            "--threads is of kernels of processors, and those of mma_f16 are emulated",
        ),
        (("run", *HEADS, "--target", "mma_f16", "--relu"), "--relu means nothing for a chain"),
        (("run", "attention", "b=1", "--target", "mma_f16"), "attention: missing h q k d"),
        (
            ("run", "gemm", "m=8", "n=8", "k=8", "--target", "mma_f16", "--apart"),
            "--fuse and --apart apply to chains of products",
        ),
    ],
)
def test_what_means_nothing_is_refused(
    cpembed: Caller, words: tuple[str, ...], problem: str
) -> None:
    called = cpembed(*words)
    assert (called.code, called.out) == (2, "")
    assert problem in called.err


def test_other_targets_make_no_kernels_of_chains(cpembed: Caller) -> None:
    called = cpembed("run", "mlp", "m=8", "k=8", "n=8", "p=8", "--target", "avx2_int8")
    assert called.code == 5
    assert "avx2_int8 makes no kernels of chains" in called.err

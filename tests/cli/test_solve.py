"""``cpembed solve`` and ``cpembed explain`` through the front door."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cpembed.driver.options import FORMULATIONS
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import Formulation
from tests.cli.calling import Caller, in_a_process
from tests.cli.schema import SOLVE, assert_matches

GEMM = ("gemm", "m=4", "n=32", "k=64")
VTA = ("--target", "vta_1x16x16")


def test_json_of_solve_has_the_promised_fields(cpembed: Caller) -> None:
    called = cpembed("solve", *GEMM, *VTA, "--json")
    assert (called.code, called.err) == (0, "")
    assert_matches(called.json, SOLVE)


def test_an_exact_fit_wastes_nothing(cpembed: Caller) -> None:
    document = cpembed("solve", *GEMM, *VTA, "--json", "--constraints", "strict").json
    assert document["status"] == "optimal"
    assert document["complete"] is True
    assert document["workload"]["macs"] == 4 * 32 * 64
    best = document["embeddings"][0]
    assert best["axes"]["y"] == [{"axis": "n", "count": 16, "stride": 1}]
    assert best["axes"]["z"] == [{"axis": "k", "count": 16, "stride": 1}]
    assert (best["mac_overhead"], best["utilisation"], best["score"]) == (1.0, 1.0, 0.0)
    assert best["operands"] == {"A": "A", "B": "B", "C": "C"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", ["avx512_vnni", "amx_int8", "avx512_vnni_dot", "vta_1x16x16"])
@pytest.mark.parametrize(
    "words",
    [
        ("gemv", "m=64", "k=64"),
        ("O[b,i] += X[b,j] * A[b,i,j]", "b=8", "i=64", "j=128"),
        ("O[b,i] += A[b,i,j] * X[b,j]", "b=8", "i=64", "j=128"),
    ],
)
def test_products_commute_for_every_command(
    cpembed: Caller, words: tuple[str, ...], target: str
) -> None:
    for command in "solve", "explain":
        called = cpembed(command, *words, "--target", target)
        assert called.code == 0, called.err


def test_half_filled_channels_use_half_of_the_instruction(cpembed: Caller) -> None:
    layer = ("conv2d", "n=1", "c=8", "h=8", "w=8", "k=16", "r=1", "s=1")
    constraints = ("--constraints", "strict_padded")
    best = cpembed("solve", *layer, *VTA, *constraints, "--json").json["embeddings"][0]
    assert best["family"] == {"x": [], "y": ["k"], "z": ["c"]}
    assert (best["mac_overhead"], best["utilisation"]) == (2.0, 0.5)
    # 8x8 pixels of 16 channels, 16 filters of 16 channels
    assert best["footprint"] == {"I": 1024, "W": 256, "O": 1024}


def test_options_stand_anywhere_among_the_words(cpembed: Caller) -> None:
    first = cpembed("solve", "--json", *VTA, *GEMM).json
    second = cpembed("solve", "gemm", "m=4", *VTA, "n=32", "--json", "k=64").json
    assert first["embeddings"] == second["embeddings"]


def test_an_expression_is_a_workload(cpembed: Caller) -> None:
    words = ("C[i,j] += A[i,l] * B[l,j]", "i=4", "j=32", "l=64")
    document = cpembed("solve", *words, *VTA, "--json").json
    assert document["workload"]["axes"] == {"i": 4, "j": 32, "l": 64}
    assert document["embeddings"][0]["family"] == {"x": [], "y": ["j"], "z": ["l"]}


@pytest.mark.parametrize("options, expected", [(["--top", "2"], 2), (["--all"], None)])
def test_top_and_all_choose_how_many(
    cpembed: Caller, options: list[str], expected: int | None
) -> None:
    layer = ("conv2d", "n=1", "c=8", "h=8", "w=8", "k=16", "r=3", "s=3")
    document = cpembed("solve", *layer, "--target", "avx512_vnni", "--json", *options).json
    assert document["count"] > 2
    assert len(document["embeddings"]) == (expected or document["count"])
    assert [e["rank"] for e in document["embeddings"]] == list(
        range(1, len(document["embeddings"]) + 1)
    )


@pytest.mark.parametrize("constraints", ["in_place_padded", "relaxed", "flattened"])
def test_an_entry_of_the_document_is_an_embedding(cpembed: Caller, constraints: str) -> None:
    layer = ("conv2d", "n=1", "c=3", "h=8", "w=8", "k=16", "r=5", "s=5", *VTA)
    entries = cpembed("solve", *layer, "--constraints", constraints, "--json").json["embeddings"]
    assert entries
    assert any("flattened" in entry for entry in entries) == (constraints == "flattened")
    for entry in entries:
        assert Embedding.from_json(entry).identifier() == entry["id"]


def test_weights_change_the_score(cpembed: Caller) -> None:
    layer = ("conv2d", "n=1", "c=8", "h=8", "w=8", "k=16", "r=1", "s=1")
    call = ("solve", *layer, *VTA, "--constraints", "strict_padded", "--json", "--weights")
    # 16,384 extra MACs; 512 extra pixels and 128 extra weights
    assert cpembed(*call, "1,0").json["embeddings"][0]["score"] == 8 * 8 * 16 * 8
    assert cpembed(*call, "0,1").json["embeddings"][0]["score"] == 8 * 8 * 8 + 16 * 8
    assert cpembed(*call, "0,0.5").json["embeddings"][0]["score"] == 320


def test_the_set_that_was_used_is_named(cpembed: Caller) -> None:
    assert cpembed("solve", *GEMM, *VTA, "--json").json["constraints"] == "in_place_padded"
    assert "constraints  in_place_padded" in cpembed("solve", *GEMM, *VTA).out


def test_a_file_is_a_constraint_set_and_a_target(cpembed: Caller, tmp_path: object) -> None:
    from cpembed.resources import constraint_files, hardware_spec_files

    constraints, target = constraint_files()["strict"], hardware_spec_files()["vta_8x8x8"]
    called = cpembed(
        "solve", *GEMM, "--target", str(target), "--constraints", str(constraints), "--json"
    )
    # m=4 does not fill the 8 rows.
    assert (called.code, called.json["target"]) == (3, "vta_8x8x8")


def test_infeasible_names_the_constraints_that_conflict(cpembed: Caller) -> None:
    call = ("solve", "gemm", "m=4", "n=8", "k=16", *VTA, "--constraints", "strict")
    called = cpembed(*call, "--json")
    assert called.code == 3
    document = called.json
    assert_matches(document, SOLVE)
    assert (document["status"], document["count"], document["embeddings"]) == ("infeasible", 0, [])
    assert "padding" in json.dumps(document["conflict"])
    text = cpembed(*call)
    assert text.code == 3
    assert "Why nothing fits" in text.out
    assert "n=8" in text.out
    assert "proven infeasible" in text.err


def test_a_search_without_time_is_stopped_without_a_result(cpembed: Caller) -> None:
    called = cpembed("solve", *GEMM, "--target", "amx_int8", "--timeout", "1e-9", "--json")
    assert called.code == 4
    assert called.json["status"] == "unknown"
    assert called.json["complete"] is False
    assert "--timeout" in called.err


def test_what_is_not_searched_is_named_and_nothing_is_proven(
    cpembed: Caller, tmp_path: Path
) -> None:
    loose = tmp_path / "loose.toml"
    loose.write_text('extends = "strict"\nfixed_origin = false\n[flatten]\nmax_axes = 2\n')
    layer = ("solve", "O[m,n] += I[m,k,l] * W[n,k,l]", "m=1", "n=4", "k=2", "l=3", *VTA)
    text = cpembed(*layer, "--constraints", str(loose))
    called = cpembed(*layer, "--constraints", str(loose), "--json")
    assert (text.code, called.code) == (4, 4)
    assert "fused axes: the set lacks fixed_origin" in text.out
    assert "fused axes: the set lacks fixed_origin" in called.err
    assert called.json["unsearched"] == ["fused axes: the set lacks fixed_origin"]
    assert called.json["status"] == "unknown"
    assert called.json["complete"] is False


def test_a_search_is_named_as_the_library_names_it() -> None:
    assert list(FORMULATIONS) == [formulation.value for formulation in Formulation]


CONV = ("conv2d", "n=1", "c=16", "h=6", "w=6", "k=16", "r=2", "s=2", *VTA)


@pytest.mark.slow
def test_every_search_gives_the_same_candidates(cpembed: Caller) -> None:
    documents = {
        way: cpembed("solve", *CONV, "--constraints", "relaxed", "--json", "--search", way).json
        for way in FORMULATIONS
    }
    first = documents["auto"]
    assert first["count"] > 5
    for way, document in documents.items():
        assert_matches(document, SOLVE)
        assert document["embeddings"] == first["embeddings"]
        assert document["count"] == first["count"]
        search = document["search"]
        assert search["formulation"] == ("digits" if way in ("auto", "digits") else "scalar")
        assert search["asset"] in [asset["name"] for asset in search["assets"]]
        for key in ("branches", "conflicts"):
            assert search[key] == sum(asset[key] for asset in search["assets"])
    assert [asset["name"] for asset in first["search"]["assets"]] == ["outputs_first"]
    assert [asset["name"] for asset in documents["scalar"]["search"]["assets"]] == ["workload"]
    assert documents["portfolio"]["search"]["assets"][0]["name"] == "q,s bounded"


LOOSE = """
[dataflow]
[all_different]
[hyper_rectangle]
[dense]
[linear_access]
"""


def test_a_set_beyond_digits_is_searched_by_operations(cpembed: Caller, tmp_path: Path) -> None:
    (tmp_path / "loose.toml").write_text(LOOSE)
    call = ("solve", "gemm", "m=1", "n=16", "k=16", *VTA)
    call = (*call, "--constraints", str(tmp_path / "loose.toml"))
    assert cpembed(*call, "--json").json["search"]["formulation"] == "scalar"
    refused = cpembed(*call, "--search", "digits")
    refused.is_one_line_error(2, "digit model", "vta_1x16x16", "loose", "fixed_origin", "auto")


def test_fused_axes_are_beyond_the_scalar_model(cpembed: Caller) -> None:
    call = ("solve", *CONV, "--constraints", "flattened", "--search", "portfolio")
    cpembed(*call).is_one_line_error(2, "scalar model", "flattened", "auto")


def test_the_report_says_which_search_had_the_answer(cpembed: Caller) -> None:
    def row(*options: str) -> str:
        lines = cpembed("solve", *CONV, "--verbose", *options).out.splitlines()
        return next(line for line in lines if line.startswith("searched"))

    assert re.search(r"digit model: [\d,]+ branch(es)?, [\d,]+ conflicts?$", row())
    assert re.search(r"scalar model: [\d,]+ branch", row("--search", "scalar"))
    several = row("--search", "portfolio", "--pareto")
    portfolio = r"scalar model, \w,\w( bounded)? of \d+ configurations: .* of [\d,]+ and"
    assert re.search(portfolio, several)
    assert "searched" not in cpembed("solve", *CONV).out
    assert "branch" not in cpembed("explain", *CONV).out
    assert "digit model" in cpembed("explain", *CONV, "--verbose").out


def test_graphs_that_differ_need_no_search(cpembed: Caller) -> None:
    call = ("solve", "O[x] max= A[x,y]", "x=4", "y=4", "dtype=int8", *VTA)
    called = cpembed(*call, "--json")
    assert called.code == 3, called
    search = {"formulation": None, "branches": 0, "conflicts": 0, "asset": None, "assets": []}
    assert called.json["search"] == search
    assert "searched" not in cpembed(*call).out


def test_explain_replays_the_rewrites_to_the_packed_layout(cpembed: Caller) -> None:
    layer = ("conv2d", "n=1", "c=8", "h=8", "w=8", "k=16", "r=3", "s=3", "pad=1")
    document = cpembed("explain", *layer, "--target", "avx512_vnni", "--json").json
    assert document["embedding"]["rank"] == 1
    for operand in document["operands"]:
        layout = operand["original"]
        for rewrite in operand["rewrites"]:
            assert rewrite["before"] == layout
            layout = rewrite["after"]
        assert layout == operand["packed"]
    image = next(o for o in document["operands"] if o["name"] == "I")
    assert image["original"]["shape"] == [1, 8, 8, 8]
    # padded to 10x10 pixels, channels in groups of 4
    assert image["packed"]["shape"] == [1, 2, 10, 10, 4]


def test_explain_says_why_nothing_fits(cpembed: Caller) -> None:
    call = ("explain", "gemm", "m=4", "n=8", "k=16", *VTA, "--constraints", "strict")
    called = cpembed(*call)
    assert called.code == 3
    assert "Why nothing fits" in called.out


TINY = """
name = "tiny"
description = "2x2x2"
source = "made up"
instruction = { expression = "C[x,y] += A[x,z] * B[z,y]", axes = { x = 2, y = 2, z = 2 } }
[operands]
A = { dtype = "int8", scope = "memory", tile = ["x", "z"] }
B = { dtype = "int8", scope = "memory", tile = ["z", "y"] }
C = { dtype = "int32", scope = "memory", tile = ["x", "y"] }
[memories.memory]
"""


@pytest.mark.parametrize("command", ["solve", "explain", "run"])
def test_embeddings_without_a_program_are_no_result(
    cpembed: Caller, tmp_path: Path, command: str
) -> None:
    """x walks two dimensions of A: a set that admits it asks for what no layout serves."""
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "set.toml").write_text('extends = "relaxed"\nlinear_access = false\n')
    called = cpembed(
        *(command, "C[x,y] += A[x+z,x] * B[z,y]", "x=3", "y=2", "z=3"),
        *("--target", str(tmp_path / "tiny.toml")),
        *("--constraints", str(tmp_path / "set.toml")),
    )
    assert called.code == 2
    assert "no program can be derived from the embeddings of set" in called.err
    assert called.err.count("\n") == 1
    assert ("No program can be derived" in called.out) == (command == "solve")


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", ["solve", "explain", "run"])
def test_padding_that_has_no_effect_is_said(cpembed: Caller, tmp_path: Path, command: str) -> None:
    path = tmp_path / "set.toml"
    path.write_text('extends = "strict"\n[padding]\naxes = ["zz"]\n')
    options = ("--backend", "generic") if command == "run" else ()
    called = cpembed(command, *GEMM, *VTA, "--constraints", str(path), *options)
    assert called.code == 0
    assert "padding.axes names zz, which gemm does not have (axes m n k)" in called.err


WEIGHTS_FIRST = (
    "O[n,k,p,q] += W[k,c,r,s] * I[n,c,p+r,q+s]",
    *("n=1", "k=16", "c=4", "p=6", "q=6", "r=3", "s=3"),
    *("--target", "avx512_vnni", "--json", "--top", "1"),
)


@pytest.mark.parametrize(
    "options, image, filters, used",
    [
        # by position, the only order that the set searches: one image for 16 lanes
        (("--constraints", "in_place_padded"), "int8", "uint8", 1 / 16),
        # so little is used that the wider set is searched too: 36 pixels for 48 lanes
        ((), "int8", "uint8", 0.75),
        # either order: as in conv2d, the image is unsigned, and 16 filters fill the lanes
        (("--constraints", "complete"), "uint8", "int8", 1.0),
        # 36 pixels for 48 lanes
        (("--constraints", "complete", "dtype=uint8,int8"), "int8", "uint8", 0.75),
    ],
)
def test_default_types_where_factors_may_be_exchanged(
    cpembed: Caller, options: tuple[str, ...], image: str, filters: str, used: float
) -> None:
    document = cpembed("solve", *WEIGHTS_FIRST, *options).json
    dtypes = document["workload"]["dtypes"]
    assert (dtypes["I"], dtypes["W"]) == (image, filters)
    assert document["embeddings"][0]["utilisation"] == pytest.approx(used)


def test_a_better_order_of_the_factors_is_said(cpembed: Caller) -> None:
    called = cpembed("solve", "O[m,n] += W[n,k] * I[m,k]", "m=1", "n=64", "k=64", *VTA)
    assert called.code == 0
    assert "the factors in the order I, W use 100.0% of vta_1x16x16 instead of 6.2%" in called.err
    assert "--constraints complete" in called.err


@pytest.mark.parametrize("command", ["explain", "run"])
def test_a_rank_that_does_not_exist_is_a_wrong_command_line(cpembed: Caller, command: str) -> None:
    called = cpembed(command, *GEMM, *VTA, "--constraints", "strict", "--rank", "7")
    called.is_one_line_error(2, "rank 7", "has 1 in gemm")


LOADED = """
import json, sys
from cpembed.cli import main
code = main(sys.argv[1:])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
sys.exit(code)
"""


def loaded_by(*arguments: str) -> set[str]:
    called = in_a_process(*arguments, script=LOADED)
    assert called.code == 0, called.err
    return set(json.loads(called.err))


def test_solving_loads_neither_compiler_nor_tables() -> None:
    packages = loaded_by("solve", *GEMM, *VTA, "--json")
    assert "ortools" in packages
    assert not packages & {"tvm", "pandas", "torch", "rich"}


@pytest.mark.slow
def test_explaining_does_not_load_the_compiler() -> None:
    assert not loaded_by("explain", *GEMM, *VTA) & {"tvm", "pandas", "torch"}


def test_help_loads_nothing_heavy() -> None:
    assert not loaded_by("--help") & {"tvm", "numpy", "ortools", "rich", "islpy"}

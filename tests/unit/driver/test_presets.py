"""What a command searches that is told no constraint set, and what it says of other sets.

Shares of an instruction are counted by hand: of eight rows, an image alone fills one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.cost.bounds import utilisation_bound
from cpembed.driver import presets
from cpembed.driver.advice import undeclared_stride
from cpembed.driver.explain import explain
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import DEFAULT_CONSTRAINTS, WIDER, KernelOptions, SearchOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.driver.result import Explanation, SolveResult
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import TopCandidates, searches, solve
from cpembed.embedding.constraint_set import Weights, load_constraint_set
from cpembed.embedding.cpsat import Status
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.errors import WorkloadError
from cpembed.report.solve import constraints_text
from cpembed.targets.choice import choices
from cpembed.targets.registry import missing_for, open_target
from cpembed.workloads.suites import suite

TARGETS = Path(__file__).parents[2] / "targets"
SYSTOLIC, DOT_ARRAY = str(TARGETS / "systolic.toml"), str(TARGETS / "dot_array.toml")
WINDOWS = "conv2d n=1 c=32 h=16 w=16 k=8 r=3 s=3 pad=1"


def solved(words: str, target: str, constraints: str | None = None) -> SolveResult:
    spec = hardware_spec(target)
    return solve(workload(words, spec), spec, constraints=constraints, top=1)


@pytest.mark.parametrize("target", ["vta_8x8x8", SYSTOLIC])
def test_a_target_that_the_narrow_set_wastes_is_searched_wider(target: str) -> None:
    """No window is read in place there, so rows are fed from images, of which there is one."""
    result = solved(WINDOWS, target)
    assert (result.constraints.name, result.utilisation) == (WIDER, 1.0)
    assert result.to_json()["narrower"] == {
        "constraints": DEFAULT_CONSTRAINTS,
        "utilisation": 1 / 8,
        "searched": True,
        "proven": True,
    }
    assert result.wider is None


def test_a_set_that_is_named_is_used_alone_and_says_what_a_wider_one_might_use() -> None:
    result = solved(WINDOWS, "vta_8x8x8", DEFAULT_CONSTRAINTS)
    assert (result.constraints.name, result.utilisation) == (DEFAULT_CONSTRAINTS, 1 / 8)
    assert result.to_json()["wider"] == {
        "constraints": WIDER,
        "utilisation": 1.0,
        "searched": False,
        "proven": True,
    }


def _stopped(result: SolveResult) -> SolveResult:
    """A search as a limit leaves it that is over before anything is found."""
    unknown = {"status": Status.UNKNOWN, "complete": False, "top_proven": False}
    return replace(result, embeddings=(), count=0, **unknown)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_set_whose_search_was_stopped_proves_nothing(stopped: bool) -> None:
    """Neither that nothing in it is better nor that nothing fits."""
    narrow = solved(WINDOWS, "vta_8x8x8", DEFAULT_CONSTRAINTS)
    nothing = solved("O[m,n] max= A[m,k] * B[k,n] m=8 n=8 k=8", "vta_8x8x8", DEFAULT_CONSTRAINTS)
    for first in (narrow, replace(nothing, search=narrow.search)):
        second = _stopped(first) if stopped else first

        def search(named: str, /, *, first: SolveResult = first, **_: object) -> SolveResult:
            return first if named == DEFAULT_CONSTRAINTS else second  # noqa: B023

        found = presets.default_searches(search, SearchOptions(), lambda _: None)[0]
        words = constraints_text(found)
        assert ("gives nothing better" in words or "nothing fits under" in words) is not stopped
        assert found.is_stopped is (stopped and not found.embeddings)
        assert ("not searched to the end" in found.why_nothing) is stopped


def test_embeddings_without_programs_of_a_stopped_search_leave_it_open() -> None:
    first = solved(WINDOWS, "vta_8x8x8", DEFAULT_CONSTRAINTS)
    without = replace(first, embeddings=(), not_derivable=("no loop moves A",))
    assert not without.is_stopped
    assert replace(without, complete=False, status=Status.FEASIBLE).is_stopped


@pytest.mark.parametrize(
    "words, used, might_use",
    [
        # 14 of 16 rows: no second search, but 196 pixels are 12.25 times 16.
        ("conv2d n=1 c=64 h=14 w=14 k=16 r=3 s=3 pad=1", 14 / 16, 196 / 208),
        ("gemm m=16 n=16 k=64", 1.0, None),
        # Five rows of 16 are five under any set.
        ("gemm m=5 n=16 k=64", 5 / 16, None),
    ],
)
def test_where_little_is_to_be_gained_one_set_is_searched(
    words: str, used: float, might_use: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    load = presets.load_constraint_set
    monkeypatch.setattr(
        "cpembed.driver.solve.load_constraint_set", lambda name: (asked.append(name), load(name))[1]
    )
    result = solved(words, "amx_int8")
    assert asked == [DEFAULT_CONSTRAINTS]
    assert result.utilisation == used
    assert (result.wider and result.wider.utilisation) == might_use


def test_where_nothing_fits_the_set_that_might_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of 16, all columns and nine of 64 steps is too little for a second search, where the
    bound that says so has the time it needs."""
    monkeypatch.setattr(presets, "_BOUND_SECONDS", 30.0)
    words = "depthwise n=1 c=8 h=14 w=16 r=3 s=3 pad=1"
    result = solved(words, "amx_int8")
    assert (result.constraints.name, result.status) == (DEFAULT_CONSTRAINTS, Status.INFEASIBLE)
    assert result.wider is not None
    assert (result.wider.constraints, result.wider.searched) == (WIDER, False)
    assert result.wider.utilisation == 1 / 16 * 9 / 64
    assert WIDER in result.why_nothing
    assert solved(words, "amx_int8", WIDER).utilisation == result.wider.utilisation


def test_where_no_set_fits_none_is_named() -> None:
    """A maximum is no sum."""
    result = solved("C[m,n] max= A[m,k] * B[k,n] m=8 n=16 k=16", "amx_int8")
    assert result.wider is None
    assert result.conflict is not None
    assert result.why_nothing == result.conflict.words[0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", ["vta_8x8x8", "amx_int8", "avx512_vnni", SYSTOLIC, DOT_ARRAY])
@pytest.mark.parametrize(
    "words",
    [
        "conv2d n=1 c=3 h=9 w=9 k=10 r=3 s=3 stride=2",
        "conv2d n=2 c=5 h=7 w=5 k=20 r=1 s=3 pad=1",
        "gemm m=5 n=33 k=21",
    ],
)
def test_no_embedding_uses_more_than_the_bound(words: str, target: str) -> None:
    spec, wider = hardware_spec(target), load_constraint_set(WIDER)
    layer = workload(words, spec)
    problem = pair_operands(layer, spec.instruction)
    assert isinstance(problem, EmbeddingProblem)
    bound = utilisation_bound(problem, wider)
    assert bound is not None
    # Of all embeddings, the one with the fewest products.
    best = solve(layer, spec, constraints=wider, top=1, weights=Weights(1.0, 0.0)).embeddings[0]
    assert best.overheads.utilisation <= bound


def test_the_bound_is_unknown_where_axes_share_an_instruction_axis() -> None:
    spec = hardware_spec("vta_8x8x8")
    problem = pair_operands(workload(WINDOWS, spec), spec.instruction)
    assert isinstance(problem, EmbeddingProblem)
    assert utilisation_bound(problem, load_constraint_set("relaxed")) is None


def test_the_faster_schedule_of_both_sets_is_chosen_on_a_vta() -> None:
    spec = hardware_spec("vta_8x8x8")
    layer = workload("conv2d n=1 c=16 h=10 w=10 k=8 r=3 s=3", spec)
    found = searches(layer, spec, SearchOptions(), TopCandidates(1))
    assert [result.constraints.name for result in found] == [DEFAULT_CONSTRAINTS, WIDER]
    for order in (found, found[::-1]):
        first = choices(open_target(spec), [item for one in order for item in one.embeddings])[0]
        assert first.ranked.constraints == WIDER
    chosen = choose(Request(layer, spec, KernelOptions(untuned=True)))
    assert isinstance(chosen, Selection)
    assert chosen.solved.constraints.name == chosen.ranked.constraints == WIDER


@pytest.mark.slow
def test_the_faster_of_both_sets_runs_on_a_vta() -> None:
    layer = workload("conv2d n=1 c=16 h=10 w=10 k=8 r=3 s=3", target="vta_8x8x8")
    narrow = run(layer, "vta_8x8x8", constraints=DEFAULT_CONSTRAINTS, untuned=True)
    usual = run(layer, "vta_8x8x8", untuned=True)
    assert isinstance(narrow, RunResult)
    assert isinstance(usual, RunResult)
    assert usual.solved.constraints.name == WIDER
    assert usual.timing.cycles is not None
    assert narrow.timing.cycles is not None
    assert usual.timing.cycles < narrow.timing.cycles / 2
    assert usual.to_json()["narrower"]["constraints"] == DEFAULT_CONSTRAINTS


def test_explain_names_the_set_of_which_a_candidate_is_the_only_one() -> None:
    spec = hardware_spec("vta_8x8x8")
    story = explain(workload(WINDOWS, spec), spec, constraints=DEFAULT_CONSTRAINTS)
    assert isinstance(story, Explanation)
    assert story.reasons[-1] == "it is the only candidate under in_place_padded"
    assert story.to_json()["wider"]["constraints"] == WIDER
    usual = explain(workload(WINDOWS, spec), spec)
    assert isinstance(usual, Explanation)
    assert usual.to_json()["constraints"] == WIDER


GEMV = {"avx512_vnni": 1.0, "amx_int8": 1 / 16, "vta_1x16x16": 1.0}
"""A vector fills one of AMX's 16 rows."""


@pytest.mark.parametrize("constraints", [None, "strict"])
@pytest.mark.parametrize("target", GEMV)
def test_products_commute(target: str, constraints: str | None) -> None:
    """The matrix of a matrix-vector product is the instruction's second factor."""
    result = solved("gemv m=64 k=64", target, constraints)
    if target == "amx_int8" and constraints == "strict":
        # Its rows need not be fed.
        assert result.embeddings[0].candidate.embedding.extents["x"] == 1
    assert result.utilisation == GEMV[target]
    roles = result.embeddings[0].candidate.embedding.operands
    assert (roles["A"], roles["B"]) == ("B", "A")
    assert result.commuted
    assert result.to_json()["exchanged"] is True
    dtypes = {o.name: o.dtype for o in result.workload.operands}
    taken = result.target.instruction.dtypes
    assert (dtypes["A"], dtypes["B"]) == (taken["B"][0], taken["A"][0])


def test_factors_that_fit_as_they_stand_are_not_exchanged() -> None:
    result = solved("gemm m=16 n=16 k=64", "amx_int8")
    assert not result.commuted
    assert "exchanged" not in result.to_json()


def test_types_that_are_given_decide_the_roles() -> None:
    """VNNI multiplies unsigned by signed bytes: the matrix is its first factor, and then nothing
    feeds its lanes."""
    result = solved("gemv m=64 k=64 dtype=uint8,int8,int32", "avx512_vnni")
    assert result.status is Status.INFEASIBLE
    assert result.conflict is not None
    gemm = solved("gemm m=8 n=16 k=64 dtype=int8,uint8,int32", "avx512_vnni")
    assert gemm.commuted
    assert gemm.embeddings[0].candidate.embedding.operands["A"] == "B"
    with pytest.raises(WorkloadError, match="takes"):
        solved("gemm m=8 n=16 k=64 dtype=int16,int16,int32", "avx512_vnni")


def test_a_stride_that_is_not_declared_is_asked_for() -> None:
    """Rows of 16 pixels under a window, 8 at a time, fill all of it once they may be apart."""
    note = undeclared_stride(solved(WINDOWS, SYSTOLIC))
    assert note is not None
    assert 'stride = { x = "any" } of A' in note
    assert "uses 100.0% of the instruction instead of 12.5%" in note
    # VTA's memory asks for whole tiles, AMX declares its stride, products have no windows.
    assert undeclared_stride(solved(WINDOWS, "vta_8x8x8")) is None
    assert undeclared_stride(solved(WINDOWS, "amx_int8")) is None
    assert undeclared_stride(solved("gemm m=1 n=8 k=32", SYSTOLIC)) is None


@pytest.mark.slow
@pytest.mark.parametrize("target", ["vta_8x8x8", "amx_int8", SYSTOLIC, DOT_ARRAY])
def test_resnet18_uses_or_is_told_what_the_widest_set_gives(target: str) -> None:
    for layer in suite("resnet18"):
        words = f"resnet18:{layer.index}"
        usual, widest = solved(words, target), solved(words, target, "complete")
        told = 0.0 if usual.wider is None else usual.wider.utilisation
        assert widest.complete
        assert max(usual.utilisation, told) >= widest.utilisation - 0.02
        assert usual.utilisation >= min(widest.utilisation - 0.02, presets.WELL_USED)


@pytest.mark.parametrize(
    "target, other",
    [
        ("avx512_vnni", "avx512_int8"),
        ("amx_int8", "avx512_int8"),
        ("avx2_int8", "avx2_lanes"),
    ],
)
def test_what_takes_exchanged_factors_does_not_keep_another_target_from_running(
    target: str, other: str
) -> None:
    """Pixels of an image could fill VNNI's lanes under windows that are unrolled; with a lane for
    each channel nothing is unrolled. AMX has no use for a depthwise convolution at all."""
    spec = hardware_spec(target)
    if missing := (*missing_for(spec), *missing_for(hardware_spec(other))):
        pytest.skip("; ".join(missing))
    layer = workload("depthwise n=1 c=64 h=28 w=28 r=3 s=3 pad=1 layout=NHWC", spec)
    found = choose(Request(layer, spec, KernelOptions(untuned=True)))
    assert isinstance(found, Selection)
    assert found.solved.target.name == other
    assert found.substitution is not None
    assert found.substitution.solved.target.name == target

"""Networks are matched product by product: each as a search of it alone says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cpembed.driver import plan as plan_module
from cpembed.driver.matching import Match, matched, typed_for
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.driver.solve import solve
from cpembed.embedding.cpsat import Status
from cpembed.errors import CrashError, SpecError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds.base import TensorType
from cpembed.graph.kinds.product import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.network import match as match_module
from cpembed.network.match import MatchResult, match
from cpembed.network.physical_product import channels_last
from tests.unit.network.networks import macs, network

VTA = "vta_1x16x16"
FULL = "gemm m=8 n=32 k=32"
PARTLY = "gemm m=8 n=24 k=16"
DEPTHWISE = "depthwise n=1 c=64 h=30 w=30 r=3 s=3"
LARGEST = "C[m,n] max= A[m,k] * B[k,n] m=8 n=16 k=16"
"""No sum of products."""


def only(result: MatchResult) -> match_module.TargetMatch:
    (found,) = result.targets
    return found


def test_a_product_is_matched_as_its_search_says() -> None:
    found = only(match(network("n", {"a": FULL, "b": PARTLY}), [VTA], prepares=False))
    for name, words in {"a": FULL, "b": PARTLY}.items():
        (row,) = [o for o in found.operators if o.name == name]
        best = solve(workload(words, VTA), VTA, top=1).embeddings[0]
        assert row.match is not None
        assert row.match.utilisation == best.overheads.utilisation
        assert row.match.embedded_on == VTA
    assert [o.reason for o in found.operators] == [None, "no product"] * 2


def test_equal_products_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    real = match_module.match_in_worker

    def counted(asked: Request) -> Match:
        searched.append(str(asked.workload.extents))
        return real(asked)

    monkeypatch.setattr(match_module, "match_in_worker", counted)
    graph = network("n", {"a": FULL, "b": PARTLY, "c": FULL})
    found = only(match(graph, [VTA], prepares=False))
    assert len(searched) == 2
    assert (found.layers, found.products, found.embedded) == (2, 3, 3)
    assert [o.layer for o in found.matched] == [0, 1, 0]


def test_the_names_of_computations_say_nothing_of_the_work() -> None:
    graph = network("n", {"a": FULL, "b": FULL})
    first, negated, second, last = graph.operators
    assert isinstance(second.kind, Product)
    named = replace(second.kind, computation=replace(second.kind.computation, name="dense 2"))
    operators = (first, negated, replace(second, kind=named), last)
    found = only(match(replace(graph, operators=operators), [VTA], prepares=False))
    assert (found.layers, found.embedded) == (1, 2)
    assert [o.label for o in found.matched] == ["gemm", "dense 2"]


def test_equal_work_of_other_sizes_is_searched_by_itself() -> None:
    graph = network("n", {"a": "gemm m=4 n=16 k=16", "b": "gemm m=8 n=16 k=16"})
    assert only(match(graph, [VTA], prepares=False)).layers == 2


def test_totals_are_those_of_the_rows() -> None:
    graph = network("n", {"a": FULL, "b": PARTLY, "c": LARGEST, "d": FULL})
    found = only(match(graph, [VTA], prepares=False))
    by_name = {o.name: o for o in found.matched}
    assert not by_name["c"].is_embedded
    assert by_name["c"].reason
    assert (found.embedded, found.products, len(found.operators)) == (3, 4, 8)
    line = found.line
    assert line.macs == 2 * macs(FULL) + macs(PARTLY) + macs(LARGEST)
    assert line.embedded_macs == 2 * macs(FULL) + macs(PARTLY)
    # 24 columns take two tiles of 16: three quarters of what is executed is useful.
    assert line.use == pytest.approx((1 + 0.75 + 1) / 3)
    executed = 2 * macs(FULL) + macs(PARTLY) / 0.75
    assert line.use_by_macs == pytest.approx(line.embedded_macs / executed)
    document = only(match(graph, [VTA], prepares=False)).to_json()
    assert document["totals"]["embedded"] == 3
    assert [o["embedded_on"] for o in document["operators"]][::2] == [VTA, VTA, None, VTA]


def test_an_alternative_takes_what_the_instruction_cannot() -> None:
    """An instruction that scales and shifts has no sum of products."""
    spec = replace(hardware_spec("requantize"), alternatives=("gemm_16x16x16",))
    graph = network("n", {"a": FULL})
    found = only(match(graph, [spec], prepares=False))
    (row,) = found.matched
    assert row.match is not None
    assert row.match.embedded_on == "gemm_16x16x16"
    assert (found.embedded, found.on_alternatives) == (1, 1)
    assert row.reason
    alone = only(match(graph, [spec], prepares=False, alternatives=False))
    assert (alone.embedded, alone.on_alternatives) == (0, 0)
    assert alone.matched[0].reason == row.reason


def test_an_alternative_takes_what_would_leave_the_instruction_idle() -> None:
    """Matrix tiles have little to do in a depthwise convolution."""
    spec = hardware_spec("amx_int8")
    (row,) = only(match(network("n", {"c": DEPTHWISE}), [spec], prepares=False)).matched
    assert row.match is not None
    assert row.match.embedded_on in spec.alternatives
    assert row.reason


def test_a_product_of_types_that_the_target_does_not_multiply_is_not_embedded() -> None:
    """The network would not run it there; that it would if it were quantized is a remark."""
    graph = network("n", {"a": FULL + " dtype=float32", "b": FULL})
    found = only(match(graph, [VTA], prepares=False))
    assert found.embedded == 1
    assert found.retyped == 1
    assert found.layers == 2
    (floats,) = [o for o in found.matched if not o.is_embedded]
    assert floats.reason is not None
    assert floats.reason.startswith(f"{VTA} does not multiply float32 by float32")
    assert "a product of int8 by int8 would be embedded and use 100.0%" in floats.reason
    spec = hardware_spec("avx512_vnni")
    typed = typed_for(workload(FULL + " dtype=float32"), spec)
    assert [o.dtype for o in typed.operands] == ["uint8", "int8", "int32"]


def test_types_that_the_instruction_takes_stay() -> None:
    given = workload(FULL + " dtype=int8,uint8,int32")
    assert typed_for(given, hardware_spec("amx_int8")) == given


def test_cycles_become_time_where_a_clock_is_known() -> None:
    found = matched(Request(workload(FULL, VTA), VTA))
    assert found.estimated is not None
    assert (found.estimated.unit, found.estimated.us) == ("us", found.estimated.amount)


def test_what_executes_nowhere_is_estimated_for_a_described_machine() -> None:
    spec = replace(hardware_spec("gemmini_16x16"), backend=None, constraints=None)
    found = matched(Request(workload(FULL, spec), spec))
    assert found.embedded_on == spec.name
    assert found.estimated is not None
    assert found.estimated.machine in spec.machines


def test_a_worker_that_died_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object, **__: object) -> None:
        raise CrashError.from_exit("matching gemm", -9, "")

    monkeypatch.setattr("cpembed.driver.matching.worker.call", dies)
    found = only(match(network("n", {"a": FULL}), [VTA], prepares=False))
    assert found.embedded == 0
    assert "SIGKILL" in (found.matched[0].reason or "")


def test_a_search_that_was_stopped_does_not_say_no() -> None:
    """A limit leaves open whether the instruction fits; so does that of an alternative."""
    net = network("net", {"first": "gemm m=8 n=16 k=16"})
    found = only(match(net, ["vta_1x16x16"], timeout=1e-9, prepares=False))
    operator = found.matched[0]
    assert operator.match is not None
    assert (operator.match.outcome, found.undecided) == ("stopped", {"stopped": 1})
    assert operator.reason is not None
    assert "before the time limit: give a longer --timeout" in operator.reason
    assert operator.to_json()["outcome"] == "stopped"
    assert found.totals_json()["stopped"] == 1


def test_an_alternative_that_was_stopped_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = hardware_spec("vta_1x16x16")
    other = replace(spec, name="other")
    nothing = workload("C[m,n] max= A[m,k] * B[k,n] m=8 n=16 k=16", "vta_1x16x16")
    usual = plan_module.searches

    def searches(layer: Computation, target: HardwareSpec, *rest: Any, **more: Any) -> Any:
        found = usual(layer, target, *rest, **more)
        if target.name != "other":
            return found
        return tuple(replace(f, status=Status.UNKNOWN, conflict=None, embeddings=()) for f in found)

    monkeypatch.setattr(plan_module, "searches", searches)
    names = {"other": other}
    monkeypatch.setattr(plan_module, "hardware_spec", lambda n, *_: names.get(str(n), n))
    asked = Request(nothing, replace(spec, alternatives=("other",)), KernelOptions(timeout=20))
    found = matched(asked)
    assert found.outcome == "stopped"
    assert found.reason is not None
    assert found.reason.endswith("other not searched to the end: give a longer --timeout")
    assert matched(replace(asked, target=replace(spec, alternatives=()))).outcome == "no"


def test_several_targets_have_a_result_each_in_the_order_asked() -> None:
    graph = network("n", {"a": FULL})
    result = match(graph, ["gemm_16x16x16", VTA], prepares=False)
    assert [found.target for found in result.targets] == ["gemm_16x16x16", VTA]
    assert result.operators == 2


def test_progress_ends_with_all_done() -> None:
    told: list[tuple[str, int, int]] = []
    graph = network("n", {"a": FULL, "b": PARTLY})
    match(graph, [VTA], prepares=False, progress=lambda *args: told.append(args))
    assert [done for _, done, _ in told] == [0, 1, 2]
    assert {total for *_, total in told} == {2}
    assert told[0][0] == f"a on {VTA}"


def test_a_wrong_target_is_said_before_anything_is_searched() -> None:
    with pytest.raises(SpecError, match="nowhere"):
        match(network("n", {"a": FULL}), [VTA, "nowhere"], prepares=False)


def test_a_network_without_products_has_no_use() -> None:
    graph = replace(network("n", {"a": FULL}), operators=(), outputs=())
    found = only(match(graph, [VTA], prepares=False))
    assert (found.products, found.line.use, found.line.use_by_macs) == (0, None, None)


FAMILIES = [
    ("conv2d", "n=2 c={c} h=9 w=7 k={k} r=3 s=2", "NHWC"),
    ("conv2d", "n=1 c={c} h=9 w=7 k={k} r=1 s=1 stride=2", "NHWC"),
    ("conv2d", "n=1 c={c} h=8 w=8 k={k} r=3 s=3 pad=1 groups=3", "NHWC"),
    ("depthwise", "n=1 c={c} h=8 w=9 r=3 s=3 pad=1", "NHWC"),
    ("depthwise", "n=1 c={c} h=8 w=9 r=3 s=3 m=2", "NHWC"),
    ("conv1d", "n=1 c={c} w=9 k={k} s=3", "NWC"),
    ("conv3d", "n=1 c={c} d=5 h=6 w=7 k={k} t=2 r=3 s=1", "NDHWC"),
]


@pytest.mark.parametrize("family, sizes, layout", FAMILIES)
def test_channels_last_is_the_layout_of_the_operators_family(
    family: str, sizes: str, layout: str
) -> None:
    words = f"{family} {sizes.format(c=4, k=5)}"
    plain, expected = workload(words), workload(f"{words} layout={layout}")
    names = [operand.name for operand in plain.operands]

    def tensor(name: str, *, is_image: bool) -> tuple[int, ...]:
        """The shape of an operand's tensor, in which groups and channels are one dimension."""
        shape = list(plain.operand(name).shape)
        extra = len(shape) - (len(layout) if is_image else len(shape))
        return (shape[0], math.prod(shape[1 : 2 + extra]), *shape[2 + extra :])

    image, weights, output = names
    graph = Graph(
        "g",
        {
            image: TensorType(tensor(image, is_image=True), "int8"),
            weights: TensorType(plain.operand(weights).shape, "int8"),
        },
        ("o",),
        operators=(
            Operator(
                "conv", Product(plain, tensor(output, is_image=True)), (image, weights), ("o",)
            ),
        ),
    )
    last = channels_last(graph, graph.operators[0], plain)
    assert last.access_maps == expected.access_maps
    assert {o.name: o.shape for o in last.operands} == {o.name: o.shape for o in expected.operands}


def test_a_planned_target_has_no_layout_of_images() -> None:
    with pytest.raises(SpecError, match="chooses the layout of each tensor"):
        match(network("n", {"a": FULL}), [hardware_spec("native")], prepares=False, layout="NHWC")


def test_a_layout_decides_what_is_read_in_place() -> None:
    """A unit that reads channels side by side has them where they are innermost."""
    net = network("n", {"a": "conv2d n=1 c=16 h=10 w=10 k=16 r=3 s=3"})
    first, last = (
        only(match(net, [VTA], prepares=False, layout=layout)).matched[0].match
        for layout in ("NCHW", "NHWC")
    )
    words = "conv2d n=1 c=16 h=10 w=10 k=16 r=3 s=3"
    for match_of, layout in ((first, "NCHW"), (last, "NHWC")):
        assert match_of is not None
        alone = matched(Request(workload(f"{words} layout={layout}", VTA), VTA))
        assert match_of.utilisation == alone.utilisation
        assert match_of.moved_bytes == alone.moved_bytes


def test_a_limit_after_a_first_embedding_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = plan_module.searches

    def searches(*given: Any, **more: Any) -> Any:
        return tuple(replace(result, top_proven=False) for result in usual(*given, **more))

    monkeypatch.setattr(plan_module, "searches", searches)
    found = matched(Request(workload(FULL, VTA), VTA, KernelOptions(timeout=20)))
    assert (found.outcome, found.ended) == ("yes", "stopped")
    assert found.reason == "stopped by the time limit: a better embedding may be missing"
    assert found.to_json()["ended"] == "stopped"

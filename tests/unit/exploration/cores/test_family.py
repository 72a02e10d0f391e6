"""The family of cores: points and their flaws, choices against the neutral model, and what more of
everything does."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from cpembed.cost.machine.technology import technology
from cpembed.driver.estimate import estimate
from cpembed.errors import LoweringError
from cpembed.exploration.cores.description import Core
from cpembed.exploration.cores.family import CoreAnalysis, survey
from cpembed.exploration.space_file import read_space
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.parser import parse_computation
from cpembed.provenance import Provenance
from cpembed.targets.family import Activity, Costs, Point, Value
from cpembed.workloads.suites import Layer
from tests.unit.exploration.cores.points import CONV, FAMILY, PRODUCT, layer, point


def analysed(given: Point, of: Layer) -> CoreAnalysis:
    return FAMILY.analyse(given, FAMILY.typed(of))


def activity(given: Point, of: Layer, analysis: CoreAnalysis | None = None) -> Activity:
    (choice,) = FAMILY.choices(given, analysis or analysed(given, of))
    assert choice.activity is not None
    return choice.activity


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"intrinsic": "gemmm"}, r"gemmm \(did you mean gemm\?\); allowed: gemm, conv2d"),
        ({"dataflow": "is"}, "dataflow = is; allowed for gemm: os, ws"),
        ({"intrinsic": "dot", "dataflow": "ws"}, "allowed for dot: os"),
        ({"pe_rows": 0}, "pe_rows = 0; allowed: 1 to 256"),
        ({"banks": 2.5}, "banks = 2.5; allowed: 1 to 64"),
        ({"dma_bits": 12}, "dma_bits = 12 is no multiple of 8"),
        ({"dtype": "int4"}, "dtype = int4.*; allowed: int8, uint8, float16, float32"),
        ({"clock_mhz": 2000}, "clock_mhz = 2000: a bank of the scratchpad takes .* ns; allowed: "),
        ({"scratchpad_kib": 8192, "banks": 1}, "8.38861e.06 bytes .* is outside of the table"),
        ({"technology": "7nm"}, "unknown technology '7nm'"),
        ({"constraints": "boxen"}, "constraints: .*boxen"),
    ],
)
def test_a_point_that_is_no_machine_says_why(changed: dict[str, Value], said: str) -> None:

    found = FAMILY.flaw(point(**changed))
    assert found is not None
    assert re.search(said, found), found


def test_columns_of_none_are_as_many_as_rows() -> None:
    assert FAMILY.flaw(point()) is None
    assert FAMILY.area_um2(point()) == FAMILY.area_um2(point(pe_columns=8))
    assert FAMILY.group(point()) == FAMILY.group(point(pe_columns=8))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dataflow", ["os", "ws"])
@pytest.mark.parametrize("banks", [1, 4])
def test_cycles_are_those_of_the_specifications_machine(
    dataflow: str, banks: int, tmp_path: Path
) -> None:
    """The best of ``solve --estimate`` over both machines of the file, by a finer search."""
    given = point(dataflow=dataflow, banks=banks)
    path = tmp_path / "core.toml"
    path.write_text(FAMILY.specification(given))
    spec = load_hardware_spec(path)
    times: list[float] = []
    for machine in spec.machines:
        found = estimate(FAMILY.typed(PRODUCT), spec, machine=machine, rank_by="estimate", top=3)
        assert found.solved.constraints.name == "cut_boxes"
        times += [e.cycles for e in found.estimates if not isinstance(e, str)]
        assert not any(e.packing_us for e in found.estimates if not isinstance(e, str))
    # The estimate may hold slices of one operand inside another one's tile.
    assert min(times) <= activity(given, PRODUCT).cycles * (1 + 1e-9)
    assert activity(given, PRODUCT).cycles == pytest.approx(min(times), rel=0.1)


def test_a_product_that_fits_moves_each_operand_once() -> None:
    """100 x 60 x 200 over a byte a cycle: A and B once from main memory and into the scratchpad,
    sums once back; every product that an array of 8 x 8 executes is counted."""
    given = point(dma_burst_bytes=1, scratchpad_kib=1024, dma_bits=8)
    found = activity(given, PRODUCT)
    assert found.provenance is Provenance.ESTIMATED
    assert found.counts["macs"] == 13 * 8 * 8 * 8 * 200
    assert found.counts["dram.read"] == 100 * 200 + 200 * 60
    assert found.counts["dram.written"] == 4 * 100 * 60
    assert found.counts["scratchpad.written"] >= found.counts["dram.read"] + 4 * 100 * 60
    assert found.counts["scratchpad.read"] >= 13 * 8 * 200 * 8 + 4 * 100 * 60
    assert found.cycles >= found.counts["macs"] / 64


def test_energy_is_that_of_the_counts() -> None:
    given = point(local_kib=0)
    known = technology()
    memory = known.sram(2**16, 64, 4)
    counts = {
        "macs": 1000.0,
        "scratchpad.read": 800.0,
        "scratchpad.written": 80.0,
        "dram.read": 64.0,
        "dram.written": 8.0,
    }
    found = FAMILY.energy_pj(given, Activity(500.0, Provenance.ESTIMATED, counts))
    dynamic = 1000 * (0.3 + 48 / 32) + 100 * memory.read_pj + 10 * memory.write_pj + 9 * 1300
    leaked = memory.leakage_w * 500 / 200e6 * 1e12
    assert found == pytest.approx(dynamic + leaked)
    assert FAMILY.leakage_w(given) == memory.leakage_w
    element = 282 + 137 + 48 * 4.522
    assert FAMILY.area_um2(given) == pytest.approx(64 * element + memory.area_um2)


def test_local_memories_of_few_words_are_registers() -> None:
    """16 KiB for 1024 sums of 4 bytes are 4 words each; for 64, 64 words: an SRAM."""
    few = FAMILY.area_um2(point(pe_rows=32)) - FAMILY.area_um2(point(pe_rows=32, local_kib=0))
    assert few == pytest.approx(2**14 * 8 * 4.522)
    many = FAMILY.area_um2(point()) - FAMILY.area_um2(point(local_kib=0))
    assert many == pytest.approx(64 * technology().sram(256, 32, 2).area_um2)


MORE = (
    ("banks", (1, 2, 3, 4, 6, 8, 16)),
    ("scratchpad_kib", (64, 128, 256, 512)),
    ("dma_bits", (32, 64, 128, 256)),
)


@pytest.mark.quick(1)
@pytest.mark.parametrize("of", [CONV, PRODUCT], ids=["conv", "product"])
@pytest.mark.parametrize("name, values", MORE, ids=[name for name, _ in MORE])
@pytest.mark.parametrize("intrinsic", ["gemm", "conv2d", "gemv", "dot"])
def test_more_never_takes_longer(
    intrinsic: str, name: str, values: tuple[int, ...], of: Layer
) -> None:
    if intrinsic == "conv2d" and of is PRODUCT:
        pytest.skip("a product has no window")
    analyses: dict[object, CoreAnalysis] = {}
    times: list[float] = []
    for value in values:
        given = point(**{"intrinsic": intrinsic, name: value})
        group = FAMILY.group(given)
        if group not in analyses:
            analyses[group] = analysed(given, of)
        times.append(activity(given, of, analyses[group]).cycles)
    assert times == sorted(times, reverse=True)
    # These products fit the smallest scratchpad so well that room alone need not help.
    assert times[-1] < times[0] or name == "scratchpad_kib"


def test_a_larger_array_costs_area_and_energy() -> None:
    points = [point(pe_rows=rows, local_kib=0) for rows in (4, 8, 16, 32)]
    areas = [FAMILY.area_um2(given) for given in points]
    assert areas == sorted(areas)
    assert areas[-1] - areas[0] == pytest.approx(
        (32**2 - 4**2) / (8**2 - 4**2) * (areas[1] - areas[0])
    )


def test_points_of_a_group_share_an_analysis() -> None:
    one = point(banks=2)
    for name, value in (("banks", 8), ("dma_bits", 64), ("clock_mhz", 100)):
        assert FAMILY.group(one) == FAMILY.group(point(**{"banks": 2, name: value}))
    for name, value in (("dataflow", "ws"), ("scratchpad_kib", 128), ("dma_burst_bytes", 32)):
        assert FAMILY.group(one) != FAMILY.group(point(**{"banks": 2, name: value}))
    assert eval(repr(FAMILY.group(one))) == FAMILY.group(one)


def test_an_analysis_is_the_same_after_it_was_kept() -> None:
    given = point()
    analysis = analysed(given, CONV)
    before = FAMILY.bound(given, analysis)
    again = pickle.loads(pickle.dumps(analysis))
    assert FAMILY.bound(given, again) == before
    assert FAMILY.choices(given, again) == FAMILY.choices(given, analysis)


def test_the_bound_is_the_costs() -> None:
    given = point()
    analysis = analysed(given, CONV)
    found = activity(given, CONV, analysis)
    assert FAMILY.bound(given, analysis) == Costs(found.cycles, FAMILY.energy_pj(given, found))


@pytest.mark.slow
def test_filters_of_other_sizes_are_padded_to_the_intrinsics_window() -> None:
    """HASCO, section VII-B: 30.56 % of the computation is redundant with 5 x 5 filters, 39.51 %
    with 7 x 7, where the taps of the workload are those of the intrinsic."""
    for taps, redundant in ((3, 0.0), (5, 0.3056), (7, 0.3951)):
        of = layer(f"conv2d n=1 c=16 h={taps + 7} w={taps + 7} k=16 r={taps} s={taps}")
        analysis = analysed(point(intrinsic="conv2d"), of)
        useful = {
            item.family: FAMILY.typed(of).macs / (item.nest.calls * 64 * 9)
            for item in analysis.software
        }
        own = [share for family, share in useful.items() if family == "k:k c:c r:r s:s"]
        assert own, useful
        assert 1 - own[0] == pytest.approx(redundant, abs=5e-5)


@pytest.mark.slow
def test_types_of_the_point_are_those_that_are_moved_and_computed() -> None:
    """float32 products over a byte a cycle: four times the bytes of int8, but for the sums."""
    given = point(dma_burst_bytes=1, scratchpad_kib=4096, dma_bits=8, dtype="float32")
    found = activity(given, PRODUCT)
    assert found.counts["dram.read"] == 4 * (100 * 200 + 200 * 60)
    assert found.counts["dram.written"] == 4 * 100 * 60
    unit = technology().mac("float32", "float32")
    assert FAMILY.area_um2(given) > 64 * unit.area_um2


def test_hascos_space_has_432_machines() -> None:
    """Xiao et al., ISCA 2021, src/codesign/explorer.py: 3 x 3 x 3 x 2 x 8."""
    space = read_space(Path(__file__).parents[4] / "experiments" / "hasco2021" / "gemm_432.toml")
    flaws = [space.flaw(space.point(place)) for place in space.places()]
    assert flaws == [None] * 432
    groups = {space.family.group(space.point(place)) for place in space.places()}
    assert len(groups) == 432 // 8


def test_a_second_stage_of_mttkrp_is_no_matrix_product() -> None:
    """HASCO, section VII-B: D[i,j] = E[i,k,j] * C[k,j] has all of j in each operand, so that the
    GEMM intrinsic executes the first stage alone; matrix-vector and dot products execute both."""
    types = {"E": "int8", "C": "int8", "D": "int32"}
    stage = parse_computation(
        "D[i,j] += E[i,k,j] * C[k,j]", {"i": 16, "j": 16, "k": 16}, name="D", dtypes=types
    )
    with pytest.raises(LoweringError, match="has no embedding on gemm_core_8x8_os under cut_boxes"):
        FAMILY.analyse(point(), stage)
    for intrinsic in ("gemv", "dot"):
        assert FAMILY.analyse(point(intrinsic=intrinsic), stage).software
    assert FAMILY.analyse(point(dataflow="ws"), stage).software


@pytest.mark.slow
def test_a_survey_has_the_best_software_and_worse() -> None:
    given = point(local_kib=0)
    found = survey(Core.at(given), FAMILY.typed(CONV))
    times = [cycles for _, cycles in found]
    assert len(times) > 3
    assert max(times) > 2 * min(times)
    assert activity(given, CONV).cycles == pytest.approx(min(times), rel=0.01)

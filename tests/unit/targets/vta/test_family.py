"""VTA's configurations as a family: what is a machine, which software it has, what that costs."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cpembed.cost.ranking import derive_candidate
from cpembed.driver.run import run
from cpembed.embedding.embedding import Embedding
from cpembed.errors import LoweringError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.family import Activity, Choice, Value
from cpembed.targets.vta.family import SIZED, Software, VtaAnalysis, VtaFamily, schedule_candidates
from cpembed.targets.vta.isa import Memory, VtaConfig
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.target import VtaTarget
from cpembed.targets.vta.timing import time_program
from cpembed.targets.vta.tuning import Nest
from cpembed.workloads.suites import Layer
from tests.unit.targets.vta.lowering import check

FAMILY = VtaFamily()
DEFAULT: dict[str, Value] = {p.name: p.default for p in FAMILY.parameters if p.default is not None}
CONV = "conv2d n=1 c=20 h=10 w=10 k=24 r=3 s=3 pad=1"
ODD = (
    CONV,
    "conv2d n=1 c=3 h=17 w=15 k=10 r=5 s=5 pad=2 stride=2",
    "conv2d n=3 c=33 h=7 w=7 k=9 r=1 s=1 pad=0",
    "depthwise n=1 c=24 h=9 w=9 r=3 s=3 pad=1",
    "gemm m=5 n=37 k=67",
)


def point(**changes: Value) -> dict[str, Value]:
    return {**DEFAULT, **changes}


def layer(words: str) -> Computation:
    return FAMILY.typed(Layer("words", 0, "", words))


@cache
def analysis(words: str, *group: tuple[str, Value]) -> VtaAnalysis:
    return FAMILY.analyse(point(**dict(group)), layer(words))


def lowered(target: VtaTarget, workload: Computation, choice: Choice) -> LoweredVta:
    embedding = Embedding.from_json(choice.payload.embedding)
    candidate = derive_candidate(workload, target.spec.instruction, embedding)
    return Nest.from_program(candidate.program, target.machine(workload)).lowered(
        choice.payload.schedule
    )


def target_of(made: Mapping[str, Value], folder: Path) -> VtaTarget:
    path = folder / "made.toml"
    path.write_text(FAMILY.specification(made), encoding="utf-8")
    return VtaTarget(load_hardware_spec(path))


def test_the_default_point_is_the_shipped_machine(tmp_path: Path) -> None:
    shipped = VtaTarget(load_hardware_spec("vta_1x16x16"))
    made = target_of(DEFAULT, tmp_path)
    assert (made.config, made.memory, made.clock_mhz) == (
        shipped.config, shipped.memory, shipped.clock_mhz,
    )  # fmt: skip
    assert made.config == VtaConfig()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"log_block": 9}, "holds 2^0 elements"),
        ({"log_block": 2}, "fields of"),
        ({"log_block": 4.0}, "log_block = 4.0 is no natural number"),
        ({"log_block": 99}, "log_block = 99; allowed: 0 to 10: it is a logarithm"),
        ({"log_inp_buff": 9}, "log_inp_buff = 9; allowed: 10 and more"),
        ({"log_acc_buff": 300}, "log_acc_buff = 300; allowed: 0 to 40"),
        ({"bus_bits": 65}, "bus_bits = 65; allowed: 64, 128, 256, 512"),
        ({"clock_mhz": 0}, "clock_mhz = 0; allowed: above 0"),
        ({"technology": "3nm"}, "technology 3nm: allowed: 45nm"),
        ({"schedules": 0}, "schedules = 0; allowed: 1 to 64"),
        ({"log_block": 5, "log_wgt_buff": 14}, "WGT: an SRAM bank of 1024 bytes"),
        ({"log_block": 6, "log_batch": 9, "log_wgt_buff": 20, "log_inp_buff": 20,
          "log_acc_buff": 22}, "a GEMM core of 512x64x64"),
    ],
)  # fmt: skip
def test_what_is_no_machine_is_said(changes, words) -> None:
    found = FAMILY.flaw(point(**changes))
    assert found is not None
    assert words in found
    assert "\n" not in found


def test_costs_grow_with_what_a_machine_has() -> None:
    least = point(log_inp_buff=13, log_wgt_buff=15, log_acc_buff=15, log_uop_buff=13)
    area, leakage = FAMILY.area_um2(least), FAMILY.leakage_w(least)
    for name in ("log_inp_buff", "log_wgt_buff", "log_acc_buff", "log_uop_buff", "log_batch"):
        more = {**least, name: int(least[name]) + 1}
        assert FAMILY.flaw(more) is None
        assert FAMILY.area_um2(more) > area
        if name != "log_batch":
            assert FAMILY.leakage_w(more) > leakage
    assert FAMILY.area_um2({**least, "bus_bits": 128, "clock_mhz": 300}) == area


def test_points_share_a_group_where_programs_and_cycles_are_the_same() -> None:
    group = FAMILY.group(DEFAULT)
    for same in ({"log_inp_buff": 14}, {"log_acc_buff": 15}, {"clock_mhz": 333}):
        assert FAMILY.group(point(**same)) == group
    for other in ({"log_batch": 1}, {"log_block": 5}, {"bus_bits": 128}, {"schedules": 4}):
        assert FAMILY.group(point(**other)) != group
    # Programs use 2,048 micro-ops at most, as the RTL keeps no more.
    assert FAMILY.group(point(log_uop_buff=13)) == group != FAMILY.group(point(log_uop_buff=12))


@pytest.mark.slow
def test_what_fits_is_what_lowers_and_no_buffer_changes_a_program(tmp_path: Path) -> None:
    """Of each schedule the smallest machine that it fits executes it in the cycles of the group's
    largest; where one buffer is half as large, nothing lowers."""
    workload, found = layer(CONV), analysis(CONV)
    rng = random.Random(0)
    target = target_of(DEFAULT, tmp_path)
    machine = target.machine(workload)
    assert found.candidates
    for item in rng.sample(found.candidates, min(12, len(found.candidates))):
        choice = FAMILY._choice(found, found.candidates.index(item))
        program = derive_candidate(
            workload, target.spec.instruction, Embedding.from_json(choice.payload.embedding)
        ).program
        cycles: set[int] = set()
        for more in (0, 1):
            config = with_elements(target.config, [need + more for need in item.needs])
            nest = Nest.from_program(program, replace(machine, config=config))
            image = nest.lowered(item.schedule).empty_image()
            cycles.add(time_program(image, target.memory).cycles)
        assert len(cycles) == 1
        for which in range(len(SIZED)):
            holds = [need - (k == which) for k, need in enumerate(item.needs)]
            if holds[which] < 1:
                continue
            config = with_elements(target.config, holds)
            with pytest.raises(LoweringError, match="tiles take"):
                Nest.from_program(program, replace(machine, config=config)).lowered(item.schedule)


def with_elements(config: VtaConfig, logs: list[int]) -> VtaConfig:
    names = ("log_inp_buff", "log_wgt_buff", "log_acc_buff")
    changes = {
        name: log + config.element_bytes(memory).bit_length() - 1
        for name, memory, log in zip(names, SIZED, logs, strict=True)
    }
    return replace(config, **changes)


@pytest.mark.quick(3)
def test_at_each_size_the_best_by_estimate_are_there(tmp_path: Path) -> None:
    """Against the schedules that the machine of that size ranks itself."""
    words = "conv2d n=1 c=32 h=6 w=6 k=32 r=3 s=3 pad=1"
    workload, found = layer(words), analysis(words)
    for logs in ((15, 18, 17), (10, 13, 13), (11, 14, 12)):
        made = point(
            **dict(zip(("log_inp_buff", "log_wgt_buff", "log_acc_buff"), logs, strict=True))
        )
        target = target_of(made, tmp_path)
        best = float("inf")
        for document in found.embeddings:
            program = derive_candidate(
                workload, target.spec.instruction, Embedding.from_json(document)
            ).program
            try:
                best = min(best, target.space(target.lower(program)).best().cost)
            except LoweringError:
                continue
        first = FAMILY._fitting(made, found)[0]
        # Tile sizes are a little fewer than where a single machine is looked at.
        assert best <= found.candidates[first].estimate <= 1.02 * best


@pytest.mark.slow
def test_costs_at_a_point_are_those_of_run(tmp_path: Path) -> None:
    """The same program through the front door: cycles, and the bytes that it moves."""
    made = point(log_batch=1, log_block=3, log_inp_buff=13, log_wgt_buff=14, log_acc_buff=14)
    words = "gemm m=24 n=40 k=72"
    target = target_of(made, tmp_path)
    result = run(layer(words), str(tmp_path / "made.toml"), constraints="complete", seed=1)
    software = Software(result.candidate.embedding.to_json(), result.choice.schedule)
    found = FAMILY.evaluate(made, layer(words), Choice("0", "", software))
    document = result.details.to_json()
    assert found.cycles == document["simulated_cycles"]
    moved = document["bytes"]
    assert found.counts["dram.write"] == moved["OUT"]
    assert found.counts["dram.read"] == sum(
        moved[name] for name in ("FETCH", "UOP", "INP", "WGT", "ACC")
    )
    assert target.config.log_batch == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("words", ODD[:2])
def test_bounds_hold_at_every_point(words: str) -> None:
    found = analysis(words)
    assert pickle.loads(pickle.dumps(found)) == found
    rng = random.Random(words)
    known: dict[str, Activity] = {}
    points = 0
    while points < 8:
        made = point(
            log_inp_buff=rng.randint(10, 15), log_wgt_buff=rng.randint(13, 18),
            log_acc_buff=rng.randint(12, 17),
        )  # fmt: skip
        if FAMILY.flaw(made) is not None:
            continue
        points += 1
        bound, choices = FAMILY.bound(made, found), FAMILY.choices(made, found)
        assert (bound is None) == (not choices)
        for choice in choices:
            if choice.key not in known:
                known[choice.key] = FAMILY.evaluate(made, layer(words), choice)
            assert bound is not None
            assert bound.cycles <= known[choice.key].cycles
            assert bound.energy_pj <= FAMILY.energy_pj(made, known[choice.key])


def test_a_larger_machine_has_all_that_fits_a_smaller_one() -> None:
    found = analysis(CONV)
    small, large = point(log_inp_buff=11, log_wgt_buff=13, log_acc_buff=13), point()
    best = [found.candidates[FAMILY._fitting(made, found)[0]].estimate for made in (small, large)]
    assert best[1] <= best[0]


def test_what_fits_no_machine_is_refused(tmp_path: Path) -> None:
    target = target_of(DEFAULT, tmp_path)
    with pytest.raises(LoweringError, match="single tiles exceed the buffers"):
        schedule_candidates([], target.machine(layer(CONV)), 3)


@pytest.mark.slow
@pytest.mark.parametrize("words", ODD)
@pytest.mark.parametrize("seed", range(8))
def test_chosen_software_computes_the_layer(words: str, seed: int, tmp_path: Path) -> None:
    """On odd machines: legal programs, bit for bit what numpy computes."""
    rng = random.Random(f"{words} {seed}")
    made = point()
    while True:
        made = point(
            log_batch=rng.randint(0, 4), log_block=rng.randint(2, 6),
            log_inp_buff=rng.randint(10, 16), log_wgt_buff=rng.randint(12, 19),
            log_acc_buff=rng.randint(12, 18), log_uop_buff=rng.randint(7, 15),
            bus_bits=rng.choice((64, 128, 256, 512)),
        )  # fmt: skip
        if FAMILY.flaw(made) is None:
            break
    workload = layer(words)
    try:
        found = FAMILY.analyse(made, workload)
    except LoweringError:
        return
    target = target_of(made, tmp_path)
    for choice in FAMILY.choices(made, found):
        program = lowered(target, workload, choice)
        check(program, workload, seed)
        cycles = time_program(program.empty_image(), target.memory).cycles
        activity = FAMILY.evaluate(made, workload, choice)
        assert activity.cycles == cycles
        assert activity.counts["macs"] >= workload.macs or words.startswith(("conv", "depth"))
        assert {m for m in Memory if f"{m.name.lower()}.read" in activity.counts} == set(Memory)

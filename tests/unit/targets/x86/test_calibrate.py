"""From the times of probes to the constants of a machine."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cpembed.errors import BackendUnavailable, CrashError, MeasurementError
from cpembed.targets.cpu.calibration import OPERATIONS
from cpembed.targets.x86 import features
from cpembed.targets.x86.calibrate import (
    assemble,
    disturbances,
    measure_calibration,
    row_ns,
    task_ns,
    usual_row_ns,
)
from cpembed.targets.x86.microbenchmarks import BEST, Microbenchmarks, Probe, Series

TIMES = {
    "clock": 0.4,
    "call_us": 500.0,
    "launch_us": 2500.0,
    "product_ns:tdpbusd": 8.0,
    "product_row_ns:tdpbusd": 6.0,
    "latency_ns:tdpbusd": 9.0,
    "product_shared_ns:tdpbusd": 12.0,
    "product_ns:vpdpbusd": 0.25,
    "latency_ns:vpdpbusd": 2.0,
    "product_shared_ns:vpdpbusd": 0.5,
    "tile_line_ns:L1": 0.25,
    "tile_line_ns:L2": 0.5,
    "tile_line_ns:L3": 2.0,
    "tile_line_ns:memory": 4.0,
    "vector_line_ns:L1": 0.125,
    "vector_line_ns:L2": 0.75,
    "vector_line_ns:L3": 3.0,
    "vector_line_ns:memory": 6.0,
    "store_line_ns:L1": 0.5,
    "store_line_ns:L2": 1.5,
    "store_line_ns:L3": 5.0,
    "split_line_ns": 1.5,
    "copy_ns_per_line": 2.5,
    "task_ns:1": 100.0,
    "task_ns:16": 550.0,
}


def series(times: dict[str, float] = TIMES, *, rounds: int = BEST) -> dict[str, Series]:
    """Probes whose unit takes so long, each round alike."""

    def taken(name: str, ns: float) -> Series:
        probe = Probe(name, lambda steps: True, 10, 1010)
        return Series(probe, BEST, [10.0 * ns] * rounds, [1010.0 * ns] * rounds)

    return {name: taken(name, ns) for name, ns in times.items()}


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")


def test_every_constant_comes_from_its_probe() -> None:
    found = assemble(series(), has_tiles=True)
    assert found.threads == 3
    assert found.product_ns == pytest.approx({"tdpbusd": 8.0, "vpdpbusd": 0.25})
    assert found.product_row_ns == pytest.approx({"tdpbusd": 0.25, "vpdpbusd": 0.0})
    assert found.latency_ns == pytest.approx({"tdpbusd": 9.0, "vpdpbusd": 2.0})
    assert found.product_shared_ns == pytest.approx({"tdpbusd": 12.0, "vpdpbusd": 0.5})
    assert found.tile_line_ns == pytest.approx((0.25, 0.5, 2.0, 4.0))
    assert found.vector_line_ns == pytest.approx((0.125, 0.75, 3.0, 6.0))
    assert found.store_line_ns == pytest.approx((0.5, 1.5, 5.0))
    # A step takes 30 of the 100 ns, the 64 lines of four tiles 32.
    assert found.task_ns == pytest.approx(100 - 30 - 64 * 0.5)
    assert (found.launch_us, found.call_us) == pytest.approx((2.5, 0.5))
    assert found.split_line_ns == pytest.approx(1.5)
    assert found.copy_ns_per_line == pytest.approx(2.5)
    assert found.noisy == ()
    assert not found.is_default


def test_without_tiles_their_figures_are_absent() -> None:
    plain = {name: ns for name, ns in TIMES.items() if "tdp" not in name and "tile" not in name}
    found = assemble(series(plain), has_tiles=False)
    assert found.product_ns.keys() == found.latency_ns.keys() == {"vpdpbusd"}
    assert found.tile_line_ns == (0.0, 0.0, 0.0, 0.0)
    assert found.task_ns == pytest.approx(100 - 30 - 12 * 0.5)


def test_threads_that_never_ran_together_have_no_shared_product() -> None:
    times = series()
    times["product_shared_ns:tdpbusd"].long.clear()
    found = assemble(times, has_tiles=True)
    assert found.product_shared_ns.keys() == {"vpdpbusd"}
    assert found.shared_peak_gops("tdpbusd") is None
    assert found.noisy == ("product_shared_ns:tdpbusd",)


@pytest.mark.parametrize("name", ["product_ns:vpdpbusd", "latency_ns:tdpbusd", "tile_line_ns:L3"])
def test_no_calibration_lacks_a_figure_that_plans_need(name: str) -> None:
    times = series()
    times[name].long[:] = times[name].short
    with pytest.raises(MeasurementError, match=f"{name} could not be timed in 5 rounds"):
        assemble(times, has_tiles=True)


def test_a_row_that_could_not_be_timed_is_the_usual_one() -> None:
    times = series()
    times["product_row_ns:tdpbusd"].long[:] = times["product_row_ns:tdpbusd"].short
    found = assemble(times, has_tiles=True)
    assert found.product_row_ns["tdpbusd"] == usual_row_ns("tdpbusd", 8.0)


def test_one_thread_shares_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    alone = {name: ns for name, ns in TIMES.items() if "shared" not in name}
    found = assemble(series(alone), has_tiles=True)
    assert found.product_shared_ns == found.product_ns


def test_what_has_not_settled_is_named() -> None:
    times = series()
    times["tile_line_ns:L3"].long[0] *= 0.8
    assert assemble(times, has_tiles=True).noisy == ("tile_line_ns:L3",)


def test_a_figure_below_nothing_is_nothing() -> None:
    assert row_ns(5.0, 5.5) == 0.0
    assert row_ns(16.0, 8.0) == 1.0
    assert task_ns(10.0, 160.0, stores_ns=30.0) == 0.0
    assert task_ns(50.0, 200.0, stores_ns=30.0) == 10.0


def test_disturbances_are_said() -> None:
    found = assemble(series(), has_tiles=True)
    assert disturbances(found, 2.5, 0.0, []) == ()
    assert "1.5 cores" in disturbances(found, 2.5, 1.5, [])[0]
    (note,) = disturbances(found, 2.5, 0.0, ["tile_line_ns:L3"])
    assert "tile_line_ns:L3 had no figure on 3 threads, so it is that of one" in note
    assert disturbances(replace(found, threads=1), 2.5, 0.0, ["tile_line_ns:L3"]) == ()
    (note,) = disturbances(replace(found, product_ns={"tdpbusd": 17.2}), 2.5, 0.0, [])
    assert "tdpbusd took 43 cycles of 2.5 GHz, and 16 are documented" in note
    # 13 cycles of 2.5 GHz: a core that lowers its clock for AMX is not disturbed.
    assert disturbances(replace(found, product_ns={"tdpbusd": 7.3}), 2.5, 0.0, []) == ()


def test_a_cpu_without_the_instructions_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "cpu_features", frozenset)
    with pytest.raises(BackendUnavailable, match=r"no instruction to calibrate: tdpbusd: CPU"):
        measure_calibration()


@pytest.mark.parametrize("products", [["vpdpbusd"], list(OPERATIONS)])
def test_every_figure_has_its_probe(
    products: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes of a CPU, without compiling them."""
    monkeypatch.setattr("cpembed.codegen.runtime.compile_plan", lambda plan: lambda *buffers: None)
    counted: list[tuple[int, int]] = []
    microbenchmarks = Microbenchmarks(products, (48 * 1024, 2**21, 2**25), 3)
    probes = microbenchmarks.probes(lambda *what: counted.append(what))
    names = {probe.name for probe in probes}
    assert len(names) == len(probes)
    wanted = {
        name
        for name in TIMES
        if (
            microbenchmarks.has_tiles
            or not {"tile_line_ns", "split_line_ns"} & {name.split(":")[0]}
        )
        and (":" not in name or name.split(":")[1][:3] not in ("tdp", "vpd"))
    }
    for product in products:
        kinds = ["product_ns", "latency_ns", "product_shared_ns"]
        kinds += ["product_row_ns"] if product.startswith("tdp") else []
        wanted |= {f"{kind}:{product}" for kind in kinds}
    assert names == wanted
    assert counted[-1][0] == counted[-1][1] == len(counted)
    assert all(probe.short < probe.long for probe in probes)
    assemble(series(dict.fromkeys(names, 1.0)), has_tiles=microbenchmarks.has_tiles)
    alone = {"tile_line_ns:L3", "vector_line_ns:memory", "product_shared_ns:tdpbusd"} & names
    again = {probe.name for probe in microbenchmarks.single_thread(alone)}
    assert again == {name for name in alone if "line" in name}
    assert microbenchmarks.single_thread([]) == []


def test_an_instruction_that_ends_its_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured of the others counts, and the reason is said."""
    asked: list[dict[str, str]] = []

    def call(function: object, ended: dict[str, str], *limits: object, progress: object) -> str:
        asked.append(dict(ended))
        if "vdpbf16ps" not in ended:
            raise CrashError.from_exit("measuring vdpbf16ps", -signal.SIGILL, "")
        return "measured"

    monkeypatch.setattr("cpembed.runtime.worker.call", call)
    assert measure_calibration() == "measured"
    (reason,) = asked[-1].values()
    assert (len(asked), list(asked[-1])) == (2, ["vdpbf16ps"])
    assert "measuring vdpbf16ps ended in SIGILL" in reason


def test_what_is_no_instructions_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*arguments: object, progress: object) -> None:
        raise CrashError.from_exit("compiling a kernel of x86.calibration", -signal.SIGABRT, "")

    monkeypatch.setattr("cpembed.runtime.worker.call", call)
    with pytest.raises(CrashError, match="SIGABRT"):
        measure_calibration()

"""Running on a simulated VTA: forms of the output, bounds, what is counted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.errors import SpecError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.targets.registry import open_target
from cpembed.targets.vta.tail import Exact, OutputForm, Requantized, Tail, Truncated
from cpembed.targets.vta.tail import tail_for as tail_stored
from cpembed.targets.vta.target import VtaDetails

VTA = "vta_1x16x16"


def simulated(words: str, target: str = VTA, form: OutputForm | None = None) -> RunResult:
    layer = workload(words, target=target)
    result = run(layer, target, output=form, untuned=True)
    assert isinstance(result, RunResult)
    assert result.provenance is Provenance.SIMULATED
    return result


def details(result: RunResult) -> VtaDetails:
    assert isinstance(result.details, VtaDetails)
    return result.details


def tail_for(layer: Computation, form: OutputForm | None, shift: int | None) -> Tail:
    return tail_stored(VTA, layer, EpilogueRequest(form, shift))


def gemm(dtype: str = "int32", length: int = 64) -> Computation:
    layer = workload(f"gemm m=4 n=16 k={length}", target=VTA)
    return layer.with_dtypes({"C": dtype})


def test_forms_follow_the_element_type_unless_asked_for() -> None:
    assert isinstance(tail_for(gemm(), None, None), Requantized)
    assert tail_for(gemm(), None, 3) == Requantized(3)
    assert tail_for(gemm(), "int32", None) == Exact()
    assert tail_for(gemm(), "int8", None) == Truncated()
    assert tail_for(gemm("int8"), None, None) == Truncated()


def test_a_longer_reduction_is_shifted_further() -> None:
    shifts = [tail_for(gemm(length=length), None, None) for length in (16, 64, 1024)]
    # Half a bit for each doubling of the number of products.
    assert [tail.shift for tail in shifts if isinstance(tail, Requantized)] == [9, 10, 12]


@pytest.mark.parametrize("form, shift", [("int32", 3), ("int8", 0)])
def test_only_requantized_results_are_shifted(form: OutputForm, shift: int) -> None:
    with pytest.raises(WorkloadError, match=f"output {form} has no shift"):
        tail_for(gemm(), form, shift)
    with pytest.raises(WorkloadError, match="has no shift"):
        tail_for(gemm("int8"), None, shift)


def test_what_is_wrong_is_found_before_the_search() -> None:
    with pytest.raises(SpecError, match=r"vta.inp.*holds no operand"):
        open_target(replace(hardware_spec("amx_int8"), backend="vta"))
    with pytest.raises(SpecError, match="machine: is missing: cycles and times need the clock"):
        open_target(replace(hardware_spec(VTA), machine=None))


def test_cycles_and_bytes_of_a_product_are_those_of_its_tiles() -> None:
    """A product of 8 rows of 64 with 64 x 32: counted by hand."""
    result = details(simulated("gemm m=8 n=32 k=64"))
    calls, weights, rows_in, rows_out = 8 * 2 * 4, 2 * 4 * 256, 8 * 64, 8 * 32
    assert result.timing.gemm_cycles == calls
    assert result.bounds.gemm == calls
    # A reset, a shift, a minimum and a maximum of each of 8 x 2 tiles.
    assert result.bounds.compute == calls + 4 * 16
    assert result.bounds.read == (weights + rows_in) // 8
    # Of each burst of 128 bytes three cycles, of each tile two beats and a row; one to begin.
    assert result.bounds.write == 3 * (rows_out // 128) + 3 * 16 + 1
    assert result.bounds.gemm_or_dma == (weights + rows_in) // 8
    assert result.timing.bytes["OUT"] == rows_out
    assert result.timing.bytes["WGT"] >= weights


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", ["requantized", "int32", "int8"])
@pytest.mark.parametrize(
    "words",
    [
        "conv2d n=1 c=32 h=14 w=14 k=32 r=3 s=3 pad=1",
        "conv2d n=1 c=64 h=14 w=14 k=256 r=1 s=1 stride=2",
        "conv2d n=1 c=3 h=16 w=12 k=16 r=5 s=5 pad=1 stride=2",
        "C[m,n]+=X[m,k]*X[n,k] m=20 n=16 k=32",
    ],
)
def test_no_program_is_faster_than_its_bounds(words: str, form: OutputForm) -> None:
    ran = simulated(words, form=form)
    assert ran.verification.verified
    result = details(ran)
    assert result.timing.cycles >= result.bounds.busiest_module >= result.bounds.gemm_or_dma


def test_rates_are_of_the_simulated_time() -> None:
    result = simulated("gemm m=8 n=32 k=64")
    times, found = result.timing, details(result)
    assert times.latency_us is not None
    assert found.microseconds == times.latency_us.median == found.timing.cycles / 100
    assert (times.cycles, times.clock_mhz) == (found.timing.cycles, 100)
    operations = 2 * 8 * 32 * 64
    assert math.isclose(found.gops, operations / found.microseconds / 1e3)
    assert times.gops == found.gops
    assert times.packed_ahead == ("B",)
    # The rows are in order already; their results need no move either.
    assert (times.packing_us, times.unpacking_us) == (0, 0)


def test_the_document_has_every_field_and_says_how_the_time_came_about() -> None:
    """Those of earlier versions, which readers know, and what every target says."""
    document = simulated("gemm m=8 n=32 k=64").to_json()
    assert {
        "workload", "target", "constraints", "embedding", "rank", "seed", "backend", "verified",
        "max_error", "tolerance", "output", "simulated_cycles", "clock_mhz", "simulated_us",
        "simulated_gops", "gemm_utilisation", "lower_bound_cycles", "lower_bound_ratio",
        "busiest_module_cycles", "busiest_module_ratio", "expectation", "bounds", "bytes",
        "modules", "memory", "schedule", "tuned", "instructions", "micro_ops", "packing_us",
        "unpacking_us", "packed_ahead", "noisy", "seconds",
    } <= set(document)  # fmt: skip
    assert "latency_us" not in document
    assert document["provenance"] == document["time"]["provenance"] == "simulated"
    assert document["time"]["cycles"] == document["simulated_cycles"]
    assert document["time"]["us"] == document["simulated_us"]
    phases = {"solve", "lower", "pack", "check", "functional", "timed", "measure"}
    assert phases <= set(document["seconds"])


@pytest.mark.slow
def test_bytes_that_were_stored_apart_are_put_together_in_the_unpacking() -> None:
    assert simulated("gemm m=8 n=32 k=64", form="int32").timing.unpacking_us > 0

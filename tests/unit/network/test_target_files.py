"""A network on a target of the user's own: the file's contents count, whatever its name is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.build import build
from cpembed.driver.matching import network_units
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.result import SolveResult
from cpembed.errors import BackendUnavailable
from cpembed.export.library import compiler
from cpembed.graph.graph import evaluate
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.build import compile_network, prepared_and_named
from cpembed.network.kernel_cache import Cache
from cpembed.network.plan import Planning, plan_network
from cpembed.network.program import required_features
from cpembed.resources import hardware_spec_files
from cpembed.targets.registry import missing_for
from tests.unit.network.networks import network

SHIPPED = "avx2_int8"

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)
if missing_for(load_hardware_spec(SHIPPED)):
    pytest.skip("no AVX2", allow_module_level=True)


def written(folder: Path, name: str) -> Path:
    """A file that asks for one feature more than the shipped target."""
    text = hardware_spec_files()[SHIPPED].read_text("utf-8")
    text = text.replace(f'name = "{SHIPPED}"', f'name = "{name}"')
    text = text.replace('cpu_features = ["avx2"]', 'cpu_features = ["avx2", "sse4_2"]')
    file = folder / f"{name}.toml"
    file.write_text(text, "utf-8")
    return file


GRAPH = network("net", {"first": "gemm m=8 n=16 k=8 dtype=uint8,int8,int32"})
NAMES = ["of_my_own", SHIPPED, "avx512_vnni"]
"""Nobody's, and those of shipped targets, which are others then."""


@pytest.mark.parametrize("name", NAMES)
def test_the_contents_of_the_file_are_planned(tmp_path: Path, name: str) -> None:
    units = network_units(str(written(tmp_path, name)))
    plan = plan_network(prepared_and_named(GRAPH, units), units, Planning(cache=Cache(tmp_path)))
    kernels = [e.kernel for e in plan.executions.values() if e.kernel is not None]
    assert [kernel.spec for kernel in kernels] == [units.named]
    assert set(required_features(plan)) == {"avx2", "sse4_2"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_contents_of_the_file_are_what_runs(tmp_path: Path, name: str) -> None:
    made = compile_network(GRAPH, str(written(tmp_path, name)), tmp_path / "out")
    assert "sse4_2" in made.network.program.features
    rng = np.random.default_rng(5)
    inputs = {
        key: rng.integers(0, 100, kind.shape).astype(kind.dtype)
        for key, kind in GRAPH.inputs.items()
    }
    (output,) = GRAPH.outputs
    with made.open(2) as running:
        found = running.run(inputs)[output]
    assert np.array_equal(found, evaluate(GRAPH, inputs)[output])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_built_from_the_file(tmp_path: Path, name: str) -> None:
    spec = hardware_spec(str(written(tmp_path, name)))
    layer = workload("gemm m=8 n=16 k=8", spec)
    built = build(layer, str(written(tmp_path, name)), tmp_path / "out", name="layer")
    assert not isinstance(built, SolveResult)
    assert built.selection.solved.target == spec
    assert "sse4_2" in built.features

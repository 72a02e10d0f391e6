"""Embed hardware instructions in tensor operators: every way, ranked, proven, generated.

>>> import cpembed
>>> layer = cpembed.workload("gemm m=8 n=16 k=32", target="vta_1x16x16")
>>> result = cpembed.solve(layer, "vta_1x16x16")
>>> result.best.embedding.family
{'x': (), 'y': ('n',), 'z': ('k',)}
>>> cpembed.run(layer, "vta_1x16x16", seed=1).verification.verified
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpembed.driver.bench import bench as bench
    from cpembed.driver.build import build as build
    from cpembed.driver.estimate import estimate as estimate
    from cpembed.driver.explain import explain as explain
    from cpembed.driver.layouts import compare_layouts as compare_layouts
    from cpembed.driver.named import hardware_spec as hardware_spec
    from cpembed.driver.named import workload as workload
    from cpembed.driver.options import BenchOptions as BenchOptions
    from cpembed.driver.options import BuildOptions as BuildOptions
    from cpembed.driver.options import EstimateOptions as EstimateOptions
    from cpembed.driver.options import RunOptions as RunOptions
    from cpembed.driver.options import SolveOptions as SolveOptions
    from cpembed.driver.options import TuneOptions as TuneOptions
    from cpembed.driver.result import Explanation as Explanation
    from cpembed.driver.result import SolveResult as SolveResult
    from cpembed.driver.run import run as run
    from cpembed.driver.run_result import RunResult as RunResult
    from cpembed.driver.solve import pareto as pareto
    from cpembed.driver.solve import solve as solve
    from cpembed.driver.tune import tune as tune
    from cpembed.embedding.constraint_set import ConstraintSet as ConstraintSet
    from cpembed.embedding.embedding import Embedding as Embedding
    from cpembed.errors import CpembedError as CpembedError
    from cpembed.frontends import load_model as load_model
    from cpembed.graph.graph import Graph as Graph
    from cpembed.hw.instruction import HardwareSpec as HardwareSpec
    from cpembed.hw.instruction import Instruction as Instruction
    from cpembed.ir.computation import Computation as Computation
    from cpembed.network.compiled_model import CompileOptions as CompileOptions
    from cpembed.network.compiled_model import compile_sizes as compile
    from cpembed.network.match import match as match
    from cpembed.network.processors import build_model as build_model
    from cpembed.targets.base import Target as Target

_MODULES = {
    "cpembed.driver.bench": ["bench"],
    "cpembed.driver.build": ["build"],
    "cpembed.driver.estimate": ["estimate"],
    "cpembed.driver.explain": ["explain"],
    "cpembed.driver.layouts": ["compare_layouts"],
    "cpembed.driver.named": ["hardware_spec", "workload"],
    "cpembed.driver.options": [
        "BenchOptions",
        "BuildOptions",
        "EstimateOptions",
        "RunOptions",
        "SolveOptions",
        "TuneOptions",
    ],
    "cpembed.driver.result": ["Explanation", "SolveResult"],
    "cpembed.driver.run": ["run"],
    "cpembed.driver.run_result": ["RunResult"],
    "cpembed.driver.solve": ["pareto", "solve"],
    "cpembed.driver.tune": ["tune"],
    "cpembed.embedding.constraint_set": ["ConstraintSet"],
    "cpembed.embedding.embedding": ["Embedding"],
    "cpembed.errors": ["CpembedError"],
    "cpembed.frontends": ["load_model"],
    "cpembed.graph.graph": ["Graph"],
    "cpembed.hw.instruction": ["HardwareSpec", "Instruction"],
    "cpembed.ir.computation": ["Computation"],
    "cpembed.network.compiled_model": ["CompileOptions", "compile"],
    "cpembed.network.match": ["match"],
    "cpembed.network.processors": ["build_model"],
    "cpembed.targets.base": ["Target"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
# In its module the name must not hide a built-in function.
_NAMES = {"compile": "compile_sizes"}

__all__ = [
    "BenchOptions",
    "BuildOptions",
    "CompileOptions",
    "Computation",
    "ConstraintSet",
    "CpembedError",
    "Embedding",
    "EstimateOptions",
    "Explanation",
    "Graph",
    "HardwareSpec",
    "Instruction",
    "RunOptions",
    "RunResult",
    "SolveOptions",
    "SolveResult",
    "Target",
    "TuneOptions",
    "bench",
    "build",
    "build_model",
    "compare_layouts",
    "compile",
    "estimate",
    "explain",
    "hardware_spec",
    "load_model",
    "match",
    "pareto",
    "run",
    "solve",
    "tune",
    "workload",
]


def __getattr__(name: str) -> Any:
    """Import a name of the front door at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'cpembed' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), _NAMES.get(name, name))
    # Later uses do not come here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

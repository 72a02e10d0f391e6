"""Plug-in for TVM: programs of any target in TVM's own modules.

>>> import cpembed.integrations.tvm
>>> cpembed.integrations.tvm.offload("vta_1x16x16").report.operators
()

Importing it registers the function that runs the programs of compiled modules; a process that only
loads such a module must import it too.
"""

from cpembed.codegen import runtime

# TVM sets up its thread pool at its first import, so this one must come first.
runtime.tvm()

from cpembed.integrations.tvm.emission import register_functions  # noqa: E402
from cpembed.integrations.tvm.fused import Fused, recognise_fused  # noqa: E402
from cpembed.integrations.tvm.offload import (  # noqa: E402
    Strategy,
    StrategyCandidate,
    offload,
    strategy,
)
from cpembed.integrations.tvm.pipeline import Pipeline, pipeline  # noqa: E402
from cpembed.integrations.tvm.recognise import Recognised, recognise  # noqa: E402
from cpembed.integrations.tvm.reports import (  # noqa: E402
    OffloadReport,
    OperatorReport,
    ScheduleEntry,
    ScheduleReport,
)
from cpembed.integrations.tvm.scheduling import (  # noqa: E402
    Rule,
    dlight_rule,
    llvm_target,
    place_kernels,
    schedule_database,
    schedule_space,
)

register_functions()

__all__ = [
    "Fused",
    "OffloadReport",
    "OperatorReport",
    "Pipeline",
    "Recognised",
    "Rule",
    "ScheduleEntry",
    "ScheduleReport",
    "Strategy",
    "StrategyCandidate",
    "dlight_rule",
    "llvm_target",
    "offload",
    "pipeline",
    "place_kernels",
    "recognise",
    "recognise_fused",
    "schedule_database",
    "schedule_space",
    "strategy",
]

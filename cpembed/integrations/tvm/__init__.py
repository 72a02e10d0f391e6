"""TVM plugin: programs of any target in TVM's own modules.

>>> import cpembed.integrations.tvm
>>> cpembed.integrations.tvm.offload("vta_1x16x16").report.operators
()

Importing it lets compiled modules find the function that runs their programs; a process that only
loads such a module has to import it too.
"""

from cpembed.codegen import runtime

# Before anything else imports TVM: its thread pool is set up at the first import.
runtime.tvm()

from cpembed.integrations.tvm.database import place_kernels, schedule_database  # noqa: E402
from cpembed.integrations.tvm.execution import register  # noqa: E402
from cpembed.integrations.tvm.fused import Fused, recognise_fused  # noqa: E402
from cpembed.integrations.tvm.offload import offload  # noqa: E402
from cpembed.integrations.tvm.pipeline import Pipeline, pipeline  # noqa: E402
from cpembed.integrations.tvm.recognise import Recognised, recognise  # noqa: E402
from cpembed.integrations.tvm.report import OffloadReport, OperatorReport  # noqa: E402
from cpembed.integrations.tvm.rule import Rule, dlight_rule, llvm_target  # noqa: E402
from cpembed.integrations.tvm.schedule_report import ScheduleEntry, ScheduleReport  # noqa: E402
from cpembed.integrations.tvm.space import schedule_space  # noqa: E402
from cpembed.integrations.tvm.strategy import Strategy, StrategyCandidate, strategy  # noqa: E402

register()

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

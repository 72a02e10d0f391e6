"""Assign layouts over a network: one option per operator, one layout per tensor.

Nothing in this package knows operators or layouts, only numbers of options and their costs.

>>> tensors = (
...     Tensor("x", ("NCHW", "NHWC"), {(0, 1): 3.0, (1, 0): 3.0}, input_layout=0),
...     Tensor("y", ("NCHW", "NHWC"), {(0, 1): 3.0, (1, 0): 3.0}, output_layouts=(0,)),
... )
>>> plain, last = Option("plain", (0, 0), 10.0), Option("channels last", (1, 1), 5.0)
>>> result = assign(Problem((Node("conv", ("x",), ("y",), (plain, last)),), tensors))
>>> result.options, result.cost, result.proven
({'conv': 0}, 10.0, True)
"""

from cpembed.network.assignment.elimination import Bounds
from cpembed.network.assignment.problem import (
    ANY,
    Assignment,
    Conversion,
    Node,
    Option,
    Outcome,
    Problem,
    Tensor,
    evaluate,
)
from cpembed.network.assignment.solve import (
    REDUCTIONS,
    Reductions,
    assign,
    by_policy,
    policy_cost,
)

__all__ = [
    "ANY",
    "REDUCTIONS",
    "Assignment",
    "Bounds",
    "Conversion",
    "Node",
    "Option",
    "Outcome",
    "Problem",
    "Reductions",
    "Tensor",
    "assign",
    "by_policy",
    "evaluate",
    "policy_cost",
]

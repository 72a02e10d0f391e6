"""Layouts across a network: one option for each operator, one layout for each tensor.

>>> tensors = (
...     Tensor("x", ("NCHW", "NHWC"), {(0, 1): 3.0, (1, 0): 3.0}, given=0),
...     Tensor("y", ("NCHW", "NHWC"), {(0, 1): 3.0, (1, 0): 3.0}, wanted=(0,)),
... )
>>> plain, last = Option("plain", (0, 0), 10.0), Option("channels last", (1, 1), 5.0)
>>> found = assign(Problem((Node("conv", ("x",), ("y",), (plain, last)),), tensors))
>>> found.options, found.cost, found.proven
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
from cpembed.network.assignment.solve import REDUCTIONS, Reductions, assign

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
    "evaluate",
]

"""The constraints of Rieber et al. 2021, section 4.2, one file each.

The order is the order of posting: boxes first, since others speak of their digits.
"""

from cpembed.embedding.constraints.all_different import AllDifferent
from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.constraints.dataflow import Dataflow
from cpembed.embedding.constraints.dense import Dense
from cpembed.embedding.constraints.digits import Digits
from cpembed.embedding.constraints.extents import Extents
from cpembed.embedding.constraints.fixed_origin import FixedOrigin
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.linear_access import LinearAccess
from cpembed.embedding.constraints.padding import Padding
from cpembed.embedding.constraints.strides import Strides

CONSTRAINTS: dict[str, type[Constraint]] = {
    kind.name: kind
    for kind in (
        HyperRectangle,
        Dataflow,
        AllDifferent,
        FixedOrigin,
        Dense,
        LinearAccess,
        Strides,
        Digits,
        Extents,
        Padding,
    )
}

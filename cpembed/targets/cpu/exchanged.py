"""Embeddings with the factors of a product exchanged: pixels are lanes, a weight feeds them all.

What is read of one factor and what is stored lie in lanes. Of an image with its channels first
nothing is packed on either side where these are pixels. Only an instruction whose first factor is a
single value takes any axis in lanes as it lies, and either factor in either place.
"""

from __future__ import annotations

from dataclasses import replace

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import candidate_groups
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation


def over_output(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> list[Embedding]:
    """The embedding with its factors exchanged and lanes along the innermost axis of the output, or
    along all of its innermost axes that are one in memory; none where the factor that would be in
    lanes does not have that axis, or the instruction minds.

    ``embedding`` has no fused axes; the workload is in port form.
    """
    factors, output = instruction.computation.inputs, workload.output
    types = [set(instruction.dtypes[factor.name]) for factor in factors]
    single = len(instruction.axes) == 1 and len(factors) == 2 and not factors[0].shape
    if not single or types[0] != types[1] or embedding.flattened or not output.shape:
        return []
    first, second = (factor.name for factor in factors)
    operands = dict(embedding.operands)
    operands[first], operands[second] = operands[second], operands[first]
    innermost = [index.single_iterator for index in workload.access(output.name).index][::-1]
    last = innermost[0]
    in_lanes, shared = (
        {name for index in workload.access(operands[factor]).index for name in index.iterators}
        for factor in (second, first)
    )
    if last is None or last not in in_lanes or last in shared:
        return []
    lane = instruction.axes[0]
    plain = replace(
        embedding,
        operands=operands,
        extents={lane.name: lane.maximum},
        digits={lane.name: (Digit(last, lane.maximum),)},
    )
    found = [plain] if workload.extents[last] >= lane.maximum else []
    for name, members in candidate_groups(workload, 3, smallest_extent=2).items():
        if list(members[::-1]) == innermost[: len(members)]:
            digits = {lane.name: (Digit(name, lane.maximum),)}
            found.append(replace(plain, digits=digits, flattened={name: members}))
    return found

"""Judging solutions: each is expanded to nodes and every constraint decides for itself."""

from __future__ import annotations

from dataclasses import replace

from cpembed.embedding.commute import with_roles
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import Groups, flatten
from cpembed.embedding.node_map import NodeMap, expand
from cpembed.embedding.problem import AccessPair, EmbeddingProblem
from cpembed.errors import InvariantError


def check_embedding(
    problem: EmbeddingProblem, constraints: ConstraintSet, embedding: Embedding
) -> None:
    """Expand axis maps to nodes and have every constraint judge them.

    Gaps of fused axes are left to the proof of the derived program.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem in any assignment of roles, without fused axes.
    constraints : ConstraintSet
        Set under which the embedding was found.
    embedding : Embedding
        Axis maps to check.

    Raises
    ------
    InvariantError
        If a constraint rejects the embedding: a defect of the digit model.
    """
    problem = flattened_problem(with_roles(problem, embedding.operands), embedding.flattened)
    node_map = expand(problem, embedding)
    if node_map is None:
        raise InvariantError(f"axis maps {embedding.to_json()} violate the dataflow")
    check(problem, constraints, node_map)


def flattened_problem(problem: EmbeddingProblem, groups: Groups) -> EmbeddingProblem:
    """The problem over fused axes: what an embedding with fused axes is an embedding of."""
    if not groups:
        return problem
    workload = flatten(problem.workload, groups)
    # The pairing stays: in port form, each operand has one access.
    pairs = tuple(
        AccessPair(pair.instruction, workload.access(pair.workload.operand))
        for pair in problem.pairs
    )
    original = flatten(problem.original, groups)
    return replace(
        problem,
        workload=workload,
        pairs=pairs,
        original=original,
        groups=dict(groups),
        unfused=problem,
    )


def check(problem: EmbeddingProblem, constraints: ConstraintSet, node_map: NodeMap) -> None:
    """Have every constraint judge a node map.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem that the node map solves, with its fused axes.
    constraints : ConstraintSet
        Set under which it was found.
    node_map : NodeMap
        Images of the instruction's nodes.

    Raises
    ------
    InvariantError
        If a constraint rejects the node map: a defect of the posted model.
    """
    for constraint in constraints.constraints:
        if not constraint.holds(problem, node_map):
            raise InvariantError(
                f"a solution of the model violates {constraint.name}: please report this with "
                f"the workload {problem.workload} and the target {problem.instruction.name}"
            )


def check_round_trip(problem: EmbeddingProblem, embedding: Embedding, node_map: NodeMap) -> None:
    """Check that axis maps expand to the node map that they were decoded from.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem that both solve.
    embedding : Embedding
        Axis maps decoded from the node map.
    node_map : NodeMap
        Images of the instruction's nodes.

    Raises
    ------
    InvariantError
        If they expand to another one.
    """
    again = expand(problem, embedding)
    if again is None or again.key() != node_map.key():
        raise InvariantError(f"axis maps {embedding.to_json()} do not expand to their node map")

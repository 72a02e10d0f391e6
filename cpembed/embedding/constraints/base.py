"""What a constraint is: it posts itself to the model and, independently, judges a node map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem


class Constraint(ABC):
    """A condition on embeddings; its fields are the parameters of its table in the TOML file.

    ``post`` and ``holds`` must say the same thing without sharing code: tests compare all
    solutions of the posted model with all node maps that ``holds`` accepts. ``allows`` and
    ``post_digits`` say it once more over digits, for the fast model of regular instructions.
    """

    name: ClassVar[str]

    @abstractmethod
    def post(self, model: ScalarModel) -> None:
        """Record the constraint in the model."""

    @abstractmethod
    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        """Whether a node map satisfies the constraint, decided from the map alone."""

    @property
    def needs_boxes(self) -> bool:
        """Whether it speaks of digits, which only ``hyper_rectangle`` defines."""
        return False

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        """Whether a digit can be part of an embedding, judged alone (for the digit model)."""
        return True

    def post_digits(self, model: DigitModel) -> None:  # noqa: B027 - most exclude nothing
        """Record in the digit model what the digits exclude together."""

    @abstractmethod
    def words(self) -> str:
        """The constraint as a phrase for an explanation ("no strides: ...")."""


def moved_dimensions(
    problem: EmbeddingProblem, option: DigitOption
) -> Iterator[tuple[str, int, int]]:
    """Where a digit moves the operands that its instruction axis walks.

    Yields (instruction operand, dimension of the workload operand, step in that dimension).
    """
    for operand, names in problem.index_names.items():
        if option.lane not in names:
            continue
        for dimension, index in enumerate(problem.workload_indices[operand]):
            for member in option.members:
                step = index.coefficient(member) * option.digit.stride
                if step:
                    yield operand, dimension, step


def stencil_axes(problem: EmbeddingProblem) -> dict[str, str]:
    """Workload axes that some operand reaches only together with another iterator.

    Maps each to the index it occurs in, as text, such as ``I[2*p + r]``.
    """
    found: dict[str, str] = {}
    for pair in problem.pairs:
        for index in pair.workload.index:
            if len(index.iterators) > 1:
                for axis in index.iterators:
                    found.setdefault(axis, f"{pair.workload.operand}[{index}]")
    return found

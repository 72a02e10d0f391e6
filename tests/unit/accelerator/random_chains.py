"""Random chains of statements: products, reductions and element-wise operations."""

from __future__ import annotations

import random
import re

import numpy as np

from cpembed.accelerator.covering import with_covered_statements
from cpembed.accelerator.matching import matches
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa import InstructionSet
from cpembed.ir.parser import parse_computation

_EXTENTS = (4, 8, 16, 24, 32, 48, 64)


class Chain:
    """Statements that each go on from the result of the one before, over rows and columns.

    Parameters
    ----------
    generator : random.Random
    dtype : {'int8', 'float32'}
        Element type of inputs and results.
    """

    def __init__(self, generator: random.Random, dtype: str) -> None:
        self.generator = generator
        self.dtype = dtype
        self.dtypes: dict[str, str] = {}
        self.extents: dict[str, int] = {}
        self.texts: list[str] = []
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.has_weights = generator.random() < 0.5
        self.shifts = generator.random() < 0.3
        self.rows, self.columns = self._axis(), self._axis()
        self.result = self._input(self.rows, self.columns)

    def _axis(self) -> str:
        name = f"a{len(self.extents)}"
        self.extents[name] = self.generator.choice(_EXTENTS)
        return name

    def _tensor(self, dtype: str) -> str:
        name = f"T{len(self.dtypes)}"
        self.dtypes[name] = dtype
        return name

    def _input(self, *axes: str) -> str:
        name = self._tensor(self.dtype)
        self.inputs.append(name)
        return f"{name}[{','.join(axes)}]"

    def _write(self, dtype: str, axes: tuple[str, ...], assignment: str) -> str:
        name = f"{self._tensor(dtype)}[{','.join(axes)}]"
        self.texts.append(f"{name} {assignment}")
        return name

    def product(self) -> None:
        """Multiply bytes by a matrix, and scale the sums to bytes."""
        inner, self.columns = self.columns, self._axis()
        factor = self._input(inner, self.columns)
        if self.has_weights:
            self.constants.append(self.inputs.pop())
        axes = (self.rows, self.columns)
        sums = self._write("int32", axes, f"+= {self.result} * {factor}")
        if self.shifts:
            shifted = f"{sums} >> {self.generator.randint(6, 12)}"
            self.result = self._write("int8", axes, f"= int8(min(max({shifted}, -128), 127))")
            return
        scale = 2.0 ** -self.generator.randint(6, 12)
        clipped = self.generator.choice((f"{sums} * {scale!r}", f"max({sums}, 0) * {scale!r}"))
        self.result = self._write("int8", axes, f"= int8({clipped})")

    def binary(self) -> None:
        """Add or multiply by another input, element by element."""
        other = self._input(self.rows, self.columns)
        sign = self.generator.choice("+-*")
        self._map(f"{self.result} {sign} {other}")

    def unary(self) -> None:
        """Apply a function to each element."""
        text = self.generator.choice(("max({}, 0.0)", "exp({} * 0.125)", "{} * 0.5", "tanh({})"))
        if "exp(" in text:
            self._map(f"{self.result} * 0.125")
            text = "exp({})"
        self._map(text.format(self.result))

    def normalized(self) -> None:
        """Combine each row with its sum or its maximum."""
        axes = (self.rows,)
        if self.generator.random() < 0.5:
            reduced = self._write(self.dtype, axes, f"max= {self.result}")
            self._map(f"{self.result} - {reduced}")
            return
        reduced = self._write(self.dtype, axes, f"+= {self.result}")
        self._map(f"{self.result} * {reduced}")

    def _map(self, value: str) -> None:
        self.result = self._write(self.dtype, (self.rows, self.columns), f"= {value}")

    def specification(self) -> Specification:
        """Return the statements."""
        statements = tuple(map(self._statement, self.texts))
        shapes = {o.tensor: o.shape for s in statements for o in s.reads}
        numbers = np.random.default_rng(self.generator.randrange(2**31))
        return Specification(
            "chain",
            statements,
            tuple(self.inputs),
            (self.result.split("[")[0],),
            {n: numbers.integers(-128, 128, shapes[n]).astype(np.int8) for n in self.constants},
        )

    def _statement(self, text: str) -> Statement:
        tensors = set(re.findall(r"(\w+)\[", text))
        axes = set(re.findall(r"\ba\d+\b", text))
        return Statement(
            parse_computation(
                text,
                {axis: extent for axis, extent in self.extents.items() if axis in axes},
                dtypes={name: dtype for name, dtype in self.dtypes.items() if name in tensors},
            )
        )


def random_chain(seed: int, dtype: str, machine: InstructionSet, length: int = 4) -> Specification:
    """Return a random chain of statements that a machine has instructions for.

    Parameters
    ----------
    seed : int
    dtype : {'int8', 'float32'}
        Bytes: products with their scaling. Floats: element-wise operations and reductions.
    machine : InstructionSet
    length : int
        Largest number of operations.
    """
    generator = random.Random(seed)
    while True:
        chain = Chain(generator, dtype)
        operations = {"int8": (chain.product,)}.get(
            dtype, (chain.binary, chain.unary, chain.normalized)
        )
        for _ in range(generator.randint(2, length)):
            generator.choice(operations)()
        specification = chain.specification()
        covered = with_covered_statements(specification, machine)
        if all(matches(statement, machine) for statement in covered.statements):
            return specification

"""What the kernels' parts share: a script that calls device functions, names, conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpembed.codegen.epilogue import BIAS, SCALE
from cpembed.codegen.script import Script, buffer
from cpembed.targets.cuda.lower import Stored, TiledProduct
from cpembed.targets.cuda.text import written

PARAMETERS = ("A", "B")
"""Names of the factors in a kernel; the result is ``C``."""

VECTORS = {BIAS: "Bias", SCALE: "Scale"}
"""Names of the vectors of an epilogue."""

PARTIAL = "Partial"
"""Sums of the parts of a split reduction."""


@dataclass
class Writer:
    """A script that calls device functions; ``called``: which ones."""

    script: Script = field(default_factory=Script)
    called: set[str] = field(default_factory=set[str])

    def call(self, name: str, *arguments: str) -> None:
        self.called.add(name)
        given = "".join(f", {argument}" for argument in arguments)
        self.script.line(
            f'T.evaluate(T.cuda.func_call("{name}"{given}, source_code=DEVICE["{name}"]))'
        )

    def barrier(self) -> None:
        self.script.line("T.evaluate(T.cuda.cta_sync())")

    def warp_barrier(self) -> None:
        self.script.line("T.evaluate(T.cuda.warp_sync())")


def at(name: str, offset: str) -> str:
    """A pointer to an element of an array of registers; unlike ``address_of`` it keeps the whole
    array: what is behind the pointer is not known to the compiler."""
    return f'{name}.access_ptr("rw", offset={offset})'


def in_shared(offset: str) -> str:
    """A pointer to a byte of shared memory; unlike ``access_ptr`` it is nothing that TVM would put
    barriers around."""
    return f"T.address_of(shared[{offset}])"


def epilogue_parameters(product: TiledProduct) -> list[str]:
    epilogue = product.epilogue
    if epilogue is None:
        return []
    found = [
        buffer(VECTORS[name], product.channel_count, epilogue.vector_dtype(name, product.sums))
        for name in epilogue.vectors
    ]
    if epilogue.residual is not None:
        elements = product.output.layout.elements
        found.append(buffer("Residual", elements, epilogue.residual.dtype))
    return found


def conditions(stored: Stored, values: Mapping[str, str], extents: Mapping[str, int]) -> list[str]:
    """That an element is inside its operand, dimension by dimension."""
    found: list[str] = []
    for place in stored.checked:
        index = written(stored.layout.access[place], values, extents)
        found += [f"0 <= {index}", f"{index} < {stored.layout.shape[place]}"]
    return found


def chosen(inside: list[str], value: str) -> tuple[str, str]:
    """Lines that set ``valid`` to whether all conditions hold, and ``place`` to a value, 0 where
    they do not: an address that there is. A product, since a choice would become a branch."""
    condition = " and ".join(inside) or "True"
    return f'valid = T.cast({condition}, "int32")', f"place = ({value}) * valid"

"""TVMScript that the kernels share: calls of device functions, indices, conditions and stores."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cpembed.codegen.plan import Script
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct, loop_digits
from cpembed.transform.program import Loop

PARAMETERS = ("A", "B")
"""Names of the factors in a kernel; the result is ``C``."""

PARTIAL = "Partial"
"""Name of the buffer of partial sums of a split reduction."""


ELEMENT_THREADS = 256
"""Number of threads of a block whose threads make an element each."""


def element_blocks(elements: int) -> int:
    """Return the number of blocks that make so many elements."""
    return -(-elements // ELEMENT_THREADS)


def element_launch(name: str, elements: int) -> Launch:
    """Return the launch of a kernel with a thread for each element.

    Parameters
    ----------
    name : str
        Name of the kernel, without its ending.
    elements : int
        Number of elements.
    """
    return Launch(f"{name}_kernel", (element_blocks(elements), 1, 1), (ELEMENT_THREADS, 1, 1))


@dataclass
class Writer:
    """A script and the device functions that it calls."""

    script: Script = field(default_factory=Script)
    device_functions: set[str] = field(default_factory=set[str])

    def call(self, name: str, *arguments: str) -> None:
        self.device_functions.add(name)
        operands = "".join(f", {argument}" for argument in arguments)
        self.script.line(
            f'T.evaluate(T.cuda.func_call("{name}"{operands}, source_code=DEVICE["{name}"]))'
        )

    def value(self, variable: str, name: str, dtype: str, *arguments: str) -> None:
        """Write a variable with what a device function returns."""
        self.device_functions.add(name)
        operands = "".join(f", {argument}" for argument in arguments)
        self.script.line(
            f'{variable} = T.cuda.func_call("{name}"{operands}, source_code=DEVICE["{name}"], '
            f'return_type="{dtype}")'
        )

    def barrier(self) -> None:
        self.script.line("T.evaluate(T.cuda.cta_sync())")

    def warp_barrier(self) -> None:
        self.script.line("T.evaluate(T.cuda.warp_sync())")


@contextmanager
def thread_nest(
    script: Script,
    name: str,
    numbers: Mapping[str, tuple[str, int]],
    reads: Mapping[str, int],
    writes: Mapping[str, int],
) -> Generator[None]:
    """Write the numbers of a kernel's blocks and threads around the statements of a thread.

    Parameters
    ----------
    script : Script
    name : str
        Name of the statements.
    numbers : mapping of str to tuple of str and int
        CUDA's name of a number, ``blockIdx.x`` for instance, and how many there are, by variable.
    reads, writes : mapping of str to int
        Number of elements of each buffer that is read or written.
    """
    loops = {tag: tag[0] + tag[-1] for tag, _ in numbers.values()}
    with script.nested(
        *(f'for {loops[t]} in T.thread_binding({n}, thread="{t}"):' for t, n in numbers.values()),
        f'with T.sblock("{name}"):',
    ):
        for variable, (tag, extent) in numbers.items():
            script.line(f"{variable} = T.axis.spatial({extent}, {loops[tag]})")
        for access, buffers in (("reads", reads), ("writes", writes)):
            regions = ", ".join(f"{each}[0 : {elements}]" for each, elements in buffers.items())
            script.line(f"T.{access}({regions})")
        yield


@contextmanager
def element_nest(
    script: Script, name: str, elements: int, reads: Mapping[str, int], writes: Mapping[str, int]
) -> Generator[None]:
    """Write the ``number`` of a thread's element around the statements of :func:`element_launch`.

    Parameters
    ----------
    script, name, reads, writes
        Those of :func:`thread_nest`.
    elements : int
        Number of elements; numbers of the last block may be beyond.
    """
    numbers = {
        "group": ("blockIdx.x", element_blocks(elements)),
        "thread": ("threadIdx.x", ELEMENT_THREADS),
    }
    with thread_nest(script, name, numbers, reads, writes):
        script.line(f"number = group * {ELEMENT_THREADS} + thread")
        yield


Functions = dict[str, tuple[Writer, Launch]]
"""Functions and launches of kernels by name, in the order in which they run."""


def register_pointer(name: str, offset: str) -> str:
    """Return a pointer to an element of an array of registers."""
    # TVM shrinks local arrays to the accesses that it sees, and sees none behind a pointer; unlike
    # address_of, access_ptr keeps the whole array.
    return f'{name}.access_ptr("rw", offset={offset})'


def shared_pointer(offset: str) -> str:
    """Return a pointer to a byte of shared memory."""
    # TVM puts barriers around accesses that it sees, which fails inside conditions; unlike
    # access_ptr, address_of is none.
    return f"T.address_of(shared[{offset}])"


def quotient(number: str, divisor: int) -> str:
    """Divide a number that is not negative; truncation costs less than rounding down."""
    return number if divisor == 1 else f"T.truncdiv({number}, {divisor})"


def remainder(number: str, modulus: int) -> str:
    """Return the remainder of a number that is not negative."""
    return "0" if modulus == 1 else f"T.truncmod({number}, {modulus})"


def index_script(index: IndexExpr, values: Mapping[str, str], extents: Mapping[str, int]) -> str:
    """Return TVMScript of an index.

    Parameters
    ----------
    index
        Index over iterators.
    values
        Expression of each iterator, none of them negative.
    extents
        Extent of each iterator.

    Examples
    --------
    >>> index = IndexExpr.sum([IndexTerm("p", 2), IndexTerm("r", 1, 3)], -1)
    >>> index_script(index, {"p": "y", "r": "x + 1"}, {"p": 4, "r": 9})
    '(y) * 2 + T.truncdiv(x + 1, 3) + -1'
    """
    parts = [_term(term, values, extents) for term in index.terms]
    if index.constant or not parts:
        parts.append(str(index.constant))
    return " + ".join(parts)


def _term(term: IndexTerm, values: Mapping[str, str], extents: Mapping[str, int]) -> str:
    if term.inner is None:
        value, negative = values[term.iterator], False
    else:
        value = index_script(term.inner, values, extents)
        negative = term.inner.bounds(extents)[0] < 0
    if negative:
        # Python's operators round down, as indices of padding need.
        value = value if term.divisor == 1 else f"({value}) // {term.divisor}"
        value = value if term.modulus is None else f"({value}) % {term.modulus}"
    else:
        value = _digit(value, term.divisor, term.modulus)
    return value if term.coefficient == 1 else f"({value}) * {term.coefficient}"


def digits(number: str, loops: Sequence[Loop]) -> dict[str, str]:
    """Return the values of loops at a number that counts their points, as :func:`loop_digits`."""
    return loop_digits(number, loops, _digit)


def _digit(number: str, divisor: int, modulus: int | None) -> str:
    value = quotient(number, divisor)
    return value if modulus is None else remainder(value, modulus)


def tile_values(
    product: TiledProduct, rows: str = "0", columns: str = "0", depth: str = "0"
) -> dict[str, str]:
    """Return the values of a product's iterators at instruction tiles of the batch ``batch``.

    Those of the instruction's axes are 0.

    Parameters
    ----------
    product : TiledProduct
    rows, columns, depth : str
        Expressions of the numbers of a tile along rows, columns and depth.
    """
    values = {**dict.fromkeys(product.program.extents, "0"), **digits("batch", product.batch)}
    places = ((rows, product.rows), (columns, product.columns), (depth, product.depth))
    for number, loops in places:
        # Quotients of 0 would only lengthen the text.
        values |= digits(number, loops) if number != "0" else {}
    return values


def factor_values(product: TiledProduct, number: int, tile: str, deep: str) -> dict[str, str]:
    """Return the values of iterators at a tile of a factor.

    Parameters
    ----------
    product : TiledProduct
    number : int
        0 for the first factor, 1 for the second.
    tile, deep : str
        Expressions of the numbers of the tile along rows or columns, and along the depth.
    """
    rows, columns = (tile, "0") if number == 0 else ("0", tile)
    return tile_values(product, rows, columns, deep)


def inside_conditions(
    operand: GlobalOperand, values: Mapping[str, str], extents: Mapping[str, int]
) -> list[str]:
    """Return conditions under which an element is inside its operand.

    Parameters
    ----------
    operand
        Operand with the dimensions to check.
    values
        Expression of each iterator.
    extents
        Extent of each iterator.
    """
    conditions: list[str] = []
    for place in operand.checked:
        index = index_script(operand.layout.access[place], values, extents)
        conditions += [f"0 <= {index}", f"{index} < {operand.layout.shape[place]}"]
    return conditions


def guarded_place(conditions: list[str], value: str) -> tuple[str, str]:
    """Return lines that set ``valid`` and ``place``.

    ``valid`` is 1 where all conditions hold; ``place`` is ``value`` there, and elsewhere 0, which
    is a valid address.
    """
    condition = " and ".join(conditions) or "True"
    # A product, because a selection would become a branch.
    return f'valid = T.cast({condition}, "int32")', f"place = ({value}) * valid"


WIDTHS = (16, 8, 4, 2, 1)
"""Widths of accesses in bytes."""


def store_vector(
    writer: Writer, target: tuple[str, str], registers: str, dtype: str, length: int
) -> None:
    """Write stores of registers in accesses that are as wide as possible.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, in which the variable ``valid`` says whether to store.
    target : tuple of str and str
        Buffer, and expression of the first place in it.
    registers : str
        Array of the values.
    dtype : str
        Their element type.
    length : int
        Number of values.
    """
    size, (name, place) = size_bytes(dtype), target
    width = next(w for w in WIDTHS if w <= length * size)
    for first in range(0, length, width // size):
        writer.call(
            f"cpembed_store_{width}",
            f"T.address_of({name}[T.Select(valid == 1, {place} + {first}, 0)])",
            register_pointer(registers, str(first)),
            "valid",
        )

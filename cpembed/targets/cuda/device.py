"""Device functions: accesses of memory and Tensor Core instructions as inline PTX.

All lanes of a warp call them together; whether a lane takes part is an argument, never a branch.
Emulation executes this text too (:mod:`cpembed.targets.cuda.emulator.ptx`). The PTX is that of
sm_80 and later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from cpembed.errors import InvariantError
from cpembed.targets.cuda.instructions import INSTRUCTIONS, SHORT, TensorCoreInstruction

ACCESSES = (16, 8, 4, 2, 1)
"""Widths in bytes of a lane's loads and stores."""

COPIES = (16, 8, 4)
"""Widths in bytes of ``cp.async``."""

MAX_GROUPS = 8
"""Number of groups of copies below which the waits leave groups in flight."""

_WORDS = {
    16: ("v4.u32", "unsigned int", 4),
    8: ("v2.u32", "unsigned int", 2),
    4: ("u32", "unsigned int", 1),
    2: ("u16", "unsigned short", 1),
    1: ("u8", "unsigned char", 1),
}
"""PTX type, C type of a register's word, and number of words, by the width of an access."""

_REGISTERS = {"float32": ("float", "f"), "int32": ("int", "r")}
"""C type and PTX constraint of a register by element type; other elements are packed into words."""


class Definition(NamedTuple):
    """A device function: its name, parameters, lines of its body, and type."""

    name: str
    parameters: str
    lines: list[str]
    kind: str = "void"

    @property
    def text(self) -> str:
        """Source of the function."""
        body = "".join(f"  {line}\n" for line in self.lines)
        start = f"__forceinline__ __device__ {self.kind} {self.name}({self.parameters})"
        return f"{start} {{\n{body}}}\n"


def function(name: str) -> str:
    """Return the source of a device function.

    Raises :class:`InvariantError` for a name that does not exist.
    """
    try:
        return _functions()[name]
    except KeyError:
        raise InvariantError(f"no device function is called {name}") from None


def names() -> tuple[str, ...]:
    """Return the names of all device functions."""
    return tuple(_functions())


@cache
def _functions() -> dict[str, str]:
    # Instructions of one shape share functions; equal names have equal definitions.
    return {definition.name: definition.text for definition in _definitions()}


def _definitions() -> Iterator[Definition]:
    yield from map(_copy, COPIES)
    yield _opaque()
    # Its argument makes TVM allocate shared memory up to there.
    yield Definition("cpembed_reserve", "const void* shared", [])
    yield _power()
    yield _packed()
    commit = 'asm volatile("cp.async.commit_group;" ::: "memory");'
    yield Definition("cpembed_cp_async_commit", "", [commit])
    for left in range(MAX_GROUPS):
        wait = f'asm volatile("cp.async.wait_group {left};" ::: "memory");'
        yield Definition(f"cpembed_cp_async_wait_{left}", "", [wait])
    for size in ACCESSES:
        yield _load(size)
        yield _store(size)
        yield _shared_load(size)
        yield _shared_store(size)
    for count in (1, 2, 4):
        yield _ldmatrix(count, transposed=False)
        yield _ldmatrix(count, transposed=True)
    for instruction in INSTRUCTIONS:
        yield _product(instruction)
        if instruction.kind == "wmma":
            yield _wmma_load(instruction, 0)
            yield _wmma_load(instruction, 1)
            yield _wmma_store(instruction)


def shared_operand(pointer: str) -> str:
    """Return a pointer to shared memory as an operand, whose addresses are 32 bits wide."""
    return f'"r"(static_cast<unsigned int>(__cvta_generic_to_shared({pointer})))'


def global_operand(pointer: str) -> str:
    """Return a pointer to global memory as an operand, whose addresses are 64 bits wide."""
    return f'"l"(__cvta_generic_to_global({pointer}))'


_SHARED, _GLOBAL = shared_operand("shared"), global_operand("global")


def asm(text: str, outputs: Sequence[str], inputs: Sequence[str], *, memory: bool = True) -> str:
    """Return a statement of PTX.

    Parameters
    ----------
    text : str
        Instructions, in which ``%0`` counts the outputs, then the inputs.
    outputs, inputs : sequence of str
        Operands with their constraints.
    memory : bool
        False if it reads and writes registers only.
    """
    clobbers = ' : "memory"' if memory else ""
    return f'asm volatile("{text}" : {", ".join(outputs)} : {", ".join(inputs)}{clobbers});'


def vector(first: int, count: int) -> str:
    """Return operands as a vector: ``{%3, %4}``."""
    return "{" + ", ".join(f"%{first + number}" for number in range(count)) + "}"


def _operand(size: int, first: int) -> str:
    count = _WORDS[size][2]
    return f"%{first}" if count == 1 else vector(first, count)


def _word_inputs(size: int) -> list[str]:
    _, c, count = _WORDS[size]
    return [
        f'"r"(static_cast<unsigned int>(static_cast<const {c}*>(registers)[{number}]))'
        for number in range(count)
    ]


def _word_assignments(size: int) -> list[str]:
    _, c, count = _WORDS[size]
    return [
        f"static_cast<{c}*>(registers)[{number}] = static_cast<{c}>(w{number});"
        for number in range(count)
    ]


def _power() -> Definition:
    # exp2f scales arguments with tiny results, which takes three more instructions. Volatile, as
    # the compiler would compute it behind a wait for products that it is to overlap with.
    power = 'asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(*static_cast<float*>(registers)));'
    return Definition("cpembed_exp2", "void* registers", [power])


def _packed() -> Definition:
    # Two registers of 16 bits, the lower one first.
    pair = '"=r"(*static_cast<unsigned int*>(registers))'
    convert = f'asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : {pair} : "f"(high), "f"(low));'
    return Definition("cpembed_pack_bfloat16", "void* registers, float low, float high", [convert])


def _opaque() -> Definition:
    # The compiler does not know what is in the register after this.
    register = '"+r"(*static_cast<unsigned int*>(registers))'
    return Definition(
        "cpembed_opaque", "void* registers", [f'asm volatile("mov.b32 %0, %0;" : {register});']
    )


def _copy(size: int) -> Definition:
    # Where it is not valid, nothing is read and zeros are written. Only copies of 16 bytes can
    # bypass L1, where a tile that goes to shared memory would be of no further use.
    cache_operator = "cg" if size == 16 else "ca"
    text = f"cp.async.{cache_operator}.shared.global [%0], [%1], {size}, %2;"
    copy = asm(text, [], [_SHARED, _GLOBAL, f'"r"(valid ? {size} : 0)'])
    return Definition(
        f"cpembed_cp_async_{size}", "void* shared, const void* global, int valid", [copy]
    )


def _predicated(count: int, access: str) -> str:
    # A predicate instead of a branch keeps the lanes of a warp together.
    return f"{{ .reg .pred p; setp.ne.s32 p, %{count + 1}, 0; @p {access} }}"


def _load(size: int) -> Definition:
    ptx, _, count = _WORDS[size]
    # Zeros where nothing is loaded, as packing and borders of images expect.
    declared = [f"unsigned int w{number} = 0;" for number in range(count)]
    load = asm(
        _predicated(count, f"ld.global.{ptx} {_operand(size, 0)}, [%{count}];"),
        [f'"+r"(w{number})' for number in range(count)],
        [_GLOBAL, '"r"(valid)'],
    )
    parameters = "void* registers, const void* global, int valid"
    return Definition(
        f"cpembed_load_{size}", parameters, [*declared, load, *_word_assignments(size)]
    )


def _store(size: int) -> Definition:
    ptx, _, count = _WORDS[size]
    text = _predicated(count, f"st.global.{ptx} [%{count}], {_operand(size, 0)};")
    store = asm(text, [], [*_word_inputs(size), _GLOBAL, '"r"(valid)'])
    return Definition(
        f"cpembed_store_{size}", "void* global, const void* registers, int valid", [store]
    )


def _shared_load(size: int) -> Definition:
    ptx, _, count = _WORDS[size]
    declared = [f"unsigned int w{number};" for number in range(count)]
    outputs = [f'"=r"(w{number})' for number in range(count)]
    load = asm(f"ld.shared.{ptx} {_operand(size, 0)}, [%{count}];", outputs, [_SHARED])
    parameters = "void* registers, const void* shared"
    return Definition(
        f"cpembed_shared_load_{size}", parameters, [*declared, load, *_word_assignments(size)]
    )


def _shared_store(size: int) -> Definition:
    ptx, _, count = _WORDS[size]
    text = f"st.shared.{ptx} [%{count}], {_operand(size, 0)};"
    store = asm(text, [], [*_word_inputs(size), _SHARED])
    return Definition(
        f"cpembed_shared_store_{size}", "void* shared, const void* registers", [store]
    )


def array(pointer: str, dtype: str, count: int, constraint: str) -> list[str]:
    """Return the registers behind a pointer as operands of PTX.

    Parameters
    ----------
    pointer : str
        Name of the pointer.
    dtype : str
        Type of the elements; those of several to a register, or none, have words.
    count : int
        Number of registers.
    constraint : str
        Empty for operands that are read, ``=`` or ``+`` for those that are written.
    """
    c, letter = _REGISTERS.get(dtype, ("unsigned int", "r"))
    const = "" if constraint else "const "
    return [
        f'"{constraint}{letter}"(static_cast<{const}{c}*>({pointer})[{number}])'
        for number in range(count)
    ]


def _ldmatrix(count: int, *, transposed: bool) -> Definition:
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    registers = array("registers", "", count, "=")
    load = asm(f"{text} {vector(0, count)}, [%{count}];", registers, [_SHARED])
    name = f"cpembed_ldmatrix_x{count}{'_trans' if transposed else ''}"
    return Definition(name, "void* registers, const void* shared", [load])


def _product(instruction: TensorCoreInstruction) -> Definition:
    a, b, c = (SHORT[dtype] for dtype in (instruction.a, instruction.b, instruction.c))
    if instruction.kind == "mma":
        text = f"mma.sync.aligned.{instruction.shape}.row.col.{c}.{a}.{b}.{c}"
    else:
        # PTX omits the element types of half-precision factors.
        factors = "" if a == "f16" else f".{a}.{b}"
        text = f"wmma.mma.sync.aligned.row.col.{instruction.shape}.{c}{factors}.{c}"
    first, second, sums = instruction.registers
    vectors = [vector(0, sums), vector(sums, first), vector(sums + first, second), vector(0, sums)]
    product = asm(
        f"{text} {', '.join(vectors)};",
        array("c", instruction.c, sums, "+"),
        [*array("a", instruction.a, first, ""), *array("b", instruction.b, second, "")],
        # The compiler may move it across memory accesses.
        memory=False,
    )
    return Definition(instruction.mma_function, "void* c, const void* a, const void* b", [product])


def _wmma_load(instruction: TensorCoreInstruction, number: int) -> Definition:
    operand, order = "ab"[number], ("row", "col")[number]
    dtype, count = (instruction.a, instruction.b)[number], instruction.registers[number]
    text = f"wmma.load.{operand}.sync.aligned.{order}.{instruction.shape}.shared.{SHORT[dtype]}"
    load = asm(
        f"{text} {vector(0, count)}, [%{count}], %{count + 1};",
        array(operand, dtype, count, "="),
        [_SHARED, '"r"(ld)'],
    )
    parameters = f"void* {operand}, const void* shared, int ld"
    return Definition(instruction.load_functions[number], parameters, [load])


def _wmma_store(instruction: TensorCoreInstruction) -> Definition:
    count = instruction.registers[2]
    text = f"wmma.store.d.sync.aligned.row.{instruction.shape}.shared.{SHORT[instruction.c]}"
    inputs = [*array("c", instruction.c, count, ""), _SHARED, '"r"(ld)']
    store = asm(f"{text} [%{count}], {vector(0, count)}, %{count + 1};", [], inputs)
    return Definition(instruction.store_function, "void* shared, const void* c, int ld", [store])

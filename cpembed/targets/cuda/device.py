"""Device functions: what the kernels ask of memory and of Tensor Cores, as inline PTX.

Every lane of a warp calls them together; whether a lane takes part is an argument, never a branch.
An executor that has definitions of its own leaves these out by the macro CPEMBED_EXECUTOR. The PTX
is that of sm_80 and later.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from cpembed.errors import InvariantError
from cpembed.targets.cuda.instructions import INSTRUCTIONS, SHORT, TensorCoreInstruction

ACCESSES = (16, 8, 4, 2, 1)
"""Bytes that a lane can load or store at once."""

COPIES = (16, 8, 4)
"""Bytes that ``cp.async`` can copy."""

GROUPS = 8
"""Waits leave fewer groups of copies than this under way."""

_SHARED = "static_cast<unsigned int>(__cvta_generic_to_shared({}))"
_GLOBAL = "__cvta_generic_to_global({})"

_WORDS = {
    16: ("v4.u32", "unsigned int", 4),
    8: ("v2.u32", "unsigned int", 2),
    4: ("u32", "unsigned int", 1),
    2: ("u16", "unsigned short", 1),
    1: ("u8", "unsigned char", 1),
}
"""Of an access: PTX's type, C's type of an element in registers, and how many."""


def function(name: str) -> str:
    """The source of a device function, between ``#ifndef CPEMBED_EXECUTOR`` and ``#endif``.

    Raises :class:`InvariantError` for a name that there is not.
    """
    try:
        return _functions()[name]
    except KeyError:
        raise InvariantError(f"no device function is called {name}") from None


def names() -> tuple[str, ...]:
    """Of all device functions."""
    return tuple(_functions())


@cache
def _functions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, parameters, lines in _all():
        body = "".join(f"  {line}\n" for line in lines)
        found[name] = (
            "#ifndef CPEMBED_EXECUTOR\n"
            f"__forceinline__ __device__ void {name}({parameters}) {{\n{body}}}\n"
            "#endif\n"
        )
    return found


_Definition = tuple[str, str, list[str]]
"""Name, parameters, and the lines of the body."""


def _all() -> Iterator[_Definition]:
    yield from map(_copy, COPIES)
    yield "cpembed_cp_async_commit", "", ['asm volatile("cp.async.commit_group;" ::: "memory");']
    for left in range(GROUPS):
        wait = f'asm volatile("cp.async.wait_group {left};" ::: "memory");'
        yield f"cpembed_cp_async_wait_{left}", "", [wait]
    for size in ACCESSES:
        yield _load(size)
        yield _store(size)
        yield _shared_load(size)
        yield _shared_store(size)
    for count in (1, 2, 4):
        yield _ldmatrix(count, transposed=False)
        yield _ldmatrix(count, transposed=True)
    seen: set[str] = set()
    for instruction in INSTRUCTIONS:
        for definition in _of_instruction(instruction):
            if definition[0] not in seen:
                seen.add(definition[0])
                yield definition


def _asm(text: str, outputs: list[str], inputs: list[str], *, memory: bool = True) -> str:
    """A statement of PTX, in which ``%0`` counts the outputs, then the inputs."""
    clobbers = ' : "memory"' if memory else ""
    return f'asm volatile("{text}" : {", ".join(outputs)} : {", ".join(inputs)}{clobbers});'


def _list(first: int, count: int) -> str:
    """``{%3, %4}``: operands as a vector."""
    return "{" + ", ".join(f"%{first + number}" for number in range(count)) + "}"


# ------------------------------------------------------------------------------------- memory


def _copy(size: int) -> _Definition:
    """Reads nothing, and writes zeros, where it is not valid."""
    cache_operator = "cg" if size == 16 else "ca"
    copy = _asm(
        f"cp.async.{cache_operator}.shared.global [%0], [%1], {size}, %2;",
        [],
        [
            f'"r"({_SHARED.format("shared")})',
            f'"l"({_GLOBAL.format("global")})',
            f'"r"(valid ? {size} : 0)',
        ],
    )
    return f"cpembed_cp_async_{size}", "void* shared, const void* global, int valid", [copy]


def _words(size: int) -> tuple[str, str, int, list[str]]:
    """PTX's type, C's, how many, and declarations of that many words, zero."""
    ptx, c, count = _WORDS[size]
    return ptx, c, count, [f"unsigned int w{number} = 0;" for number in range(count)]


def _operand(size: int, first: int) -> str:
    count = _WORDS[size][2]
    return f"%{first}" if count == 1 else _list(first, count)


def _load(size: int) -> _Definition:
    ptx, c, count, lines = _words(size)
    load = _asm(
        f"{{ .reg .pred p; setp.ne.s32 p, %{count + 1}, 0; "
        f"@p ld.global.{ptx} {_operand(size, 0)}, [%{count}]; }}",
        [f'"+r"(w{number})' for number in range(count)],
        [f'"l"({_GLOBAL.format("global")})', '"r"(valid)'],
    )
    kept = [_keep(c, number) for number in range(count)]
    parameters = "void* registers, const void* global, int valid"
    return f"cpembed_load_{size}", parameters, [*lines, load, *kept]


def _keep(c: str, number: int) -> str:
    return f"static_cast<{c}*>(registers)[{number}] = static_cast<{c}>(w{number});"


def _held(c: str, number: int) -> str:
    return f'"r"(static_cast<unsigned int>(static_cast<const {c}*>(registers)[{number}]))'


def _store(size: int) -> _Definition:
    ptx, c, count = _WORDS[size]
    store = _asm(
        f"{{ .reg .pred p; setp.ne.s32 p, %{count + 1}, 0; "
        f"@p st.global.{ptx} [%{count}], {_operand(size, 0)}; }}",
        [],
        [
            *(_held(c, number) for number in range(count)),
            f'"l"({_GLOBAL.format("global")})',
            '"r"(valid)',
        ],
    )
    parameters = "void* global, const void* registers, int valid"
    return f"cpembed_store_{size}", parameters, [store]


def _shared_load(size: int) -> _Definition:
    ptx, c, count, lines = _words(size)
    load = _asm(
        f"ld.shared.{ptx} {_operand(size, 0)}, [%{count}];",
        [f'"=r"(w{number})' for number in range(count)],
        [f'"r"({_SHARED.format("shared")})'],
    )
    kept = [_keep(c, number) for number in range(count)]
    declared = [line.replace(" = 0", "") for line in lines]
    parameters = "void* registers, const void* shared"
    return f"cpembed_shared_load_{size}", parameters, [*declared, load, *kept]


def _shared_store(size: int) -> _Definition:
    ptx, c, count = _WORDS[size]
    store = _asm(
        f"st.shared.{ptx} [%{count}], {_operand(size, 0)};",
        [],
        [*(_held(c, number) for number in range(count)), f'"r"({_SHARED.format("shared")})'],
    )
    return f"cpembed_shared_store_{size}", "void* shared, const void* registers", [store]


# ------------------------------------------------------------------------------- Tensor Cores


_REGISTERS = {"float32": ("float", "f"), "int32": ("int", "r")}
"""C's type and the letter of a register of these elements; others are packed into words."""


def _array(pointer: str, dtype: str, count: int, how: str) -> list[str]:
    """Operands of PTX: the registers behind a pointer, read ("") or written ("=", "+")."""
    c, letter = _REGISTERS.get(dtype, ("unsigned int", "r"))
    const = "" if how else "const "
    return [
        f'"{how}{letter}"(static_cast<{const}{c}*>({pointer})[{number}])' for number in range(count)
    ]


def _ldmatrix(count: int, *, transposed: bool) -> _Definition:
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    load = _asm(
        f"{text} {_list(0, count)}, [%{count}];",
        _array("registers", "", count, "="),
        [f'"r"({_SHARED.format("shared")})'],
    )
    name = f"cpembed_ldmatrix_x{count}{'_trans' if transposed else ''}"
    return name, "void* registers, const void* shared", [load]


def _of_instruction(instruction: TensorCoreInstruction) -> Iterator[_Definition]:
    yield _product(instruction)
    if instruction.kind == "wmma":
        for number, operand in enumerate(("a", "b")):
            yield _wmma_load(instruction, number, operand)
        yield _wmma_store(instruction)


def _product(instruction: TensorCoreInstruction) -> _Definition:
    a, b, c = (SHORT[dtype] for dtype in (instruction.a, instruction.b, instruction.c))
    if instruction.kind == "mma":
        text = f"mma.sync.aligned.{instruction.shape}.row.col.{c}.{a}.{b}.{c}"
    else:
        # The element types of half-precision factors are not written.
        factors = "" if a == "f16" else f".{a}.{b}"
        text = f"wmma.mma.sync.aligned.row.col.{instruction.shape}.{c}{factors}.{c}"
    first, second, sums = instruction.registers
    places = [_list(0, sums), _list(sums, first), _list(sums + first, second), _list(0, sums)]
    product = _asm(
        f"{text} {', '.join(places)};",
        _array("c", instruction.c, sums, "+"),
        [*_array("a", instruction.a, first, ""), *_array("b", instruction.b, second, "")],
        memory=False,
    )
    return instruction.mma_function, "void* c, const void* a, const void* b", [product]


def _wmma_load(instruction: TensorCoreInstruction, number: int, operand: str) -> _Definition:
    order, dtype = (("row", instruction.a), ("col", instruction.b))[number]
    count = instruction.registers[number]
    text = f"wmma.load.{operand}.sync.aligned.{order}.{instruction.shape}.shared.{SHORT[dtype]}"
    load = _asm(
        f"{text} {_list(0, count)}, [%{count}], %{count + 1};",
        _array(operand, dtype, count, "="),
        [f'"r"({_SHARED.format("shared")})', '"r"(ld)'],
    )
    parameters = f"void* {operand}, const void* shared, int ld"
    return instruction.load_functions[number], parameters, [load]


def _wmma_store(instruction: TensorCoreInstruction) -> _Definition:
    count = instruction.registers[2]
    text = f"wmma.store.d.sync.aligned.row.{instruction.shape}.shared.{SHORT[instruction.c]}"
    store = _asm(
        f"{text} [%{count}], {_list(0, count)}, %{count + 1};",
        [],
        [
            *_array("c", instruction.c, count, ""),
            f'"r"({_SHARED.format("shared")})',
            '"r"(ld)',
        ],
    )
    return instruction.store_function, "void* shared, const void* c, int ld", [store]

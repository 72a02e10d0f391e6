"""Device functions of sm_90a: mbarriers, bulk copies, and products of warp groups, as inline PTX.

Pointers to shared memory are converted here. Functions of a warp group are called by all of its
threads; which threads call the others is said with each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from cpembed.errors import InvariantError
from cpembed.targets.cuda.instructions import (
    SHORT,
    WARP_GROUP_INSTRUCTIONS,
    TensorCoreInstruction,
)

MAX_COLUMNS = 256
"""Maximum number of columns of a product of a warp group."""

MAX_RANK = 5
"""Maximum number of dimensions of a tensor map."""

_Definition = tuple[str, str, str, list[str]]
"""Return type, name, parameters, and lines of the body."""


def column_counts(instruction: TensorCoreInstruction) -> tuple[int, ...]:
    """Return the numbers of columns that one product can have (PTX ISA, ``wgmma``: shapes)."""
    step = instruction.n
    counts = range(step, MAX_COLUMNS + 1, step)
    if instruction.c == "int32":
        return tuple(n for n in counts if n <= 24 or n % 16 == 0)
    return tuple(counts)


def product_name(
    instruction: TensorCoreInstruction,
    columns: int,
    *,
    registers: bool = False,
    transposed: str = "",
) -> str:
    """Return the name of the device function of a product.

    Its parameters are ``(sums, A, descriptor of B, accumulate)``, where A is a descriptor or an
    array of registers; sums are those of the fragments of 16 x 8, one after the other.

    Parameters
    ----------
    instruction : TensorCoreInstruction
        Instruction of the fewest columns.
    columns : int
        Number of columns, one of :func:`column_counts`.
    registers : bool
        A is in registers.
    transposed : str
        Which of ``a`` and ``b`` is MN-major in shared memory.
    """
    if columns not in column_counts(instruction):
        raise InvariantError(f"{instruction.name}: no product of {columns} columns")
    types = "_".join(SHORT[dtype] for dtype in (instruction.c, instruction.a, instruction.b))
    name = f"cpembed_wgmma_mma_m{instruction.m}n{columns}k{instruction.k}_{types}"
    return name + "_ra" * registers + f"_t{transposed}" * bool(transposed)


def function(name: str) -> str:
    """Return the source of a device function.

    Raises :class:`InvariantError` for a name that does not exist.
    """
    definition = _fixed().get(name) or _product_of(name)
    if definition is None:
        raise InvariantError(f"no device function of sm_90a is called {name}")
    kind, _, parameters, lines = definition
    body = "".join(f"  {line}\n" for line in lines)
    return f"__forceinline__ __device__ {kind} {name}({parameters}) {{\n{body}}}\n"


def exists(name: str) -> bool:
    """True if a device function of this module has the name."""
    return name in _fixed() or _product_of(name) is not None


def _shared(name: str) -> str:
    """Return the operand of a pointer to shared memory."""
    return f'"r"(static_cast<unsigned int>(__cvta_generic_to_shared({name})))'


def _asm(text: str, *inputs: str, outputs: tuple[str, ...] = ()) -> str:
    return f'asm volatile("{text}" : {", ".join(outputs)} : {", ".join(inputs)} : "memory");'


@cache
def _fixed() -> dict[str, _Definition]:
    """Return the definitions that no instruction has a part in, by name."""
    definitions = [*_barriers(), *_bulk_copies(), *_tensor_copies(), *_stores(), *_groups()]
    return {definition[1]: definition for definition in definitions}


def _barriers() -> Iterator[_Definition]:
    barrier = "void* barrier"
    yield (
        "void",
        "cpembed_mbarrier_init",
        f"{barrier}, int count",
        [_asm("mbarrier.init.shared::cta.b64 [%0], %1;", _shared("barrier"), '"r"(count)')],
    )
    # Bulk copies, and other blocks of a cluster, see the barriers only behind this.
    yield (
        "void",
        "cpembed_mbarrier_init_fence",
        "",
        [_asm("fence.mbarrier_init.release.cluster;")],
    )
    yield (
        "void",
        "cpembed_mbarrier_arrive",
        barrier,
        [_asm("mbarrier.arrive.shared::cta.b64 _, [%0];", _shared("barrier"))],
    )
    yield (
        "void",
        "cpembed_mbarrier_expect",
        f"{barrier}, int bytes",
        [
            _asm(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
                _shared("barrier"),
                '"r"(bytes)',
            )
        ],
    )
    # A wait may end before the phase does, so it is repeated.
    wait = (
        "{ .reg .pred p; again: "
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
        "@p bra done; bra again; done: }"
    )
    yield (
        "void",
        "cpembed_mbarrier_wait",
        f"{barrier}, int parity",
        [_asm(wait, _shared("barrier"), '"r"(parity)')],
    )
    synchronise = ["arrive.release", "wait.acquire"]
    yield (
        "void",
        "cpembed_cluster_sync",
        "",
        [_asm(f"barrier.cluster.{step}.aligned;") for step in synchronise],
    )
    # Without .release.cluster, and waited for without .acquire.cluster, as CUTLASS does it
    # (cutlass/arch/barrier.h, ClusterBarrier): nothing that a consumer writes is read behind it.
    # Otherwise ptxas puts a memory barrier into each stage, and clears L1.
    arrive = (
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [remote]; }"
    )
    yield (
        "void",
        "cpembed_mbarrier_arrive_at",
        f"{barrier}, int block",
        [_asm(arrive, _shared("barrier"), '"r"(block)')],
    )
    # What threads wrote becomes visible to products and bulk copies.
    yield "void", "cpembed_proxy_fence", "", [_asm("fence.proxy.async.shared::cta;")]


def _bulk_copies() -> Iterator[_Definition]:
    copy = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    yield (
        "void",
        "cpembed_bulk_load",
        "void* shared, const void* global, int bytes, void* barrier",
        [
            _asm(
                copy,
                _shared("shared"),
                '"l"(__cvta_generic_to_global(global))',
                '"r"(bytes)',
                _shared("barrier"),
            )
        ],
    )


def _tensor_copies() -> Iterator[_Definition]:
    yield (
        "void",
        "cpembed_prefetch_map",
        "unsigned long long map",
        [_asm("prefetch.tensormap [%0];", '"l"(map)')],
    )
    for multicast in (False, True):
        for rank in range(1, MAX_RANK + 1):
            yield _tensor_load(rank, 0, multicast=multicast)
        # In im2col mode a filter moves along all dimensions but channels and images.
        for rank in range(3, MAX_RANK + 1):
            yield _tensor_load(rank, rank - 2, multicast=multicast)


def _tensor_load(rank: int, offsets: int, *, multicast: bool) -> _Definition:
    mode = "im2col" if offsets else "tile"
    coordinates = ", ".join(f"%{3 + number}" for number in range(rank))
    rest = "{" + ", ".join(f"%{3 + rank + number}" for number in range(offsets)) + "}"
    # To the own block, ptxas for sm_120 checks an address of the cluster's window when it runs.
    space = "shared::cluster" if multicast else "shared::cta"
    text = (
        f"cp.async.bulk.tensor.{rank}d.{space}.global.{mode}"
        f".mbarrier::complete_tx::bytes{'.multicast::cluster' * multicast} "
        f"[%0], [%1, {{{coordinates}}}], [%2]{f', {rest}' * bool(offsets)}"
        f"{f', %{3 + rank + offsets}' * multicast};"
    )
    names = [f"c{number}" for number in range(rank)]
    steps = [f"o{number}" for number in range(offsets)]
    inputs = [_shared("shared"), '"l"(map)', _shared("barrier")]
    inputs += [f'"r"({name})' for name in names]
    inputs += [f'"h"(static_cast<unsigned short>({name}))' for name in steps]
    inputs += ['"h"(static_cast<unsigned short>(blocks))'] * multicast
    parameters = "void* shared, unsigned long long map, void* barrier"
    parameters += "".join(f", int {name}" for name in [*names, *steps, *["blocks"] * multicast])
    return (
        "void",
        tensor_load_name(rank, offsets, multicast=multicast),
        parameters,
        [_asm(text, *inputs)],
    )


def tensor_load_name(rank: int, offsets: int = 0, *, multicast: bool = False) -> str:
    """Return the name of the copy of a box, or with ``offsets`` of pixels in im2col mode.

    Its parameters are ``(shared, map, barrier, coordinates…, offsets…)``, innermost first, and the
    mask of blocks for a multicast. One thread calls it.

    Parameters
    ----------
    rank : int
        Number of dimensions of the map.
    offsets : int
        Number of offsets of im2col mode; 0 for a box.
    multicast : bool
        The copy goes to several blocks of a cluster.
    """
    mode = "_im2col" if offsets else ""
    return f"cpembed_tensor_load_{rank}d{mode}{'_multicast' * multicast}"


def _stores() -> Iterator[_Definition]:
    # Bulk stores are waited for in groups, by the thread that issued them: until their sources may
    # be overwritten.
    yield "void", "cpembed_bulk_commit", "", [_asm("cp.async.bulk.commit_group;")]
    for left in range(2):
        wait = _asm(f"cp.async.bulk.wait_group.read {left};")
        yield "void", f"cpembed_bulk_wait_read_{left}", "", [wait]
    for rank in range(1, MAX_RANK + 1):
        names = [f"c{number}" for number in range(rank)]
        coordinates = ", ".join(f"%{1 + number}" for number in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
            f"[%0, {{{coordinates}}}], [%{1 + rank}];"
        )
        inputs = ['"l"(map)', *(f'"r"({name})' for name in names), _shared("shared")]
        parameters = ", ".join(
            ["unsigned long long map", *(f"int {name}" for name in names), "const void* shared"]
        )
        yield "void", f"cpembed_tensor_store_{rank}d", parameters, [_asm(text, *inputs)]
    words = [f'"r"(static_cast<const unsigned int*>(registers)[{n}])' for n in range(4)]
    text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
    parameters = "void* shared, const void* registers"
    yield "void", "cpembed_stmatrix_x4", parameters, [_asm(text, _shared("shared"), *words)]


def _groups() -> Iterator[_Definition]:
    # Registers and shared memory that threads wrote are read by the products behind it.
    yield "void", "cpembed_wgmma_fence", "", [_asm("wgmma.fence.sync.aligned;")]
    yield "void", "cpembed_wgmma_commit", "", [_asm("wgmma.commit_group.sync.aligned;")]
    for left in range(2):
        wait = _asm(f"wgmma.wait_group.sync.aligned {left};")
        yield "void", f"cpembed_wgmma_wait_{left}", "", [wait]
    # Registers are allocated in units of 8, from 24 to 256 (PTX ISA, setmaxnreg).
    for count in range(24, 257, 8):
        for change in ("inc", "dec"):
            statement = _asm(f"setmaxnreg.{change}.sync.aligned.u32 {count};")
            yield "void", f"cpembed_registers_{change}_{count}", "", [statement]
    yield (
        "void",
        "cpembed_named_barrier",
        "int number, int threads",
        [_asm("bar.sync %0, %1;", '"r"(number)', '"r"(threads)')],
    )
    yield (
        "void",
        "cpembed_named_arrive",
        "int number, int threads",
        [_asm("bar.arrive %0, %1;", '"r"(number)', '"r"(threads)')],
    )
    # A number that is the same in all lanes. nvcc keeps it in a uniform register only if one lane
    # has told it to the others; descriptors that follow from it are then computed for a warp.
    yield (
        "int",
        "cpembed_uniform",
        "int value",
        ["return __shfl_sync(0xffffffff, value, 0);"],
    )
    # The compiler does not know what is in the register after this. As an integer, it would be
    # another register than the accumulator.
    yield (
        "void",
        "cpembed_opaque_float",
        "void* registers",
        ['asm volatile("mov.b32 %0, %0;" : "+f"(*static_cast<float*>(registers)));'],
    )
    # Sums of float16 are two to a register; those of parts are added in float32.
    sums = [f'"+f"(static_cast<float*>(sums)[{number}])' for number in range(2)]
    add = (
        "{ .reg .f16 low, high; .reg .f32 first, second; mov.b32 {low, high}, %2; "
        "cvt.f32.f16 first, low; cvt.f32.f16 second, high; "
        "add.f32 %0, %0, first; add.f32 %1, %1, second; }"
    )
    pair = '"r"(*static_cast<const unsigned int*>(pair))'
    yield (
        "void",
        "cpembed_add_halves",
        "void* sums, const void* pair",
        [_asm(add, pair, outputs=tuple(sums))],
    )
    yield (
        "void",
        "cpembed_round_halves",
        "void* pair, const void* sums",
        [
            _asm(
                "cvt.rn.f16x2.f32 %0, %2, %1;",
                *(f'"f"(static_cast<const float*>(sums)[{number}])' for number in range(2)),
                outputs=('"=r"(*static_cast<unsigned int*>(pair))',),
            )
        ],
    )
    # Counts a part of a reduction. What the block stored before a barrier before it is seen by the
    # block that counts next, behind a barrier after it.
    yield (
        "int",
        "cpembed_count_part",
        "void* counter",
        [
            "int count;",
            _asm(
                "atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;",
                '"l"(__cvta_generic_to_global(counter))',
                outputs=('"=r"(count)',),
            ),
            "return count;",
        ],
    )
    yield (
        "unsigned long long",
        "cpembed_matrix_descriptor",
        "const void* shared, long long fields",
        [
            "unsigned long long address = __cvta_generic_to_shared(shared);",
            "return static_cast<unsigned long long>(fields) | ((address & 0x3FFFF) >> 4);",
        ],
    )


_PRODUCT = re.compile(
    r"cpembed_wgmma_mma_m64n(\d+)k(\d+)_(\w+?)_(\w+?)_(\w+?)(_ra)?(?:_t(a|b|ab))?"
)


@cache
def _product_of(name: str) -> _Definition | None:
    """Return the definition of a product by its name."""
    match = _PRODUCT.fullmatch(name)
    if match is None:
        return None
    columns, depth, *types, registers, transposed = match.groups()
    for instruction in WARP_GROUP_INSTRUCTIONS:
        names = [SHORT[dtype] for dtype in (instruction.c, instruction.a, instruction.b)]
        matches = names == types and instruction.k == int(depth)
        if matches and int(columns) in column_counts(instruction):
            return _product(instruction, int(columns), bool(registers), transposed or "")
    return None


def _product(
    instruction: TensorCoreInstruction, columns: int, registers: bool, transposed: str
) -> _Definition:
    name = product_name(instruction, columns, registers=registers, transposed=transposed)
    first, _, unit = instruction.registers
    count = unit * columns // instruction.n
    kind, letter = {"float32": ("float", "f"), "int32": ("int", "r")}.get(
        instruction.c, ("unsigned int", "r")
    )
    sums = [f'"+{letter}"(static_cast<{kind}*>(c)[{number}])' for number in range(count)]
    a_count = first if registers else 1
    inputs = [f'"r"(static_cast<const unsigned int*>(a)[{number}])' for number in range(first)]
    inputs = (inputs if registers else ['"l"(a)']) + ['"l"(b)', '"r"(accumulate)']
    a = "{" + ", ".join(f"%{count + n}" for n in range(a_count)) + "}" if registers else f"%{count}"
    b, accumulate = count + a_count, count + a_count + 1
    types = ".".join(SHORT[dtype] for dtype in (instruction.c, instruction.a, instruction.b))
    # Integers are not scaled; of 16 bits, each factor in shared memory can be transposed.
    scales = "" if instruction.c == "int32" else ", 1, 1"
    if instruction.k == 16:
        scales += "" if registers else f", {int('a' in transposed)}"
        scales += f", {int('b' in transposed)}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{accumulate}, 0; "
        f"wgmma.mma_async.sync.aligned.m{instruction.m}n{columns}k{instruction.k}.{types} "
        f"{{{', '.join(f'%{n}' for n in range(count))}}}, {a}, %{b}, p{scales}; }}"
    )
    first_type = "const void* a" if registers else "unsigned long long a"
    parameters = f"void* c, {first_type}, unsigned long long b, int accumulate"
    return "void", name, parameters, [_asm(text, *inputs, outputs=tuple(sums))]

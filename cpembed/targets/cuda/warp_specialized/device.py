"""Device functions of sm_90a: mbarriers, bulk copies, and products of warp groups, as inline PTX.

Functions of a warp group are called by all of its threads; which threads call the others is said
with each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from cpembed.errors import InvariantError
from cpembed.targets.cuda import device
from cpembed.targets.cuda.device import (
    Definition,
    array,
    asm,
    global_operand,
    shared_operand,
    vector,
)
from cpembed.targets.cuda.instructions import (
    SHORT,
    WARP_GROUP_INSTRUCTIONS,
    TensorCoreInstruction,
)
from cpembed.targets.cuda.tma.tensor_maps import MAX_RANK

MAX_COLUMNS = 256
"""Maximum number of columns of a product of a warp group."""


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
    """Return the source of a device function, of sm_90a or of every GPU.

    Raises :class:`~cpembed.errors.InvariantError` for a name that does not exist.
    """
    definition = _fixed().get(name) or _product_of(name)
    return device.function(name) if definition is None else definition.text


@cache
def _fixed() -> dict[str, Definition]:
    """Return the definitions that no instruction has a part in, by name."""
    definitions = [*_barriers(), *_copies(), *_stores(), *_groups(), *_parts()]
    return {definition.name: definition for definition in definitions}


def _input(parameter: str) -> str:
    """Return a parameter as an operand of PTX; pointers are to shared memory."""
    kind, name = parameter.rsplit(" ", 1)
    if kind.endswith("*"):
        return global_operand(name) if name in ("global", "counter") else shared_operand(name)
    return f'"{"r" if kind == "int" else "l"}"({name})'


def _statement(name: str, parameters: str, *texts: str) -> Definition:
    """Return a function of PTX whose operands are its parameters in their order."""
    inputs = [_input(parameter) for parameter in parameters.split(", ") if parameter]
    return Definition(name, parameters, [asm(text, [], inputs) for text in texts])


def _barriers() -> Iterator[Definition]:
    initialise = "mbarrier.init.shared::cta.b64 [%0], %1;"
    yield _statement("cpembed_mbarrier_init", "void* barrier, int count", initialise)
    # Bulk copies, and other blocks of a cluster, see the barriers only behind this.
    yield _statement("cpembed_mbarrier_init_fence", "", "fence.mbarrier_init.release.cluster;")
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%0];"
    yield _statement("cpembed_mbarrier_arrive", "void* barrier", arrive)
    expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    yield _statement("cpembed_mbarrier_expect", "void* barrier, int bytes", expect)
    # A wait may end before the phase does, so it is repeated.
    wait = (
        "{ .reg .pred p; again: "
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
        "@p bra done; bra again; done: }"
    )
    yield _statement("cpembed_mbarrier_wait", "void* barrier, int parity", wait)
    synchronise = (
        f"barrier.cluster.{step}.aligned;" for step in ("arrive.release", "wait.acquire")
    )
    yield _statement("cpembed_cluster_sync", "", *synchronise)
    # Without .release.cluster, and waited for without .acquire.cluster, as CUTLASS does it
    # (cutlass/arch/barrier.h, ClusterBarrier): nothing that a consumer writes is read behind it.
    # Otherwise ptxas puts a memory barrier into each stage, and clears L1.
    arrive = (
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [remote]; }"
    )
    yield _statement("cpembed_mbarrier_arrive_at", "void* barrier, int block", arrive)
    # What threads wrote becomes visible to products and bulk copies.
    yield _statement("cpembed_proxy_fence", "", "fence.proxy.async.shared::cta;")
    for action, text in (("barrier", "bar.sync %0, %1;"), ("arrive", "bar.arrive %0, %1;")):
        yield _statement(f"cpembed_named_{action}", "int number, int threads", text)


def _copies() -> Iterator[Definition]:
    copy = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    parameters = "void* shared, const void* global, int bytes, void* barrier"
    yield _statement("cpembed_bulk_load", parameters, copy)
    yield _statement("cpembed_prefetch_map", "unsigned long long map", "prefetch.tensormap [%0];")
    for multicast in (False, True):
        for rank in range(1, MAX_RANK + 1):
            yield _tensor_load(rank, 0, multicast=multicast)
        # In im2col mode a filter moves along all dimensions but channels and images.
        for rank in range(3, MAX_RANK + 1):
            yield _tensor_load(rank, rank - 2, multicast=multicast)


def _tensor_load(rank: int, offsets: int, *, multicast: bool) -> Definition:
    mode = "im2col" if offsets else "tile"
    # To the own block, ptxas for sm_120 checks an address of the cluster's window when it runs.
    space = "shared::cluster" if multicast else "shared::cta"
    text = (
        f"cp.async.bulk.tensor.{rank}d.{space}.global.{mode}"
        f".mbarrier::complete_tx::bytes{'.multicast::cluster' * multicast} "
        f"[%0], [%1, {vector(3, rank)}], [%2]{f', {vector(3 + rank, offsets)}' * bool(offsets)}"
        f"{f', %{3 + rank + offsets}' * multicast};"
    )
    names = [f"c{number}" for number in range(rank)]
    short = [*(f"o{number}" for number in range(offsets)), *["blocks"] * multicast]
    inputs = [shared_operand("shared"), '"l"(map)', shared_operand("barrier")]
    inputs += [f'"r"({name})' for name in names]
    inputs += [f'"h"(static_cast<unsigned short>({name}))' for name in short]
    parameters = "void* shared, unsigned long long map, void* barrier"
    parameters += "".join(f", int {name}" for name in [*names, *short])
    name = tensor_load_name(rank, offsets, multicast=multicast)
    return Definition(name, parameters, [asm(text, [], inputs)])


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


def _stores() -> Iterator[Definition]:
    # Bulk stores are waited for in groups, by the thread that issued them: until their sources may
    # be overwritten.
    yield _statement("cpembed_bulk_commit", "", "cp.async.bulk.commit_group;")
    for left in range(2):
        wait = f"cp.async.bulk.wait_group.read {left};"
        yield _statement(f"cpembed_bulk_wait_read_{left}", "", wait)
    for rank in range(1, MAX_RANK + 1):
        text = (
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
            f"[%0, {vector(1, rank)}], [%{1 + rank}];"
        )
        coordinates = ", ".join(f"int c{number}" for number in range(rank))
        parameters = f"unsigned long long map, {coordinates}, const void* shared"
        yield _statement(f"cpembed_tensor_store_{rank}d", parameters, text)
    text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
    inputs = [shared_operand("shared"), *array("registers", "", 4, "")]
    parameters = "void* shared, const void* registers"
    yield Definition("cpembed_stmatrix_x4", parameters, [asm(text, [], inputs)])


def _groups() -> Iterator[Definition]:
    # Registers and shared memory that threads wrote are read by the products behind it.
    yield _statement("cpembed_wgmma_fence", "", "wgmma.fence.sync.aligned;")
    yield _statement("cpembed_wgmma_commit", "", "wgmma.commit_group.sync.aligned;")
    for left in range(2):
        yield _statement(f"cpembed_wgmma_wait_{left}", "", f"wgmma.wait_group.sync.aligned {left};")
    # Registers are allocated in units of 8, from 24 to 256 (PTX ISA, setmaxnreg).
    for count in range(24, 257, 8):
        for change in ("inc", "dec"):
            text = f"setmaxnreg.{change}.sync.aligned.u32 {count};"
            yield _statement(f"cpembed_registers_{change}_{count}", "", text)
    # A number that is the same in all lanes. nvcc keeps it in a uniform register only if one lane
    # has told it to the others; descriptors that follow from it are then computed for a warp.
    uniform = "return __shfl_sync(0xffffffff, value, 0);"
    yield Definition("cpembed_uniform", "int value", [uniform], "int")
    lines = [
        "unsigned long long address = __cvta_generic_to_shared(shared);",
        "return static_cast<unsigned long long>(fields) | ((address & 0x3FFFF) >> 4);",
    ]
    parameters = "const void* shared, long long fields"
    yield Definition("cpembed_matrix_descriptor", parameters, lines, "unsigned long long")


def _parts() -> Iterator[Definition]:
    """Yield functions for parts of sums that several blocks make."""
    # The compiler does not know what is in the register after this. As an integer, it would be
    # another register than the accumulator.
    move = 'asm volatile("mov.b32 %0, %0;" : "+f"(*static_cast<float*>(registers)));'
    yield Definition("cpembed_opaque_float", "void* registers", [move])
    # Sums of float16 are two to a register; those of parts are added in float32.
    add = (
        "{ .reg .f16 low, high; .reg .f32 first, second; mov.b32 {low, high}, %2; "
        "cvt.f32.f16 first, low; cvt.f32.f16 second, high; "
        "add.f32 %0, %0, first; add.f32 %1, %1, second; }"
    )
    pair = '"r"(*static_cast<const unsigned int*>(pair))'
    lines = [asm(add, array("sums", "float32", 2, "+"), [pair])]
    yield Definition("cpembed_add_halves", "void* sums, const void* pair", lines)
    rounded = '"=r"(*static_cast<unsigned int*>(pair))'
    sums = array("sums", "float32", 2, "")
    lines = [asm("cvt.rn.f16x2.f32 %0, %2, %1;", [rounded], sums)]
    yield Definition("cpembed_round_halves", "void* pair, const void* sums", lines)
    # Counts a part of a reduction. What the block stored before a barrier before it is seen by the
    # block that counts next, behind a barrier after it.
    count = "atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
    lines = ["int count;", asm(count, ['"=r"(count)'], [_input("void* counter")]), "return count;"]
    yield Definition("cpembed_count_part", "void* counter", lines, "int")


_PRODUCT = re.compile(
    r"cpembed_wgmma_mma_m64n(\d+)k(\d+)_(\w+?)_(\w+?)_(\w+?)(_ra)?(?:_t(a|b|ab))?"
)


@cache
def _product_of(name: str) -> Definition | None:
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
) -> Definition:
    name = product_name(instruction, columns, registers=registers, transposed=transposed)
    first, _, unit = instruction.registers
    count = unit * columns // instruction.n
    sums = array("c", instruction.c, count, "+")
    a_count = first if registers else 1
    inputs = array("a", "", first, "") if registers else ['"l"(a)']
    inputs += ['"l"(b)', '"r"(accumulate)']
    a = vector(count, a_count) if registers else f"%{count}"
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
        f"{vector(0, count)}, {a}, %{b}, p{scales}; }}"
    )
    first_type = "const void* a" if registers else "unsigned long long a"
    parameters = f"void* c, {first_type}, unsigned long long b, int accumulate"
    return Definition(name, parameters, [asm(text, sums, inputs)])

"""Rows of sm_90: barrier objects, bulk copies, products of warp groups, clusters, named barriers.

From the PTX ISA, "Parallel Synchronization and Communication Instructions", "Data Movement and
Conversion Instructions: Tensor Copy" and "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.atomics import KINDS, OPERATIONS
from cpembed.targets.cuda.emulator.ptx.body import Call
from cpembed.targets.cuda.emulator.ptx.syntax import Address, Immediate, Name, Operand, Vector
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required, runtime_call

_OBJECT = optional("space", "shared", "shared::cta", "shared::cluster")
_SCOPE = optional("scope", "cta", "cluster", "gpu", "sys")
_B64 = required("type", "b64")

# ------------------------------------------------------------------------------ named barriers


def _barrier(call: Call, function: str) -> str:
    call.require_operands(1, 2)
    threads = call.value(1, "u32") if len(call.operands) == 2 else "0u"
    return f"{call.function} {function}(f_, {call.value(0, 'u32')}, {threads});"


for _name in ("bar", "bar.cta", "barrier", "barrier.cta"):
    # Without .aligned the lanes of a warp may come apart, which is not emulated.
    _ALIGNED = [required("aligned", "aligned")] if _name.startswith("barrier") else []

    @instruction(f"{_name}.sync", *_ALIGNED)
    def _wait_at_barrier(call: Call) -> str:
        return _barrier(call, "executor_bar_sync")

    @instruction(f"{_name}.arrive", *_ALIGNED)
    def _arrive_at_barrier(call: Call) -> str:
        call.require_operands(2)
        return _barrier(call, "executor_bar_arrive")


# ------------------------------------------------------------------------------------ clusters


@instruction("barrier.cluster.arrive", optional("order", "release", "relaxed"),
             required("aligned", "aligned"))  # fmt: skip
def _arrive_at_cluster(call: Call) -> str:
    call.require_operands(0)
    releases = "false" if call["order"] == "relaxed" else "true"
    return f"{call.function} executor_cluster_arrive(f_, {releases});"


runtime_call(
    "barrier.cluster.wait",
    "cluster_wait",
    optional("order", "acquire"),
    required("aligned", "aligned"),
)


@instruction("mapa", optional("space", "shared::cluster"), required("type", "u32"))
def _map_address(call: Call) -> str:
    call.require_operands(3)
    address = f"executor_mapa(f_, {call.value(1, 'u32')}, {call.value(2, 'u32')})"
    return f"{call.function} {call.assign(call.operands[0], 'u32', address)}"


@instruction("elect.sync")
def _elect(call: Call) -> str:
    call.require_operands(2)
    leader, elected = call.pair(0)
    if elected is None:
        raise LoweringError("its destination has to be a register and a predicate: d|p")
    lines = [call.function, f"const uint32_t e_ = executor_elect(f_, {call.value(1, 'u32')});"]
    lines.append(call.assign(leader, "b32", "e_"))
    lines.append(call.assign(elected, "pred", "e_ == executor_lane()"))
    return " ".join(lines)


@instruction("setmaxnreg", required("change", "inc", "dec"), required("sync", "sync"),
             required("aligned", "aligned"), required("type", "u32"))  # fmt: skip
def _set_registers(call: Call) -> str:
    call.require_operands(1)
    increases = "true" if call["change"] == "inc" else "false"
    return f"{call.function} executor_setmaxnreg(f_, {call.constant(0)}, {increases});"


# ------------------------------------------------------------------------------ barrier objects


def _address(call: Call, place: int) -> str:
    return f"uint32_t({call.address(place, 'shared')})"


_OWN_OBJECT = optional("space", "shared", "shared::cta")


@instruction("mbarrier.init", _OWN_OBJECT, _B64)
def _init_object(call: Call) -> str:
    call.require_operands(2)
    return (
        f"{call.function} executor_mbarrier_init(f_, {_address(call, 0)}, {call.value(1, 'u32')});"
    )


@instruction("mbarrier.inval", _OWN_OBJECT, _B64)
def _invalidate_object(call: Call) -> str:
    call.require_operands(1)
    return f"{call.function} executor_mbarrier_inval(f_, {_address(call, 0)});"


_RELEASE = optional("order", "release", "relaxed")


for _name in ("mbarrier.arrive", "mbarrier.arrive_drop"):

    @instruction(_name, optional("transactions", "expect_tx", "noComplete"), _RELEASE, _SCOPE,
                 _OBJECT, _B64)  # fmt: skip
    def _arrive(call: Call) -> str:
        # Remote arrivals may lack the destination of the state.
        first = 0 if isinstance(call.operands[0], Address) else 1
        count = "1u"
        if len(call.operands) > first + 1 or call["transactions"]:
            call.require_operands(first + 2)
            count = call.value(first + 1, "u32")
        call.require_operands(first + 1, first + 2)
        arrivals, transactions = count, "int64_t(-1)"
        if call["transactions"] == "expect_tx":
            arrivals, transactions = "1u", f"int64_t({count})"
        flags = (
            call["order"] != "relaxed",
            call.instruction.opcode.startswith("mbarrier.arrive_drop"),
            call["transactions"] != "noComplete",
        )
        state = (
            f"executor_mbarrier_arrive(f_, {_address(call, first)}, {arrivals}, {transactions}, "
            f"{', '.join(str(flag).lower() for flag in flags)})"
        )
        if first == 0 or call.operands[0] == Name("_"):
            return f"{call.function} {state};"
        return f"{call.function} {call.assign(call.operands[0], 'b64', state)}"


@instruction("mbarrier.pending_count", _B64)
def _pending_count(call: Call) -> str:
    call.require_operands(2)
    pending = f"executor_mbarrier_pending(f_, {call.value(1, 'b64')})"
    return f"{call.function} {call.assign(call.operands[0], 'u32', pending)}"


@instruction("mbarrier.complete_tx", optional("order", "relaxed"), _SCOPE, _OBJECT, _B64)
def _complete(call: Call) -> str:
    call.require_operands(2)
    return (
        f"{call.function} executor_mbarrier_complete_tx(f_, {_address(call, 0)}, "
        f"{call.value(1, 'u32')});"
    )


@instruction("cp.async.mbarrier.arrive", optional("counted", "noinc"), _OWN_OBJECT, _B64)
def _copies_arrive(call: Call) -> str:
    call.require_operands(1)
    counted = "true" if call["counted"] else "false"
    return f"{call.function} executor_copy_arrive(f_, {_address(call, 0)}, {counted});"


@instruction("mbarrier.expect_tx", optional("order", "relaxed"), _SCOPE, _OBJECT, _B64)
def _expect(call: Call) -> str:
    call.require_operands(2)
    return (
        f"{call.function} executor_mbarrier_expect_tx(f_, {_address(call, 0)}, "
        f"{call.value(1, 'u32')});"
    )


for _name in ("mbarrier.try_wait", "mbarrier.test_wait"):

    @instruction(_name, optional("parity", "parity"), optional("order", "acquire", "relaxed"),
                 _SCOPE, _OBJECT, _B64)  # fmt: skip
    def _wait(call: Call) -> str:
        # A limit of the time that a GPU may wait is of no consequence here.
        call.require_operands(3, 4)
        acquires = "false" if call["order"] == "relaxed" else "true"
        function, kind = (
            ("executor_mbarrier_wait_parity", "u32")
            if call["parity"]
            else ("executor_mbarrier_wait", "b64")
        )
        completed = f"{function}(f_, {_address(call, 1)}, {call.value(2, kind)}, {acquires})"
        return f"{call.function} {call.assign(call.operands[0], 'pred', completed)}"


runtime_call("fence.mbarrier_init.release.cluster", "fence_mbarrier_init")
runtime_call(
    "fence.proxy.async",
    "fence_proxy_async",
    optional("space", "global", "shared::cta", "shared::cluster"),
)


# --------------------------------------------------------------------------------- bulk copies

_DIMENSIONS = required("dimensions", "1d", "2d", "3d", "4d", "5d")
_TO_SHARED = required("to", "shared::cluster", "shared::cta")
_FROM_GLOBAL = required("from", "global")
_COMPLETION = required("completion", "mbarrier::complete_tx::bytes")
_MULTICAST = optional("multicast", "multicast::cluster")
_HINT = optional("hint", "L2::cache_hint")


def _map_and_coordinates(call: Call, place: int, rank: int) -> tuple[str, str]:
    """Return the address of a tensor map and its coordinates, from ``[map, {c0, c1}]``."""
    operand = call.operands[place]
    if not isinstance(operand, Address) or len(operand.rest) != 1:
        raise LoweringError(f"operand {place} has to be [map, {{coordinates}}]")
    (coordinates,) = operand.rest
    items = coordinates.items if isinstance(coordinates, Vector) else (coordinates,)
    if len(items) != rank:
        raise LoweringError(f"{len(items)} coordinates of {rank}")
    address = call.based(Address(operand.base, operand.offset), "")
    values = ", ".join(call.value(item, "s32") for item in items)
    return f"reinterpret_cast<const void *>({address})", values


def _extra_operands(call: Call, first: int) -> tuple[Operand, ...]:
    """Return what follows the barrier object, without the cache policy."""
    rest = call.operands[first:]
    return rest[:-1] if call["hint"] else rest


def _mask(call: Call, rest: tuple[Operand, ...]) -> str:
    if len(rest) != bool(call["multicast"]):
        raise LoweringError("a multicast needs a mask of blocks, and other copies have none")
    return f"true, {call.value(rest[0], 'b16')}" if rest else "false, 0u"


@instruction("cp.async.bulk.tensor", _DIMENSIONS, _TO_SHARED, _FROM_GLOBAL,
             optional("mode", "tile", "im2col"), _COMPLETION, _MULTICAST, _HINT)  # fmt: skip
def _load_tensor(call: Call) -> str:
    rank = int(call["dimensions"][0])
    tensor_map, coordinates = _map_and_coordinates(call, 1, rank)
    rest = _extra_operands(call, 3)
    lines = [call.function, f"const int32_t c_[] = {{{coordinates}}};"]
    offsets = "nullptr"
    if call["mode"] == "im2col":
        if not rest or not isinstance(rest[0], Vector) or len(rest[0].items) != rank - 2:
            raise LoweringError(f"im2col needs {rank - 2} offsets in braces")
        values = ", ".join(call.value(item, "b16") for item in rest[0].items)
        lines.append(f"const uint16_t w_[] = {{{values}}};")
        offsets, rest = "w_", rest[1:]
    lines.append(
        f"executor_bulk_load_tensor(f_, {_address(call, 0)}, {tensor_map}, c_, {rank}, {offsets}, "
        f"{_address(call, 2)}, {_mask(call, rest)});"
    )
    return " ".join(lines)


_REDUCTION = required("reduction", "add", "min", "max", "inc", "dec", "and", "or", "xor")


def _reduction(call: Call, kind: str) -> str:
    """Return the runtime's numbers of an operation and of its type; -1 for a store."""
    if not call.instruction.opcode.startswith("cp.reduce"):
        return "-1, 0"
    return f"executor::{OPERATIONS[call['reduction']]}, {kind}"


@instruction("cp.reduce.async.bulk.tensor", _DIMENSIONS, required("to", "global"),
             required("from", "shared::cta"), _REDUCTION, optional("mode", "tile"),
             required("completion", "bulk_group"), _HINT)  # fmt: skip
@instruction("cp.async.bulk.tensor", _DIMENSIONS, required("to", "global"),
             required("from", "shared::cta"), optional("mode", "tile"),
             required("completion", "bulk_group"), _HINT)  # fmt: skip
def _store_tensor(call: Call) -> str:
    rank = int(call["dimensions"][0])
    call.require_operands(2 + bool(call["hint"]))
    tensor_map, coordinates = _map_and_coordinates(call, 0, rank)
    return (
        f"{call.function} const int32_t c_[] = {{{coordinates}}}; executor_bulk_store_tensor(f_, "
        f"{tensor_map}, c_, {rank}, {_address(call, 1)}, {_reduction(call, '-1')});"
    )


def _global_pointer(call: Call, place: int) -> str:
    return f"reinterpret_cast<const void *>({call.address(place, 'global')})"


@instruction("cp.async.bulk", _TO_SHARED, _FROM_GLOBAL, _COMPLETION, _MULTICAST, _HINT)
def _load_bytes(call: Call) -> str:
    return (
        f"{call.function} executor_bulk_load(f_, {_address(call, 0)}, {_global_pointer(call, 1)}, "
        f"{call.value(2, 'u32')}, {_address(call, 3)}, {_mask(call, _extra_operands(call, 4))});"
    )


_REDUCED = {**KINDS, "f16": "kFloat16", "bf16": "kBfloat16"}


@instruction("cp.reduce.async.bulk", required("to", "global"), required("from", "shared::cta"),
             required("completion", "bulk_group"), _HINT, _REDUCTION, optional("noftz", "noftz"),
             required("type", *_REDUCED))  # fmt: skip
@instruction("cp.async.bulk", required("to", "global"), required("from", "shared::cta"),
             required("completion", "bulk_group"), _HINT)  # fmt: skip
def _store_bytes(call: Call) -> str:
    call.require_operands(3 + bool(call["hint"]))
    reduction = "-1, 0"
    if call.instruction.opcode.startswith("cp.reduce"):
        _require_reduction(call)
        reduction = _reduction(call, f"executor::{_REDUCED[call['type']]}")
    return (
        f"{call.function} executor_bulk_store(f_, {_global_pointer(call, 0)}, {_address(call, 1)}, "
        f"{call.value(2, 'u32')}, {reduction});"
    )


def _require_reduction(call: Call) -> None:
    floats, operation = call["type"] in ("f32", "f16", "bf16"), call["reduction"]
    halves = call["type"] in ("f16", "bf16")
    if floats and operation not in (("add", "min", "max") if halves else ("add",)):
        raise LoweringError(f"there is no reduction {operation} of {call['type']}")
    if halves and operation == "add" and not call["noftz"]:
        raise LoweringError("a sum of 16-bit floats is .noftz")


@instruction("cp.async.bulk", required("to", "shared::cluster"), required("from", "shared::cta"),
             _COMPLETION)  # fmt: skip
def _copy_shared(call: Call) -> str:
    call.require_operands(4)
    return (
        f"{call.function} executor_bulk_copy_shared(f_, {_address(call, 0)}, {_address(call, 1)}, "
        f"{call.value(2, 'u32')}, {_address(call, 3)});"
    )


@instruction("cp.async.bulk.prefetch.L2.global", _HINT)
def _prefetch_bytes(call: Call) -> str:
    call.require_operands(2 + bool(call["hint"]))
    return (
        f"{call.function} executor_bulk_prefetch(f_, {_global_pointer(call, 0)}, "
        f"{call.value(1, 'u32')});"
    )


@instruction("cp.async.bulk.prefetch.tensor", _DIMENSIONS, required("to", "L2"), _FROM_GLOBAL,
             optional("mode", "tile"), _HINT)  # fmt: skip
def _prefetch_tensor(call: Call) -> str:
    call.require_operands(1 + bool(call["hint"]))
    rank = int(call["dimensions"][0])
    tensor_map, coordinates = _map_and_coordinates(call, 0, rank)
    return (
        f"{call.function} (void)std::make_tuple({coordinates}); "
        f"executor_prefetch_tensormap(f_, {tensor_map});"
    )


@instruction("fence.proxy.tensormap::generic", required("order", "acquire", "release"),
             required("scope", "cta", "cluster", "gpu", "sys"))  # fmt: skip
def _fence_map(call: Call) -> str:
    acquires = call["order"] == "acquire"
    call.require_operands(2 if acquires else 0)
    pointer = f"reinterpret_cast<const void *>({call.address(0, '')})" if acquires else "nullptr"
    if acquires and call.constant(1) != "128":
        raise LoweringError("a tensor map has 128 bytes")
    flag = "true" if acquires else "false"
    return f"{call.function} executor_fence_tensormap(f_, {pointer}, {flag});"


# ------------------------------------------------------------------------- dependent launches


runtime_call("griddepcontrol.wait", "wait_for_grid")
runtime_call("griddepcontrol.launch_dependents", "launch_dependents")
runtime_call("cp.async.bulk.commit_group", "bulk_commit")


@instruction("cp.async.bulk.wait_group", optional("read", "read"))
def _wait_bulk(call: Call) -> str:
    call.require_operands(1)
    reads = "true" if call["read"] else "false"
    return f"{call.function} executor_bulk_wait(f_, {call.constant(0)}, {reads});"


@instruction("prefetch", optional("space", "param", "const"), required("what", "tensormap"))
def _prefetch_map(call: Call) -> str:
    call.require_operands(1)
    pointer = f"reinterpret_cast<const void *>({call.address(0, '')})"
    return f"{call.function} executor_prefetch_tensormap(f_, {pointer});"


# --------------------------------------------------------------- products of warp groups (wgmma)

_FLOATS_8 = ("e4m3", "e5m2")
_PRODUCTS: dict[tuple[str, int], tuple[tuple[str, str], ...]] = {
    ("f32", 16): (("f16", "f16"), ("bf16", "bf16")),
    ("f16", 16): (("f16", "f16"),),
    ("f32", 32): tuple((a, b) for a in _FLOATS_8 for b in _FLOATS_8),
    ("f16", 32): tuple((a, b) for a in _FLOATS_8 for b in _FLOATS_8),
    ("s32", 32): tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
}
"""Element types of the factors by type of the sums and depth."""

_SHAPES = tuple(f"m64n{n}k{k}" for k in (16, 32) for n in range(8, 257, 8))
_FACTORS = ("f16", "bf16", *_FLOATS_8, "s8", "u8")


def _columns(shape: str, sums: str) -> tuple[int, int]:
    """Return columns and depth of a shape."""
    n, k = map(int, shape.removeprefix("m64n").split("k"))
    if sums == "s32" and n > 24 and n % 16:
        raise LoweringError(f"{shape}: more than 24 columns of integers are a multiple of 16")
    return n, k


@instruction("wgmma.mma_async.sync.aligned", required("shape", *_SHAPES),
             required("d", "f32", "f16", "s32"), required("a", *_FACTORS),
             required("b", *_FACTORS))  # fmt: skip
def _multiply(call: Call) -> str:
    sums = call["d"]
    n, k = _columns(call["shape"], sums)
    if (call["a"], call["b"]) not in _PRODUCTS.get((sums, k), ()):
        raise LoweringError(f"no product of {call['a']} and {call['b']} in {sums} of depth {k}")
    wide = call["a"] in ("f16", "bf16")
    from_registers = isinstance(call.operands[1], Vector)
    # d, a, b, scale-d; -1 or 1 for each factor of floats; then which of them are transposed.
    transposes = (1 if from_registers else 2) if wide else 0
    constants = 0 if sums == "s32" else 2 + transposes
    call.require_operands(4 + constants)
    values = [call.constant(4 + number) for number in range(constants)]
    scales = values[:2] or ["1", "1"]
    # The registers of A have one order only.
    transposed = ["0", "0", *values[2:]][-2:]
    count = n // 4 if sums == "f16" else n // 2
    kind = "f32" if sums == "f32" else "b32"
    registers = [call.reference(item, kind) for item in call.items(0, count)]
    words, places, a = "{}", "{}", "0"
    if from_registers:
        words = f"{{{', '.join(call.values(1, 'b32', 4))}}}"
        places = f"{{{', '.join(call.place(item) for item in call.items(1, 4))}}}"
    else:
        a = call.value(1, "b64")
    return (
        f"{call.function} executor::multiply_group(f_, ExecutorWords{{{words}}}, ExecutorPlaces{{{places}}}, "
        f"{'true' if from_registers else 'false'}, {a}, {call.value(2, 'b64')}, "
        f"{_scale(call)}, {', '.join([*scales, *transposed, *registers])});"
    )


def _scale(call: Call) -> str:
    """Return whether the sums are added to."""
    operand = call.operands[3]
    if isinstance(operand, Immediate):
        return f"({operand.text}) != 0"
    return call.condition(operand)


runtime_call("wgmma.fence.sync.aligned", "wgmma_fence")
runtime_call("wgmma.commit_group.sync.aligned", "wgmma_commit")
runtime_call("wgmma.wait_group.sync.aligned", "wgmma_wait", constants=1)

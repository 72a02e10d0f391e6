"""Rows of bulk copies, tensor maps, and fences between the proxies.

From the PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" and "Tensor copy".
"""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.atomics import KINDS, OPERATIONS
from cpembed.targets.cuda.emulator.ptx.body import Call
from cpembed.targets.cuda.emulator.ptx.syntax import Address, Operand, Vector
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required, runtime_call

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
    if rest and call["to"] != "shared::cluster":
        raise LoweringError("a multicast goes to .shared::cluster")
    return f"true, {call.value(rest[0], 'b16')}" if rest else "false, 0u"


@instruction("cp.async.bulk.tensor", _DIMENSIONS, _TO_SHARED, _FROM_GLOBAL,
             optional("mode", "tile", "im2col"), _COMPLETION, _MULTICAST, _HINT,
             operands=(3, 4, 5))  # fmt: skip
def _load_tensor(call: Call) -> str:
    rank = int(call["dimensions"][0])
    tensor_map, coordinates = _map_and_coordinates(call, 1, rank)
    rest = _extra_operands(call, 3)
    lines = [f"const int32_t c_[] = {{{coordinates}}};"]
    offsets = "nullptr"
    if call["mode"] == "im2col":
        if not rest or not isinstance(rest[0], Vector) or len(rest[0].items) != rank - 2:
            raise LoweringError(f"im2col needs {rank - 2} offsets in braces")
        values = ", ".join(call.value(item, "b16") for item in rest[0].items)
        lines.append(f"const uint16_t w_[] = {{{values}}};")
        offsets, rest = "w_", rest[1:]
    image, barrier = call.shared_address(0), call.shared_address(2)
    mask = _mask(call, rest)
    lines.append(
        call.invoke("bulk_load_tensor", image, tensor_map, "c_", str(rank), offsets, barrier, mask)
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
             required("completion", "bulk_group"), _HINT, operands=2)  # fmt: skip
@instruction("cp.async.bulk.tensor", _DIMENSIONS, required("to", "global"),
             required("from", "shared::cta"), optional("mode", "tile"),
             required("completion", "bulk_group"), _HINT, operands=2)  # fmt: skip
def _store_tensor(call: Call) -> str:
    rank = int(call["dimensions"][0])
    tensor_map, coordinates = _map_and_coordinates(call, 0, rank)
    image, reduction = call.shared_address(1), _reduction(call, "-1")
    store = call.invoke("bulk_store_tensor", tensor_map, "c_", str(rank), image, reduction)
    return f"const int32_t c_[] = {{{coordinates}}}; {store}"


def _global_pointer(call: Call, place: int) -> str:
    return f"reinterpret_cast<const void *>({call.address(place, 'global')})"


@instruction("cp.async.bulk", _TO_SHARED, _FROM_GLOBAL, _COMPLETION, _MULTICAST, _HINT,
             operands=(4, 5))  # fmt: skip
def _load_bytes(call: Call) -> str:
    mask = _mask(call, _extra_operands(call, 4))
    source, count = _global_pointer(call, 1), call.value(2, "u32")
    return call.invoke(
        "bulk_load", call.shared_address(0), source, count, call.shared_address(3), mask
    )


_REDUCED = {**KINDS, "f16": "kFloat16", "bf16": "kBfloat16"}


@instruction("cp.reduce.async.bulk", required("to", "global"), required("from", "shared::cta"),
             required("completion", "bulk_group"), _HINT, _REDUCTION, optional("noftz", "noftz"),
             required("type", *_REDUCED), operands=3)  # fmt: skip
@instruction("cp.async.bulk", required("to", "global"), required("from", "shared::cta"),
             required("completion", "bulk_group"), _HINT, operands=3)  # fmt: skip
def _store_bytes(call: Call) -> str:
    reduction = "-1, 0"
    if call.instruction.opcode.startswith("cp.reduce"):
        _require_reduction(call)
        reduction = _reduction(call, f"executor::{_REDUCED[call['type']]}")
    target, count = _global_pointer(call, 0), call.value(2, "u32")
    return call.invoke("bulk_store", target, call.shared_address(1), count, reduction)


def _require_reduction(call: Call) -> None:
    floats, operation = call["type"] in ("f32", "f16", "bf16"), call["reduction"]
    halves = call["type"] in ("f16", "bf16")
    if floats and operation not in (("add", "min", "max") if halves else ("add",)):
        raise LoweringError(f"there is no reduction {operation} of {call['type']}")
    if halves and operation == "add" and not call["noftz"]:
        raise LoweringError("a sum of 16-bit floats is .noftz")


@instruction("cp.async.bulk", required("to", "shared::cluster"), required("from", "shared::cta"),
             _COMPLETION, operands=4)  # fmt: skip
def _copy_shared(call: Call) -> str:
    target, source, barrier = (call.shared_address(place) for place in (0, 1, 3))
    return call.invoke("bulk_copy_shared", target, source, call.value(2, "u32"), barrier)


@instruction("cp.async.bulk.prefetch.L2.global", _HINT, operands=2)
def _prefetch_bytes(call: Call) -> str:
    return call.invoke("bulk_prefetch", _global_pointer(call, 0), call.value(1, "u32"))


@instruction("cp.async.bulk.prefetch.tensor", _DIMENSIONS, required("to", "L2"), _FROM_GLOBAL,
             optional("mode", "tile"), _HINT, operands=1)  # fmt: skip
def _prefetch_tensor(call: Call) -> str:
    rank = int(call["dimensions"][0])
    tensor_map, coordinates = _map_and_coordinates(call, 0, rank)
    prefetch = call.invoke("prefetch_tensormap", tensor_map)
    return f"const int32_t c_[] = {{{coordinates}}}; (void)c_; {prefetch}"


@instruction("fence.proxy.tensormap::generic", required("order", "acquire", "release"),
             required("scope", "cta", "cluster", "gpu", "sys"))  # fmt: skip
def _fence_map(call: Call) -> str:
    acquires = call["order"] == "acquire"
    call.require_operands(2 if acquires else 0)
    pointer = f"reinterpret_cast<const void *>({call.address(0, '')})" if acquires else "nullptr"
    if acquires and call.constant(1) != "128":
        raise LoweringError("a tensor map has 128 bytes")
    return call.invoke("fence_tensormap", pointer, "true" if acquires else "false")


runtime_call("cp.async.bulk.commit_group", "bulk_commit")


@instruction("cp.async.bulk.wait_group", optional("read", "read"), operands=1)
def _wait_bulk(call: Call) -> str:
    return call.invoke("bulk_wait", call.constant(0), call.flag("read"))


@instruction(
    "prefetch", optional("space", "param", "const"), required("what", "tensormap"), operands=1
)
def _prefetch_map(call: Call) -> str:
    pointer = f"reinterpret_cast<const void *>({call.address(0, '')})"
    return call.invoke("prefetch_tensormap", pointer)


@instruction("fence.proxy.async", optional("space", "shared::cta", "shared::cluster", "global"))
def _fence_async(call: Call) -> str:
    call.require_operands(0)
    return call.invoke("fence_proxy_async", "false" if call["space"] == "global" else "true")

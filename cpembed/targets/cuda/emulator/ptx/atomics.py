"""Rows of atomic operations and of fences between threads.

Operations of single lanes; what they order is in ``native/atomics.h``.
"""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import SPACES, Call
from cpembed.targets.cuda.emulator.ptx.registers import bits_of, c_type
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required

OPERATIONS = {
    "add": "kAdd", "inc": "kInc", "dec": "kDec", "min": "kMin", "max": "kMax", "and": "kAnd",
    "or": "kOr", "xor": "kXor", "exch": "kExchange", "cas": "kCas",
}  # fmt: skip
"""The runtime's names of operations."""

KINDS = {
    "u32": "kUnsigned32", "b32": "kUnsigned32", "s32": "kSigned32", "f32": "kFloat32",
    "u64": "kUnsigned64", "b64": "kUnsigned64", "s64": "kSigned64",
}  # fmt: skip
"""The runtime's names of types."""

_EFFECTS = {"acquire": 1, "release": 2, "acq_rel": 3, "sc": 3}
_SCOPES, _GPU = {"cta": 0, "cluster": 1}, 2
"""The runtime's numbers of orders and scopes; those that are left out are of the GPU."""

_ORDER = optional("order", "relaxed", "acquire", "release", "acq_rel")
_SCOPE = optional("scope", "cta", "cluster", "gpu", "sys")
_SPACE = optional("space", *filter(None, SPACES))
_TYPE = required("type", *KINDS)


def _operation(call: Call, name: str, place: int, values: tuple[str, ...], order: str) -> str:
    """Return the call of an operation on the address that is operand ``place``."""
    first, second = (*values, "0", "0")[:2]
    return (
        f"executor_atom(f_, executor::{name}, executor::{KINDS[call['type']]}, "
        f"{SPACES[call['space']]}, {call.address(place, call['space'])}, {first}, {second}, "
        f"{_EFFECTS.get(order, 0)}, {_SCOPES.get(call['scope'], _GPU)})"
    )


def _as_bits(call: Call, place: int) -> str:
    """Return an operand as 64 bits."""
    kind = call["type"]
    value = call.value(place, kind)
    return f"uint64_t(executor::bits<uint{bits_of(kind)}_t>({value}))"


def _from_bits(call: Call, expression: str) -> str:
    kind = call["type"]
    return f"executor::bits<{c_type(kind)}>(static_cast<uint{bits_of(kind)}_t>({expression}))"


_OPERATION = required("operation", *OPERATIONS)


# ptxas takes the operation first or last.
@instruction("atom", _OPERATION, _ORDER, _SCOPE, _SPACE, _TYPE)
@instruction("atom", _ORDER, _SCOPE, _SPACE, _OPERATION, _TYPE)
def _atom(call: Call) -> str:
    operands = 4 if call["operation"] == "cas" else 3
    call.require_operands(operands)
    values = tuple(_as_bits(call, place) for place in range(2, operands))
    name = OPERATIONS[call["operation"]]
    old = _operation(call, name, 1, values, call["order"])
    return f"{call.function} {call.assign(call.operands[0], call['type'], _from_bits(call, old))}"


_RED_ORDER = optional("order", "relaxed", "release")


@instruction("red", _OPERATION, _RED_ORDER, _SCOPE, _SPACE, _TYPE, operands=2)
@instruction("red", _RED_ORDER, _SCOPE, _SPACE, _OPERATION, _TYPE, operands=2)
def _reduce(call: Call) -> str:
    if call["operation"] in ("cas", "exch"):
        raise LoweringError("red has no such operation")
    name = OPERATIONS[call["operation"]]
    return f"{call.function} {_operation(call, name, 0, (_as_bits(call, 1),), call['order'])};"


_EVERY_SCOPE = required("scope", "cta", "cluster", "gpu", "sys")


@instruction("ld", required("order", "acquire", "relaxed"), _EVERY_SCOPE, _SPACE, _TYPE, operands=2)
def _load(call: Call) -> str:
    value = _operation(call, "kLoadOnly", 1, (), call["order"])
    return f"{call.function} {call.assign(call.operands[0], call['type'], _from_bits(call, value))}"


@instruction("st", required("order", "release", "relaxed"), _EVERY_SCOPE, _SPACE, _TYPE, operands=2)
def _store(call: Call) -> str:
    return (
        f"{call.function} {_operation(call, 'kStoreOnly', 0, (_as_bits(call, 1),), call['order'])};"
    )


@instruction("fence", optional("order", "sc", "acq_rel", "acquire", "release"),
             _EVERY_SCOPE, operands=0)  # fmt: skip
def _fence(call: Call) -> str:
    return f"{call.function} executor_fence(f_, {_SCOPES.get(call['scope'], _GPU)});"


@instruction("membar", required("level", "cta", "gl", "sys"), operands=0)
def _memory_barrier(call: Call) -> str:
    return f"{call.function} executor_fence(f_, {_SCOPES.get(call['level'], _GPU)});"

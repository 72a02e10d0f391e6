"""Rows of loads, stores and asynchronous copies of single lanes.

Lanes that do not take part are told to the runtime too, which counts the accesses of a warp.
"""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import SPACES, Call
from cpembed.targets.cuda.emulator.ptx.registers import bits_of, c_type
from cpembed.targets.cuda.emulator.ptx.syntax import Operand
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required, runtime_call

_TYPES = (*(f"{sign}{bits}" for sign in "bus" for bits in (8, 16, 32, 64)), "f32", "f64")
_VECTORS = {"": 1, "v2": 2, "v4": 4}
_MOST_BYTES = 16

_ORDER = optional("order", "weak", "volatile")
_CACHE = optional("cache", "ca", "cg", "cs", "cv", "lu", "wb", "wt")
_FIRST_LEVEL = optional(
    "first_level",
    *(f"L1::{hint}" for hint in ("evict_normal", "evict_first", "evict_last", "no_allocate")),
)
_PREFETCH = optional("prefetch", "L2::64B", "L2::128B", "L2::256B")
_HINT = optional("hint", "L2::cache_hint")
_VECTOR = optional("vector", "v2", "v4")
_TYPE = required("type", *_TYPES)
_LOADED = optional("space", *filter(None, SPACES))


def _bytes(call: Call) -> int:
    size = _VECTORS[call["vector"]] * bits_of(call["type"]) // 8
    if size > _MOST_BYTES:
        raise LoweringError(f"an access of {size} bytes; at most {_MOST_BYTES}")
    return size


def _load(call: Call, constant: str = "false") -> str:
    kind, count = call["type"], _VECTORS[call["vector"]]
    space, address = SPACES[call["space"]], call.address(1, call["space"])
    arguments = f"{space}, {address}, {_bytes(call)}, v_, {constant}"
    lines = [
        call.function,
        f"const bool v_ = {call.predicate};",
        f"const ExecutorWords w_ = executor_load(f_, {arguments});",
        "if (v_) {",
        *(
            call.assign(item, kind, f"executor::element<{c_type(kind)}>(w_, {place})", wider=True)
            for place, item in enumerate(call.items(0, count))
        ),
        "}",
    ]
    return " ".join(lines)


@instruction("ld", _ORDER, _LOADED, _CACHE, _FIRST_LEVEL, _HINT, _PREFETCH, _VECTOR, _TYPE,
             operands=2, predicated=True)  # fmt: skip
def _plain_load(call: Call) -> str:
    return _load(call)


@instruction("ld", required("space", "global"), _CACHE, required("read_only", "nc"), _FIRST_LEVEL,
             _HINT, _PREFETCH, _VECTOR, _TYPE, operands=2, predicated=True)  # fmt: skip
def _read_only_load(call: Call) -> str:
    return _load(call, constant="true")


@instruction(
    "st", _ORDER, _LOADED, _CACHE, _FIRST_LEVEL, _HINT, _VECTOR, _TYPE, predicated=True, operands=2
)
def _store(call: Call) -> str:
    kind, count = call["type"], _VECTORS[call["vector"]]
    values = [call.value(item, kind, wider=True) for item in call.items(1, count)]
    return (
        f"{call.function} executor_store(f_, {SPACES[call['space']]}, "
        f"{call.address(0, call['space'])}, executor::words<{c_type(kind)}>({', '.join(values)}), "
        f"{_bytes(call)}, {call.predicate});"
    )


@instruction(
    "cp.async",
    required("cache", "ca", "cg"),
    required("to", "shared", "shared::cta"),
    required("from", "global"),
    _HINT,
    _PREFETCH,
    operands=(3, 4),
    predicated=True,
)
def _copy(call: Call) -> str:
    hint = bool(call["hint"])
    size = call.constant(2)
    source_size = f"uint32_t({size})"
    if len(call.operands) == 4 + hint:
        source_size = _source_size(call, call.operands[3], size)
    most = "16" if call["cache"] == "cg" else "4, 8 or 16"
    accepted = "s_ == 16" if call["cache"] == "cg" else "s_ == 4 || s_ == 8 || s_ == 16"
    return (
        f"{call.function} constexpr int s_ = {size}; "
        f'static_assert({accepted}, "cp.async.{call["cache"]} copies {most} bytes"); '
        f"executor_copy_async(f_, {call.address(0, call['to'])}, {call.address(1, 'global')}, s_, "
        f"{source_size}, {call.predicate});"
    )


def _source_size(call: Call, operand: Operand, size: str) -> str:
    """Return the number of bytes that are read; the others become zero."""
    try:
        ignored = call.condition(operand)
    except LoweringError:
        return call.value(operand, "u32")
    return f"(({ignored}) ? 0u : uint32_t({size}))"


runtime_call("cp.async.commit_group", "copy_commit")
runtime_call("cp.async.wait_group", "copy_wait", arguments=["constant"])
runtime_call("cp.async.wait_all", "copy_wait_all")


@instruction("prefetch", optional("space", "global"), required("level", "L1", "L2"), operands=1)
def _prefetch(call: Call) -> str:
    return f"(void)({call.address(0, call['space'])});"


@instruction("createpolicy.fractional", required("first", "L2::evict_last", "L2::evict_normal",
             "L2::evict_first", "L2::evict_unchanged"),
             optional("second", "L2::evict_first", "L2::evict_unchanged"),
             required("type", "b64"), operands=(1, 2))  # fmt: skip
def _create_policy(call: Call) -> str:
    return call.assign(call.operands[0], "b64", "0")

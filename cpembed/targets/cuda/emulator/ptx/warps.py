"""Rows of exchanges, votes, sums and elections among the lanes of a warp, and of its barriers."""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import Call
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required

_DIRECTIONS = {"idx": 0, "up": 1, "down": 2, "bfly": 3}
_SUMS = {"add": "kAdd", "min": "kMin", "max": "kMax"}
_BITS = {"and": "kAnd", "or": "kOr", "xor": "kXor"}


@instruction("shfl.sync", required("direction", *_DIRECTIONS), required("type", "b32"), operands=5)
def _exchange(call: Call) -> str:
    target, within = call.pair(0)
    value, operand, segments, mask = (call.value(place, "b32") for place in (1, 2, 3, 4))
    arguments = f"{_DIRECTIONS[call['direction']]}, {mask}, {value}, {operand}, {segments}"
    lines = [
        call.function,
        f"const uint64_t e_ = executor_exchange(f_, {arguments});",
        call.assign(target, "b32", "uint32_t(e_)"),
    ]
    if within is not None:
        lines.append(call.assign(within, "pred", "(e_ >> 32) != 0"))
    return " ".join(lines)


@instruction("vote.sync", required("mode", "all", "any", "uni", "ballot"),
             required("type", "pred", "b32"), operands=3)  # fmt: skip
def _vote(call: Call) -> str:
    ballot = call["mode"] == "ballot"
    if ballot != (call["type"] == "b32"):
        raise LoweringError("a ballot has .b32, and other votes have .pred")
    mask = call.value(2, "b32")
    votes = f"const uint32_t e_ = executor_vote(f_, {mask}, {call.condition(call.operands[1])});"
    result = {
        "all": f"e_ == ({mask})",
        "any": "e_ != 0",
        "uni": f"e_ == 0 || e_ == ({mask})",
        "ballot": "e_",
    }[call["mode"]]
    return f"{call.function} {votes} {call.assign(call.operands[0], call['type'], result)}"


@instruction(
    "redux.sync", required("operation", *_SUMS), required("type", "u32", "s32"), operands=3
)
@instruction("redux.sync", required("operation", *_BITS), required("type", "b32"), operands=3)
def _combine(call: Call) -> str:
    operation = {**_SUMS, **_BITS}[call["operation"]]
    kind = "kSigned32" if call["type"] == "s32" else "kUnsigned32"
    mask, value = call.value(2, "b32"), call.value(1, "b32")
    arguments = f"executor::{operation}", f"executor::{kind}", mask, value
    return call.returned("b32", "combine", *arguments)


@instruction("match", required("mode", "any", "all"), required("sync", "sync"),
             required("type", "b32", "b64"), operands=3)  # fmt: skip
def _match(call: Call) -> str:
    target, same = call.pair(0)
    if same is not None and call["mode"] == "any":
        raise LoweringError("match.any has no predicate")
    flag = "true" if call["mode"] == "all" else "false"
    arguments = f"{call.value(2, 'b32')}, {call.value(1, call['type'])}, {flag}"
    lines = [
        call.function,
        f"const uint32_t e_ = executor_match(f_, {arguments});",
        call.assign(target, "b32", "e_"),
    ]
    if same is not None:
        lines.append(call.assign(same, "pred", "e_ != 0"))
    return " ".join(lines)


@instruction("activemask", required("type", "b32"), operands=1)
def _active(call: Call) -> str:
    return call.assign(call.operands[0], "b32", "executor_activemask()")


@instruction("bar.warp.sync", optional("type", "b32"), operands=1)
def _meet(call: Call) -> str:
    return f"executor_syncwarp({call.value(0, 'b32')});"


@instruction("elect.sync", operands=2)
def _elect(call: Call) -> str:
    leader, elected = call.pair(0)
    if elected is None:
        raise LoweringError("its destination has to be a register and a predicate: d|p")
    lines = [call.function, f"const uint32_t e_ = executor_elect(f_, {call.value(1, 'u32')});"]
    lines.append(call.assign(leader, "b32", "e_"))
    lines.append(call.assign(elected, "pred", "e_ == executor_lane()"))
    return " ".join(lines)

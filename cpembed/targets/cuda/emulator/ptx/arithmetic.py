"""Rows of moves, conversions, comparisons, arithmetic and branches: plain C++ of one lane."""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import SPACES, Call
from cpembed.targets.cuda.emulator.ptx.registers import bits_of, c_type
from cpembed.targets.cuda.emulator.ptx.syntax import Name, Operand, Vector
from cpembed.targets.cuda.emulator.ptx.table import (
    Slot,
    instruction,
    optional,
    required,
    runtime_call,
)

_SIGNED = ("s16", "s32", "s64")
_UNSIGNED = ("u16", "u32", "u64")
_BITS = ("b16", "b32", "b64")
_FLOATS = ("f32", "f64")
_INTEGERS = (*_UNSIGNED, *_SIGNED)

_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip


def _result(call: Call, kind: str, expression: str) -> str:
    """Return the assignment of an expression to the first operand."""
    return call.assign(call.operands[0], kind, f"static_cast<{c_type(kind)}>({expression})")


@instruction("mov", required("type", "pred", *_INTEGERS, *_BITS, *_FLOATS), operands=2)
def _move(call: Call) -> str:
    target, source = call.operands
    if isinstance(source, Vector):
        return _packed(call, target, source.items)
    if isinstance(target, Vector):
        return _unpacked(call, target.items, source)
    return call.assign(target, call["type"], call.value(1, call["type"]))


def _part(call: Call, count: int) -> str:
    bits = bits_of(call["type"])
    if count not in (2, 4) or bits // count < 8:
        raise LoweringError(f"{count} parts of a register of {bits} bits")
    return f"b{bits // count}"


def _packed(call: Call, target: Operand, items: tuple[Operand, ...]) -> str:
    part, kind = _part(call, len(items)), c_type(call["type"])
    bits = bits_of(part)
    words = (
        f"static_cast<{kind}>({call.value(item, part)}) << {bits * place}"
        for place, item in enumerate(items)
    )
    return call.assign(target, call["type"], f"static_cast<{kind}>({' | '.join(words)})")


def _unpacked(call: Call, items: tuple[Operand, ...], source: Operand) -> str:
    part = _part(call, len(items))
    kind, bits = c_type(call["type"]), bits_of(part)
    lines = [f"const {kind} w_ = {call.value(source, call['type'])};"]
    lines += [
        call.assign(item, part, f"static_cast<{c_type(part)}>(w_ >> {bits * place})")
        for place, item in enumerate(items)
        if item != Name("_")
    ]
    return " ".join(lines)


def _binary(opcode: str, operator: str, *slots: Slot) -> None:
    """Add a row whose result is an operator of C++ between two operands."""

    @instruction(opcode, *slots, operands=3)
    def _operation(call: Call) -> str:
        kind = call["type"]
        return _result(call, kind, f"{call.value(1, kind)} {operator} {call.value(2, kind)}")


def _unary(opcode: str, expression: str, *slots: Slot) -> None:
    """Add a row whose result is an expression of C++ of one operand, ``{}``."""

    @instruction(opcode, *slots, operands=2)
    def _operation(call: Call) -> str:
        return _result(call, call["type"], expression.format(call.value(1, call["type"])))


_NEAREST, _FLUSH = optional("rounding", "rn"), optional("ftz", "ftz")
for _name, _operator in {"add": "+", "sub": "-"}.items():
    _binary(_name, _operator, _NEAREST, _FLUSH, required("type", *_INTEGERS, *_FLOATS))
for _name, _operator in _BITWISE.items():
    _binary(_name, _operator, required("type", "pred", *_BITS))
_binary("mul", "*", _NEAREST, _FLUSH, required("type", *_FLOATS))
for _name, _operator in {"div": "/", "rem": "%"}.items():
    _binary(_name, _operator, required("type", "u32", "s32", "u64", "s64"))
_unary("neg", "-{}", _FLUSH, required("type", *_SIGNED, *_FLOATS))
_unary("abs", "std::abs({})", _FLUSH, required("type", *_SIGNED, *_FLOATS))
_unary("brev", "executor::reversed({})", required("type", "b32"))
_QUOTIENTS = required("rounding", "rn", "full", "approx")
_binary("div", "/", _QUOTIENTS, _FLUSH, required("type", *_FLOATS))


@instruction("not", required("type", "pred", *_BITS), operands=2)
def _not(call: Call) -> str:
    operator = "!" if call["type"] == "pred" else "~"
    return _result(call, call["type"], f"{operator}{call.value(1, call['type'])}")


def _product(call: Call) -> tuple[str, str]:
    """Return the type of a product's part, and its expression."""
    kind, part = call["type"], call["part"]
    bits = bits_of(kind)
    if bits == 64 and part != "lo":
        raise LoweringError(f".{part} of 64-bit factors is not emulated")
    if part == "lo":
        # Without a sign, as signed products of C++ must not overflow.
        unsigned = f"u{max(bits, 32)}"
        factors = (f"static_cast<{c_type(unsigned)}>({call.value(n, kind)})" for n in (1, 2))
        return kind, " * ".join(factors)
    wide = f"{kind[0]}{2 * bits}"
    factors = (f"static_cast<{c_type(wide)}>({call.value(n, kind)})" for n in (1, 2))
    expression = " * ".join(factors)
    return (wide, expression) if part == "wide" else (kind, f"({expression}) >> {bits}")


@instruction("mul", required("part", "lo", "hi", "wide"), required("type", *_INTEGERS), operands=3)
def _integer_product(call: Call) -> str:
    kind, expression = _product(call)
    return _result(call, kind, expression)


@instruction("mad", required("part", "lo", "hi", "wide"), required("type", *_INTEGERS), operands=4)
def _multiply_add(call: Call) -> str:
    kind, expression = _product(call)
    return _result(call, kind, f"static_cast<{c_type(kind)}>({expression}) + {call.value(3, kind)}")


@instruction("fma", required("rounding", "rn"), _FLUSH, required("type", *_FLOATS), operands=4)
def _fused_multiply_add(call: Call) -> str:
    kind = call["type"]
    factors = ", ".join(call.value(place, kind) for place in (1, 2, 3))
    return _result(call, kind, f"{'fmaf' if kind == 'f32' else 'fma'}({factors})")


for _name, _operator in {"min": "<", "max": ">"}.items():

    @instruction(_name, _FLUSH, required("type", *_INTEGERS, *_FLOATS), operands=3)
    def _extremum(call: Call, name: str = _name, operator: str = _operator) -> str:
        kind = call["type"]
        first, second = call.value(1, kind), call.value(2, kind)
        if kind in _FLOATS:
            function = f"f{name}" + ("f" if kind == "f32" else "")
            return _result(call, kind, f"{function}({first}, {second})")
        return _result(call, kind, f"{first} {operator} {second} ? {first} : {second}")


@instruction("shl", required("type", *_BITS), operands=3)
def _shifted_left(call: Call) -> str:
    kind, bits = call["type"], bits_of(call["type"])
    value, count = call.value(1, kind), call.value(2, "u32")
    # C++ leaves shifts by the width or more undefined.
    return _result(call, kind, f"{count} < {bits} ? {value} << {count} : 0")


@instruction("shr", required("type", *_BITS, *_INTEGERS), operands=3)
def _shifted_right(call: Call) -> str:
    kind, bits = call["type"], bits_of(call["type"])
    value, count = call.value(1, kind), call.value(2, "u32")
    beyond = f"{value} < 0 ? -1 : 0" if kind[0] == "s" else "0"
    return _result(call, kind, f"{count} < {bits} ? {value} >> {count} : ({beyond})")


@instruction(
    "setp",
    required("comparison", *_COMPARISONS),
    optional("boolean", "and", "or", "xor"),
    _FLUSH,
    required("type", *_INTEGERS, *_BITS, *_FLOATS),
)
def _compare(call: Call) -> str:
    call.require_operands(4 if call["boolean"] else 3)
    kind, comparison = call["type"], call["comparison"]
    if comparison in ("lo", "ls", "hi", "hs") and kind[0] != "u":
        raise LoweringError(f".{comparison} compares unsigned integers")
    if kind[0] == "b" and comparison not in ("eq", "ne"):
        raise LoweringError(f".{comparison} does not compare bits")
    lines = [f"bool t_ = {call.value(1, kind)} {_COMPARISONS[comparison]} {call.value(2, kind)};"]
    first, second = call.pair(0)
    combined = {"t_": "t_", "!t_": "!t_"}
    if call["boolean"]:
        operator = _BITWISE[call["boolean"]]
        lines.append(f"const bool c_ = {call.condition(call.operands[3])};")
        combined = {t: f"bool({t} {operator} c_)" for t in combined}
    lines.append(call.assign(first, "pred", combined["t_"]))
    if second is not None:
        lines.append(call.assign(second, "pred", combined["!t_"]))
    return " ".join(lines)


@instruction("selp", required("type", *_INTEGERS, *_BITS, *_FLOATS), operands=4)
def _select(call: Call) -> str:
    kind = call["type"]
    condition = call.condition(call.operands[3])
    return _result(call, kind, f"{condition} ? {call.value(1, kind)} : {call.value(2, kind)}")


@instruction("cvta", optional("to", "to"), required("space", *filter(None, SPACES)),
             required("type", "u32", "u64"), operands=2)  # fmt: skip
def _convert_address(call: Call) -> str:
    kind, space = call["type"], SPACES[call["space"]]
    if kind == "u32":
        raise LoweringError("generic addresses have 64 bits: .u64")
    direction = "executor_address_in" if call["to"] else "executor_generic_address"
    return _result(call, kind, f"{direction}({space}, {call.value(1, kind)})")


@instruction(
    "cvt",
    required("to", "u8", "s8", *_INTEGERS),
    required("from", "u8", "s8", *_INTEGERS),
    operands=2,
)
def _convert_integer(call: Call) -> str:
    source, target = call["from"], call["to"]
    value = f"static_cast<{c_type(target)}>({call.value(1, source, wider=True)})"
    return call.assign(call.operands[0], target, value, wider=True)


@instruction("cvt", optional("rounding", "rn"), _FLUSH,
             required("to", "f32", "f16", "bf16"),
             required("from", "f32", "f16", "bf16"), operands=2)  # fmt: skip
def _convert_float(call: Call) -> str:
    source, target = call["from"], call["to"]
    if (target != "f32") is not bool(call["rounding"]) or "f32" not in (source, target):
        raise LoweringError("conversions to fewer digits need .rn, others must not have it")
    value = call.value(1, source)
    functions = {
        ("f32", "f16"): "executor::float16_to_float",
        ("f32", "bf16"): "executor::bfloat16_to_float",
        ("f16", "f32"): "executor::float_to_float16",
        ("bf16", "f32"): "executor::float_to_bfloat16",
    }
    return call.assign(call.operands[0], target, f"{functions.get((target, source), '')}({value})")


@instruction(
    "cvt",
    required("rounding", "rn"),
    required("to", "f16x2", "bf16x2"),
    required("from", "f32"),
    operands=3,
)
def _convert_pair(call: Call) -> str:
    function = f"executor::float_to_{'float16' if call['to'] == 'f16x2' else 'bfloat16'}"
    # The first source becomes the upper half.
    upper, lower = (f"uint32_t({function}({call.value(place, 'f32')}))" for place in (1, 2))
    return _result(call, call["to"], f"{upper} << 16 | {lower}")


@instruction("cvt", required("rounding", "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"),
             _FLUSH, required("to", "s32", "u32", "f32"),
             required("from", "s32", "u32", "f32"), operands=2)  # fmt: skip
def _convert_number(call: Call) -> str:
    source, target, rounding = call["from"], call["to"], call["rounding"]
    value = call.value(1, source)
    if source != "f32" and target == "f32" and rounding == "rn":
        return _result(call, target, value)
    functions = {"rni": "nearbyintf", "rzi": "truncf", "rmi": "floorf", "rpi": "ceilf"}
    if source != "f32" or target == "f32" or rounding not in functions:
        raise LoweringError(f"the conversion .{rounding}.{target}.{source} is not emulated")
    # Numbers beyond the range become its ends.
    low, high = ("-2147483648.0", "2147483647.0") if target == "s32" else ("0.0", "4294967295.0")
    return _result(
        call, target, f"fmin(fmax(double({functions[rounding]}({value})), {low}), {high})"
    )


@instruction("bra", optional("uniform", "uni"), operands=1)
def _branch(call: Call) -> str:
    (target,) = call.operands
    if not isinstance(target, Name):
        raise LoweringError("the target of a branch has to be a label")
    return f"goto {call.body.label(target.name)};"


_FLOAT_FUNCTIONS = {
    "ex2": "std::exp2({x})", "lg2": "std::log2({x})", "rcp": "1.0f / {x}", "sqrt": "std::sqrt({x})",
    "rsqrt": "1.0f / std::sqrt({x})", "tanh": "std::tanh({x})", "sin": "std::sin({x})",
    "cos": "std::cos({x})",
}  # fmt: skip
"""Values of functions of floats, which the exact ones stand for."""

for _name, _expression in _FLOAT_FUNCTIONS.items():

    @instruction(_name, required("rounding", "approx", "rn"), _FLUSH,
                 required("type", "f32"), operands=2)  # fmt: skip
    def _float_function(call: Call, expression: str = _expression) -> str:
        if call["rounding"] == "rn" and not expression.startswith(("1.0f / {", "std::sqrt")):
            raise LoweringError("only quotients and square roots are rounded exactly: .approx")
        value = f"const float p_ = {expression.format(x=call.value(1, 'f32'))};"
        # With .ftz what is smaller than the smallest normal number becomes 0.
        small = "std::fabs(p_) < __FLT_MIN__ ? std::copysign(0.0f, p_) : p_"
        return f"{value} {_result(call, 'f32', small if call['ftz'] else 'p_')}"


for _name, _function in {"popc": "popcount", "clz": "clz"}.items():

    @instruction(_name, required("type", "b32", "b64"), operands=2)
    def _count_bits(call: Call, function: str = _function) -> str:
        bits = bits_of(call["type"])
        value, suffix = call.value(1, call["type"]), "ll" if bits == 64 else ""
        # The compiler's clz has no result for 0.
        guard = f"{value} == 0 ? {bits} : " if function == "clz" else ""
        return _result(call, "u32", f"{guard}__builtin_{function}{suffix}({value})")


@instruction("lop3", required("type", "b32"), operands=5)
def _bitwise_by_table(call: Call) -> str:
    values = ", ".join(call.value(place, "b32") for place in (1, 2, 3))
    return _result(call, "b32", f"executor::by_table({values}, {call.constant(4)})")


@instruction("prmt", required("type", "b32"), operands=4)
def _selected_bytes(call: Call) -> str:
    values = ", ".join(call.value(place, "b32") for place in (1, 2, 3))
    return _result(call, "b32", f"executor::bytes_of({values})")


@instruction("shf", required("direction", "l", "r"), required("mode", "wrap", "clamp"),
             required("type", "b32"), operands=4)  # fmt: skip
def _funnel_shift(call: Call) -> str:
    low, high, count = (call.value(place, "b32") for place in (1, 2, 3))
    bound = f"({count} & 31)" if call["mode"] == "wrap" else f"({count} < 32 ? {count} : 32)"
    pair = f"(uint64_t({high}) << 32 | {low})"
    shifted = f"{pair} << {bound} >> 32" if call["direction"] == "l" else f"{pair} >> {bound}"
    return _result(call, "b32", shifted)


@instruction("bfe", required("type", "u32", "s32"), operands=4)
def _bit_field(call: Call) -> str:
    value, first, count = (call.value(place, "u32") for place in (1, 2, 3))
    signed = "true" if call["type"] == "s32" else "false"
    return _result(call, call["type"], f"executor::bit_field({value}, {first}, {count}, {signed})")


runtime_call("trap", "trap")


@instruction("nanosleep", required("type", "u32"), operands=1)
def _pause(call: Call) -> str:
    # Times are not emulated.
    return f"(void)({call.value(0, 'u32')});"

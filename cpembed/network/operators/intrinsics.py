"""Operations that are written as LLVM's own, since TVM's would not be vectorised or not kept."""

from __future__ import annotations


def nearest(value: str, dtype: str = "float32") -> str:
    """A float rounded to the nearest whole number, to the even one of two."""
    return _intrinsic("nearbyint", value, dtype)


def rounded_product(value: str, dtype: str = "float32") -> str:
    """A product that is rounded by itself. The compiler contracts a product and a sum into one
    operation with one rounding; here that becomes one with the product times :func:`one_function`,
    which the compiler does not know to be 1, and rounds as both would. (``llvm.canonicalize`` would
    do as well, but ends LLVM's code generator for x86 where vectors are of two floats.)"""
    return f"({value}) * {ones(dtype)}"


def maximum(first: str, second: str, dtype: str, lanes: int = 1) -> str:
    """The larger of two, of floats a NaN where one of both is (TVM's would be the second one); of
    vectors with so many ``lanes``."""
    return _extremum("max", first, second, dtype, lanes)


def minimum(first: str, second: str, dtype: str, lanes: int = 1) -> str:
    """The smaller of two, likewise."""
    return _extremum("min", first, second, dtype, lanes)


def _extremum(what: str, first: str, second: str, dtype: str, lanes: int) -> str:
    if not dtype.startswith("float"):
        return f"T.{what}({first}, {second})"
    kind = dtype if lanes == 1 else f"{dtype}x{lanes}"
    return _intrinsic(f"{what}imum", f"{first}, {second}", kind)


_FLOAT_OPERATIONS = {
    "add": "fadd",
    "sub": "fsub",
    "mul": "fmul",
    "div": "fdiv",
    "equal": "fcmp oeq",
    "less": "fcmp olt",
    "less_equal": "fcmp ole",
}


def float_function(operation: str, dtype: str) -> tuple[str, str]:
    """The name and the text of an operation on two floats, a comparison as 0 or 1 (int32). TVM's
    simplifications take floats for numbers: x - x, x * 0 and 0 / x would become 0, and what is not
    less would be at least as large. LLVM keeps to the standard."""
    kind, name = {"float32": "float", "float64": "double"}[dtype], f"cpembed_{operation}_{dtype}"
    instruction = _FLOAT_OPERATIONS[operation]
    result = "i32" if instruction.startswith("fcmp") else kind
    last = "  %result = zext i1 %value to i32\n" if result != kind else ""
    return (
        name,
        f"""
define internal {result} @{name}({kind} %a, {kind} %b) alwaysinline {{
  {"%value" if last else "%result"} = {instruction} {kind} %a, %b
{last}  ret {result} %result
}}
""",
    )


def ones(dtype: str) -> str:
    """The name of 1 in a kernel that multiplies by it."""
    return f"one_{dtype}"


def one_function(dtype: str) -> tuple[str, str]:
    """The name and the text of a function that returns 1, of which the compiler knows nothing."""
    kind, name = {"float32": "float", "float64": "double"}[dtype], f"cpembed_one_{dtype}"
    return (
        name,
        f"""
define internal {kind} @{name}() alwaysinline {{
  %place = alloca {kind}
  store volatile {kind} 1.0, ptr %place
  %result = load volatile {kind}, ptr %place
  ret {kind} %result
}}
""",
    )


def _intrinsic(name: str, value: str, dtype: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.{name}")'
    return f'T.call_llvm_pure_intrin({number}, {value}, dtype="{dtype}")'


def quotient_function(operation: str, dtype: str) -> tuple[str, str]:
    """The name and the text of a division of integers towards zero (``div``) or of its remainder
    (``rem``): 0 where the divisor is, and without the one quotient that is no number of the
    type, which processors refuse as well."""
    kind, name = f"i{dtype.removeprefix('int')}", f"cpembed_{operation}_{dtype}"
    of_minus = f"sub {kind} 0, %a" if operation == "div" else f"and {kind} %a, 0"
    return (
        name,
        f"""
define internal {kind} @{name}({kind} %a, {kind} %b) alwaysinline {{
  %none = icmp eq {kind} %b, 0
  %minus = icmp eq {kind} %b, -1
  %refused = or i1 %none, %minus
  %divisor = select i1 %refused, {kind} 1, {kind} %b
  %usual = s{operation} {kind} %a, %divisor
  %opposite = {of_minus}
  %other = select i1 %minus, {kind} %opposite, {kind} %usual
  %result = select i1 %none, {kind} 0, {kind} %other
  ret {kind} %result
}}
""",
    )


def power_function(dtype: str) -> tuple[str, str]:
    """The name and the text of an integer's power, of which the lowest bits are kept; of a negative
    exponent it is 1."""
    kind, name = f"i{dtype.removeprefix('int')}", f"cpembed_power_{dtype}"
    return (
        name,
        f"""
define internal {kind} @{name}({kind} %base, {kind} %exponent) {{
start:
  %any = icmp sgt {kind} %exponent, 0
  br i1 %any, label %step, label %done
step:
  %left = phi {kind} [ %exponent, %start ], [ %fewer, %step ]
  %square = phi {kind} [ %base, %start ], [ %next, %step ]
  %total = phi {kind} [ 1, %start ], [ %taken, %step ]
  %bit = and {kind} %left, 1
  %odd = icmp ne {kind} %bit, 0
  %product = mul {kind} %total, %square
  %taken = select i1 %odd, {kind} %product, {kind} %total
  %next = mul {kind} %square, %square
  %fewer = lshr {kind} %left, 1
  %more = icmp ne {kind} %fewer, 0
  br i1 %more, label %step, label %done
done:
  %result = phi {kind} [ 1, %start ], [ %taken, %step ]
  ret {kind} %result
}}
""",
    )

"""Scalar expressions as TVMScript for CUDA: activations and whatever else follows the sums.

The arithmetic is float32. Sums, products and quotients are CUDA's intrinsics that round to nearest,
so that neither TVM nor nvcc simplifies them or forms fused multiply-adds; of float expressions
without functions results are those of the definition bit for bit. Functions are those of CUDA's
mathematics library, whose errors are at most 2 units in the last place (CUDA C++ Programming Guide,
Mathematical Functions), ``powf`` 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpembed.codegen.plan import Script, bfloat16_bits, storage_dtype
from cpembed.codegen.values import Value, is_nan, literal
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import dtype_info
from cpembed.ir.scalars import Apply, Number, Scalar

_FUNCTIONS = {
    "add": "__fadd_rn", "sub": "__fsub_rn", "mul": "__fmul_rn", "div": "__fdiv_rn",
    "fma": "__fmaf_rn", "sqrt": "__fsqrt_rn", "rem": "fmodf", "pow": "powf", "abs": "fabsf",
    "exp": "expf", "log": "logf", "erf": "erff", "tanh": "tanhf", "sin": "sinf", "cos": "cosf",
    "atan": "atanf", "floor": "floorf", "ceil": "ceilf", "round": "rintf",
}  # fmt: skip
"""Functions of CUDA by operation."""

_COMPARISONS = {"equal": "==", "less": "<", "less_equal": "<="}
_LOGICAL = {"and": "{} * {}", "or": "T.max({}, {})", "not": "1 - {}"}

TRUTH = "int32"
"""Type of truth values, which are 0 and 1."""


def call(function: str, *arguments: str) -> str:
    """Return the call of a function of CUDA whose result is float32."""
    return f'T.call_pure_extern("float32", "{function}", {", ".join(arguments)})'


@dataclass
class ExpressionWriter:
    """Writer of expressions; every part is computed once and has a register of its own."""

    script: Script
    label: str
    """Beginning of the names of registers."""
    _names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def register(self, text: str, dtype: str) -> str:
        """Write the computation of a value and return the element that holds it."""
        # TVM expands named values in its analysis, in time exponential in their nesting, and takes
        # comparisons for those of real numbers; it does not look through elements of a buffer.
        if (text, dtype) not in self._names:
            name = f"{self.label}_{len(self._names)}"
            self.script.line(f'{name} = T.alloc_buffer((1,), "{dtype}", scope="local")')
            self.script.line(f"{name}[0] = {text}")
            self._names[text, dtype] = f"{name}[0]"
        return self._names[text, dtype]

    def value(self, node: Scalar, inputs: Mapping[int, str]) -> Value:
        """Write an expression and return its value, float32 or :data:`TRUTH`.

        Parameters
        ----------
        node
            The expression.
        inputs
            Registers of float32 by the input's number.

        Raises
        ------
        LoweringError
            If an operation is of integers.
        """
        if isinstance(node, Number):
            if isinstance(node.value, bool):
                return Value(literal(int(node.value), TRUTH), TRUTH)
            return Value(literal(node.value, "float32"), "float32", is_number=True)
        if not isinstance(node, Apply):
            return Value(inputs[node.number], "float32")
        arguments = [self.value(argument, inputs) for argument in node.arguments]
        text, dtype = self._applied(node.operation, arguments)
        return Value(self.register(text, dtype), dtype)

    def _applied(self, operation: str, values: list[Value]) -> tuple[str, str]:
        if operation in _LOGICAL:
            return _LOGICAL[operation].format(*map(self._truth, values)), TRUTH
        if operation == "where":
            condition = f"{self._truth(values[0])} == 1"
            if values[1].dtype == values[2].dtype == TRUTH:
                return f"T.Select({condition}, {values[1].text}, {values[2].text})", TRUTH
            first, second = map(self._float, values[1:])
            return f"T.Select({condition}, {first}, {second})", "float32"
        texts = [self._float(value) for value in values]
        if operation in _COMPARISONS:
            return f'T.cast({texts[0]} {_COMPARISONS[operation]} {texts[1]}, "{TRUTH}")', TRUTH
        if operation in ("max", "min"):
            return self._extremum(operation, values), "float32"
        if operation == "neg":
            return call("__fmul_rn", texts[0], literal(-1, "float32")), "float32"
        if operation == "sigmoid":
            power = self.register(call("expf", self._float(self._negated(texts[0]))), "float32")
            total = call("__fadd_rn", literal(1, "float32"), power)
            return call("__fdiv_rn", literal(1, "float32"), total), "float32"
        if operation not in _FUNCTIONS:
            raise LoweringError(f"{operation} is of integers, and epilogues compute in float32")
        return call(_FUNCTIONS[operation], *texts), "float32"

    def _negated(self, text: str) -> Value:
        product = call("__fmul_rn", text, literal(-1, "float32"))
        return Value(self.register(product, "float32"), "float32")

    def _extremum(self, operation: str, values: list[Value]) -> str:
        first, second = values
        # Numbers last: they are no NaN, so that the comparison is false where the other is one.
        if first.is_number:
            first, second = second, first
        a, b = self._float(first), self._float(second)
        replaced = f"{a} < {b}" if operation == "max" else f"{b} < {a}"
        if second.is_number:
            return f"T.Select({replaced}, {b}, {a})"
        second_is_nan = self.register(f'T.cast({is_nan(second)}, "{TRUTH}")', TRUTH)
        exceeds = self.register(f'T.cast({replaced}, "{TRUTH}")', TRUTH)
        return f"T.Select(T.max({exceeds}, {second_is_nan}) == 1, {b}, {a})"

    def _float(self, value: Value) -> str:
        if value.dtype == TRUTH:
            return self.register(f'T.cast({value.text}, "float32")', "float32")
        return value.text

    def _truth(self, value: Value) -> str:
        if value.dtype == TRUTH:
            return value.text
        # A NaN is not 0, as in the definition.
        zero = literal(0, "float32")
        is_zero = self.register(f'T.cast({value.text} == {zero}, "{TRUTH}")', TRUTH)
        return self.register(f"1 - {is_zero}", TRUTH)

    def stored(self, value: Value, dtype: str) -> str:
        """Write the conversion of a value to an element type; return it in its storage type.

        Integers are rounded to the nearest even and saturated, and NaN is 0.
        """
        text = self._float(value)
        if dtype == "float32":
            return text
        if dtype == "float16":
            return f'T.cast({text}, "float16")'
        if dtype == "bfloat16":
            register = text if not value.is_number else self.register(text, "float32")
            bits = self.register(f'T.reinterpret({register}, dtype="uint32")', "uint32")
            return f'T.cast({bfloat16_bits(register, bits)}, "uint16")'
        low, high = (literal(limit, "float32") for limit in dtype_info(dtype).integer_range)
        number = self.register(text, "float32")
        not_nan = f"T.Select({is_nan(Value(number, 'float32'))}, {literal(0, 'float32')}, {number})"
        rounded = self.register(call("rintf", self.register(not_nan, "float32")), "float32")
        clipped = f"T.max({low}, T.min({high}, {rounded}))"
        return f'T.cast(T.cast({clipped}, "int32"), "{storage_dtype(dtype)}")'

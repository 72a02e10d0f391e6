"""README of a library, and its example in C with the definition that it compares with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpembed.codegen.epilogue import BIAS, BYTES, SCALE, Epilogue, channel_axes
from cpembed.codegen.plan import storage_dtype
from cpembed.export.program import CALLER_ROLES, Program, Role, vector_name
from cpembed.export.sized import SizedProgram
from cpembed.export.texts import CALLER_NAMES, NATIVE, documents
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import is_integer, saturated_range
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr

# Types of C by the types in memory.
_C_TYPES: Mapping[str, str] = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "uint16_t",
    "float32": "float",
    "float64": "double",
}


@dataclass(frozen=True)
class Reference:
    """Comparison that an example makes.

    Attributes
    ----------
    text : str
        C code that defines ``check(inputs, weights, outputs)``, which returns the number of wrong
        elements.
    purpose : str
        End of the sentence about the example.
    scale : float
        Size of random scales for which results span their range.
    """

    text: str
    purpose: str
    scale: float = 1.0


REPEATED = Reference(
    """\
/* Whether all results are numbers. */
static int check(const void *const inputs[], const void *const weights[], void *const outputs[]) {
  int wrong = 0;
  (void)inputs, (void)weights, (void)from_bfloat16;
  for (int k = 0; k < NAME_output_count(); k++)
    if (strcmp(NAME_output(k)->dtype, "float32") == 0)
      for (int64_t n = 0; n < elements(NAME_output(k)); n++)
        wrong += isnan(((const float *)outputs[k])[n]);
  return wrong;
}""",
    "says how long a call takes.",
)
"""Comparison for a program without a plain definition."""


def example(program: SizedProgram, reference: Reference = REPEATED) -> str:
    """Return ``example.c``."""
    text = (NATIVE / "example.c").read_text(encoding="utf-8")
    most = max(1, *(len(program.with_role(role)) for role in CALLER_ROLES))
    # The reference contains placeholders of the template, so it is inserted first.
    text = text.replace("/* REFERENCE */", reference.text)
    text = text.replace("REFERENCE_WORDS", reference.purpose)
    text = text.replace("* SCALE", f"* {reference.scale!r}f").replace("[MOST]", f"[{most}]")
    return text.replace("NAME", program.name)


def product_reference(
    program: Program, workload: Computation, epilogue: Epilogue | None
) -> Reference | None:
    """Return the plain loops of a product with an epilogue.

    Parameters
    ----------
    program : Program
        Program of the product's kernel.
    workload : Computation
    epilogue : Epilogue or None

    Returns
    -------
    Reference or None
        None for float16, which C does not have, and for an epilogue with a residual.
    """
    operands = (*workload.inputs, workload.output)
    if any(operand.dtype == "float16" for operand in operands):
        return None
    if epilogue is not None and epilogue.residual is not None:
        return None
    writer = _Writer(program, workload, epilogue)
    return Reference("\n".join(writer.lines()), "compares with plain loops.", writer.scale)


@dataclass(frozen=True)
class _Writer:
    """Writer of the plain loops of a product."""

    program: Program
    workload: Computation
    epilogue: Epilogue | None

    @property
    def scale(self) -> float:
        """Scale for which sums of random products span the range of a byte."""
        # Sums grow with the root of the number of terms. The factor is the root mean square of a
        # product of two signed bytes, or of two floats from -1 to 1.
        size = 5500 if self._is_exact else 0.33
        return float(f"{100 / (math.sqrt(self._terms) * size):.3g}")

    @property
    def _terms(self) -> int:
        kinds = self.workload.axes
        return math.prod(axis.extent for axis in kinds if axis.kind is AxisKind.REDUCTION)

    @property
    def _is_exact(self) -> bool:
        return is_integer(self.workload.output.dtype)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the function, which compares each result as it is computed."""
        workload = self.workload
        output = workload.output
        stored = output.dtype if self.epilogue is None else self.epilogue.dtype
        kind = _C_TYPES[storage_dtype(stored)]
        yield "/* Each result beside the sum of its products, in plain loops. */"
        yield (
            "static int check(const void *const inputs[], const void *const weights[], "
            "void *const outputs[]) {"
        )
        yield f"  const {kind} *out = outputs[0];"
        yield "  int wrong = 0;"
        for role, table in ((Role.INPUT, "inputs"), (Role.WEIGHTS, "weights")):
            for number, buffer in enumerate(self.program.with_role(role)):
                element = _C_TYPES[storage_dtype(buffer.dtype)]
                yield f"  const {element} *in_{buffer.name} = {table}[{number}];"
        # Compilers warn of what an example does not use.
        yield "  (void)weights, (void)from_bfloat16;"
        spatial = [axis for axis in workload.axes if axis.kind is AxisKind.SPATIAL]
        loops = [_loop(axis.name, axis.extent) for axis in spatial]
        for depth, loop in enumerate(loops):
            yield f"{'  ' * (depth + 1)}{loop} {{"
        indent = "  " * (len(loops) + 1)
        yield from (f"{indent}{line}" for line in self._element(stored))
        for depth in reversed(range(len(loops))):
            yield f"{'  ' * (depth + 1)}}}"
        yield "  return wrong;"
        yield "}"

    def _element(self, stored: str) -> Iterator[str]:
        sums = "int64_t" if self._is_exact else "double"
        output = self.workload.output
        place = _guard(self.workload, [self.workload.statement.store])
        if place:
            yield f"if (!({place})) continue;"
        yield f"{sums} sum = 0;"
        yield "double size = 0;"
        loops = [
            _loop(axis.name, axis.extent)
            for axis in self.workload.axes
            if axis.kind is AxisKind.REDUCTION
        ]
        reads = self.workload.statement.reads
        yield from loops
        guard = _guard(self.workload, reads)
        body = " * ".join(self._read(access) for access in reads)
        opening = f"  if ({guard}) {{" if guard else "  {"
        yield opening
        yield f"    {sums} product = {body};"
        yield "    sum += product;"
        yield "    size += fabs((double)product);"
        yield "  }"
        yield from self._stored(output.dtype, stored)
        element = f"out[{_flat(self.workload.statement.store.index, output.shape)}]"
        value = f"from_bfloat16({element})" if stored == "bfloat16" else element
        yield f"double difference = fabs((double){value} - expected);"
        yield "wrong += !(difference <= tolerance);"

    def _read(self, access: Access) -> str:
        operand = self.workload.operand(access.operand)
        element = f"in_{operand.tensor}[{_flat(access.index, operand.shape)}]"
        if operand.dtype == "bfloat16":
            return f"(double)from_bfloat16({element})"
        return f"({'int64_t' if self._is_exact else 'double'}){element}"

    def _stored(self, sums: str, stored: str) -> Iterator[str]:
        """Yield the lines that compute ``expected`` and ``tolerance`` from the sum."""
        epilogue = self.epilogue or Epilogue(sums)
        channel = _channel(self.workload)
        factor_name = f"in_{vector_name(self.workload, SCALE)}[{channel}]"
        bias = f" + in_{vector_name(self.workload, BIAS)}[{channel}]" if epilogue.bias else ""
        scale = f" * {factor_name}" if epilogue.scale else ""
        if self._is_exact and epilogue.in_integers(sums):
            yield f"int64_t value = ({_C_TYPES[sums]})sum{bias};"
            yield from self._integer(epilogue)
            yield f"double expected = ({_C_TYPES[storage_dtype(stored)]})value, tolerance = 0;"
            yield "(void)size;"
            return
        total = f"({_C_TYPES[sums]})sum{bias}" if self._is_exact else f"sum{bias}"
        yield f"float value = (float)({total}){scale};"
        # Each addition in float32 adds an error of at most 2^-23 (1 / 8388608) of the summed
        # magnitudes; bfloat16 rounds by 2^-8.
        if self._is_exact:
            yield f"double tolerance = {'fabs(value) / 256' if stored == 'bfloat16' else '0'};"
            yield "(void)size;"
        else:
            rounded = f"size * {self._terms + 4} / 8388608.0"
            factor = f" * fabsf({factor_name})" if epilogue.scale else ""
            extra = " + fabs(value) / 256" if stored == "bfloat16" else ""
            extra += " + 1" if is_integer(stored) else ""
            yield f"double tolerance = {rounded}{factor} + fabs(value) / 4194304{extra};"
        if epilogue.relu:
            yield "value = value > 0 ? value : 0;"
        if is_integer(stored):
            low, high = saturated_range(stored)
            if stored in BYTES:
                low, high = epilogue.stored_range
            yield f"value = rintf(fmaxf(fminf(value, {float(high)!r}f), {float(low)!r}f));"
        yield f"double expected = (double)value + {epilogue.zero_point};"

    def _integer(self, epilogue: Epilogue) -> Iterator[str]:
        if epilogue.shift:
            yield f"value >>= {epilogue.shift};"
        if epilogue.relu:
            yield "value = value > 0 ? value : 0;"
        if not epilogue.wraps and (epilogue.dtype != self.workload.output.dtype or epilogue.clip):
            low, high = epilogue.range
            yield f"value = value < {low} ? {low} : value > {high} ? {high} : value;"


def _loop(name: str, extent: int) -> str:
    return f"for (int64_t i_{name} = 0; i_{name} < {extent}; i_{name}++)"


def _index(index: IndexExpr) -> str:
    """Return an affine index in C."""
    terms = [f"{term.coefficient} * i_{term.iterator}" for term in index.terms]
    return " + ".join([*terms, str(index.constant)])


def _flat(index: Sequence[IndexExpr], shape: Sequence[int]) -> str:
    text = "0"
    for position, extent in zip(index, shape, strict=True):
        term = _index(position)
        text = f"({text}) * {extent} + {term}" if text != "0" else term
    return text


def _guard(workload: Computation, accesses: Sequence[Access]) -> str:
    """Return the condition that accesses are inside their operands; empty if they always are."""
    conditions: list[str] = []
    for access in accesses:
        shape = workload.operand(access.operand).shape
        for index, extent in zip(access.index, shape, strict=True):
            low, high = index.bounds(workload.extents)
            if low < 0:
                conditions.append(f"{_index(index)} >= 0")
            if high >= extent:
                conditions.append(f"{_index(index)} < {extent}")
    return " && ".join(conditions)


def _channel(workload: Computation) -> str:
    text = "0"
    for axis in channel_axes(workload):
        text = f"({text}) * {workload.extents[axis]} + i_{axis}"
    return text


_README = """\
# lib{name}

{about}

```
{documents}
```

Tensors are dense and row-major. Memory that begins at a multiple of 64 bytes is used where it is;
other memory is copied. A handle runs one call at a time; several handles, and several libraries,
are independent.{features}

{files}
{uses}"""


_MAKE = """
## Linking it

`make` on the machine that it is for links the library and builds the example.
"""


_EXAMPLE = """
## In C

```
cc -O2 example.c -o example -L. -l{name} -Wl,-rpath,'$ORIGIN' -lm && ./example
```
"""


_PYTHON = """
## In Python

`{name}.py` needs numpy alone.

```python
from {name} import Library

with Library(threads=2) as library:
{pack}    ({outputs},) = library.run({inputs})
```
"""


_TORCH = """
## In PyTorch

```python
from {name}_torch import {name}

layer = {name}({weights})
result = layer({inputs})
```
"""


# Descriptions of files by the ends of their names; the first end that fits counts.
_FILES = {
    ".so": "the shared library, which needs the C library alone",
    ".h": "its interface, explained",
    ".json": "what it takes and returns, for programs",
    ".weights": "the packed weights, mapped into memory; it stays beside the library",
    "_torch.py": "an operator of PyTorch",
    ".py": "the library from Python",
    "example.c": "an example",
    "Makefile": "links the library",
    "runtime.c": "the library's own code, with the other headers beside it",
    ".s": "the machine code of the contraction, to be read",
}


def readme(program: SizedProgram, files: Sequence[str], about: str, *, linked: bool = True) -> str:
    """Return ``README.md``.

    Parameters
    ----------
    program : SizedProgram
    files : sequence of str
        Names of the files in the folder.
    about : str
        Sentence about the computation.
    linked : bool, default True
        True if the folder holds the library rather than its sources.
    """
    name = program.name
    names = {role: ", ".join(b.name for b in program.with_role(role)) for role in CALLER_NAMES}
    weights = names[Role.WEIGHTS]
    uses = "" if linked else _MAKE
    uses += _EXAMPLE if "example.c" in files else ""
    uses += _PYTHON if f"{name}.py" in files else ""
    uses += _TORCH if f"{name}_torch.py" in files else ""
    features = ""
    if program.features:
        features = (
            f" The processor needs\n{', '.join(program.features)}; on another one, opening the "
            "library says what is missing."
        )
    described = {
        file: next((text for end, text in _FILES.items() if file.endswith(end)), "")
        for file in files
    }
    return _README.format(
        name=name,
        about=about,
        documents=documents(program),
        features=features,
        files="\n".join(f"- `{file}`: {text}" for file, text in described.items() if text),
        uses=uses.format(
            name=name,
            inputs=names[Role.INPUT],
            outputs=names[Role.OUTPUT],
            weights=weights,
            pack=f"    library.pack({weights})\n" if weights else "",
        ),
    )

"""Translation of CUDA C++ into C++ of the host's compiler; every line keeps its number.

Inline PTX, which the schedules of TVM and kernels of other libraries contain, becomes calls of the
runtime: ``ldmatrix``, ``mma.sync``, ``cp.async`` with its groups, and addresses of shared memory.
Other PTX becomes a statement that does not compile and names it, which is harmless in code that
the preprocessor leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cpembed.errors import LoweringError

FILE = "kernel.cu"
"""File name of the text in the compiler's messages and line tables."""

_KERNEL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*([^),]*)[^)]*\)\s*)?(?:void\s+)?(\w+)\s*\("
)
_DYNAMIC = re.compile(
    r"extern\s+(?:\"C\"\s+)?__shared__\s+(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?"
    r"((?:\w+\s+)*?\w+)\s+(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?(\w+)\s*\[\s*\]\s*;"
)

_START = re.compile(r"\b(?:__asm__|asm)\b\s*(?:__volatile__|volatile)?\s*\(")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\((.*)\)\s*$', re.DOTALL)
_VECTORS = re.compile(r"\{([^{}]*)\}")

_SUM_TYPES = {"f32": "float", "f16": "unsigned int", "s32": "int"}
"""C type of a register of sums, by PTX's element type."""


@dataclass(frozen=True)
class PreparedText:
    """A text that the host's compiler takes, and its kernels.

    The value of a kernel is the maximum number of threads of a block, None if the text bounds none.
    """

    source: str
    kernels: Mapping[str, int | None]


def prepare(source: str) -> PreparedText:
    """Replace syntax that the host's compiler rejects, and add a launch entry to each kernel.

    Raises :class:`LoweringError` for a text without a kernel.
    """
    kernels: dict[str, int | None] = {}
    for match in _KERNEL.finditer(source):
        bound, name = match.groups()
        kernels[name] = int(bound) if bound and bound.strip().isdecimal() else None
    if not kernels:
        raise LoweringError("the CUDA text has no kernel: a function with __global__")
    # Dynamic shared memory has the size that each launch asks for, so it is a pointer here.
    body = _with_dynamic_shared(translate_inline_ptx(source))
    entries = "\n".join(f"EXECUTOR_KERNEL({name})" for name in kernels)
    return PreparedText(f"{body}\n{entries}\n", kernels)


def _with_dynamic_shared(source: str) -> str:
    """Replace declarations of dynamic shared memory, which each block has at a place of its own."""

    def pointer(match: re.Match[str]) -> str:
        element, name = match.groups()
        depth = source.count("{", 0, match.start()) - source.count("}", 0, match.start())
        if depth == 0:
            return f"static const executor_dynamic_array<{element}> {name}{{}};"
        return f"{element}* const {name} = ({element}*)executor_dynamic_shared();"

    return _DYNAMIC.sub(pointer, source)


def translate_inline_ptx(source: str) -> str:
    """Replace the inline PTX of a text by calls of the runtime."""
    parts, end_of_last = list[str](), 0
    for start, end, inside in _statements(source):
        # As many line breaks as the statement had keep the numbers of the lines below.
        lines = "\n" * source.count("\n", start, end)
        parts += [source[end_of_last:start], _call(inside), lines]
        end_of_last = end
    return "".join([*parts, source[end_of_last:]])


def _statements(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and the text between the parentheses of each ``asm`` statement."""
    position = 0
    while match := _START.search(source, position):
        line = source.rfind("\n", 0, match.start()) + 1
        end = _closing(source, match.end())
        # A macro's definition stays: what it expands to cannot be seen here.
        if source[line:].lstrip().startswith("#") or end is None:
            position = match.end()
            continue
        yield match.start(), end + 1, source[match.end() : end]
        position = end + 1


def _closing(source: str, position: int) -> int | None:
    """Return the index of the parenthesis that closes the one open at ``position``."""
    depth = 1
    while position < len(source):
        string = _STRING.match(source, position)
        if string:
            position = string.end()
            continue
        # A parenthesis inside a string was skipped above.
        depth += (source[position] == "(") - (source[position] == ")")
        if depth == 0:
            return position
        position += 1
    return None


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of strings and brackets."""
    parts, depth, position = [""], 0, 0
    while position < len(text):
        string = _STRING.match(text, position)
        if string:
            parts[-1] += string[0]
            position = string.end()
            continue
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if text[position] == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += text[position]
        position += 1
    return [part.strip() for part in parts]


def _call(inside: str) -> str:
    """Return the replacement of a statement, without its semicolon."""
    sections = _split(inside, ":")
    template = "".join(text[1:-1] for text in _STRING.findall(sections[0]))
    template = " ".join(template.replace("\\n", " ").replace("\\t", " ").split())
    operands = list[str]()
    for section in sections[1:3]:
        for operand in filter(None, _split(section, ",")):
            match = _OPERAND.match(operand)
            operands.append(f"({match[2]})" if match else operand)
    for pattern, make in _FORMS:
        # Whole statements only: a part that is not understood would change what is executed.
        match = pattern.fullmatch(template)
        if match:
            return make(match, operands)
    return f'static_assert(false, "the executor does not know this inline PTX: {template[:120]}")'


def _operands_in(text: str, operands: list[str]) -> list[str]:
    """Return the operands ``%0``, ``%1`` … that a text mentions, in its order."""
    return [operands[int(number)] for number in re.findall(r"%(\d+)", text)]


def _load_matrices(match: re.Match[str], operands: list[str]) -> str:
    count, transposed, registers, address = match.groups()
    function = f"cpembed_ldmatrix_x{count}{'_trans' if transposed else ''}"
    outputs = _operands_in(registers, operands)
    assignments = " ".join(f"{out} = r_[{n}];" for n, out in enumerate(outputs))
    pointer = f"executor_shared_pointer({_operands_in(address, operands)[0]})"
    return f"{{ unsigned int r_[{count}]; {function}(r_, {pointer}); {assignments} }}"


def _multiply(match: re.Match[str], operands: list[str]) -> str:
    shape, sums, first, second, rest = match.groups()
    d, a, b, c = (_operands_in(vector, operands) for vector in _VECTORS.findall(rest))
    function, kind = f"cpembed_mma_{shape}_{sums}_{first}_{second}", _SUM_TYPES[sums]
    return (
        f"{{ unsigned int a_[] = {{{', '.join(a)}}}; unsigned int b_[] = {{{', '.join(b)}}}; "
        f"{kind} c_[] = {{{', '.join(c)}}}; {function}(c_, a_, b_); "
        + " ".join(f"{out} = c_[{n}];" for n, out in enumerate(d))
        + " }"
    )


def _copy(match: re.Match[str], operands: list[str]) -> str:
    target, source, size, source_size = match.groups()
    valid = f"({_value(source_size, operands)}) != 0" if source_size else "true"
    return _copy_call(target, source, size, valid, operands)


def _predicated_copy(match: re.Match[str], operands: list[str]) -> str:
    predicate, target, source, size = match.groups()
    return _copy_call(target, source, size, f"{operands[int(predicate)]} != 0", operands)


def _copy_call(target: str, source: str, size: str, valid: str, operands: list[str]) -> str:
    pointer = f"executor_shared_pointer({_operands_in(target, operands)[0]})"
    source = _operands_in(source, operands)[0]
    return f"executor_cp_async({pointer}, {source}, {_value(size, operands)}, {valid})"


def _value(text: str, operands: list[str]) -> str:
    return operands[int(text[1:])] if text.startswith("%") else text


def _form(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which a space stands for any number of spaces."""
    return re.compile(pattern.replace(" ", r"\s*"))


_Maker = Callable[[re.Match[str], list[str]], str]

_COPY_NAME = r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\w+)?"

_FORMS: tuple[tuple[re.Pattern[str], _Maker], ...] = (
    (
        _form(
            r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16 "
            r"(\{[^}]*\}) , \[ (%\d+) \] ;?"
        ),
        _load_matrices,
    ),
    (
        _form(
            r"mma\.sync\.aligned\.(m\d+n\d+k\d+)\.row\.col\.(f32|f16|s32)\.(\w+)\.(\w+)\.\w+ "
            r"(\{[^}]*\} , \{[^}]*\} , \{[^}]*\} , \{[^}]*\}) ;?"
        ),
        _multiply,
    ),
    (_form(rf"{_COPY_NAME} \[ (%\d+) \] , \[ (%\d+) \] , (%?\d+) (?:, (%?\d+) )?;?"), _copy),
    (
        _form(
            r"\{ \.reg \.pred p ; setp\.(?:eq|ne)\.[bus]32 p , %(\d+) , [01] ; "
            rf"@p {_COPY_NAME} \[ (%\d+) \] , \[ (%\d+) \] , (%?\d+) ; "
            r"@!p st\.shared\.[.\w]+ \[ %\d+ \] , \{[^}]*\} ; \}"
        ),
        _predicated_copy,
    ),
    (_form(r"cp\.async\.commit_group ;?"), lambda _, __: "cpembed_cp_async_commit()"),
    (_form(r"cp\.async\.wait_all ;?"), lambda _, __: "executor_cp_async_wait_all()"),
    (
        _form(r"cp\.async\.wait_group (%?\d+) ;?"),
        lambda match, operands: f"executor_cp_async_wait({_value(match[1], operands)})",
    ),
    (
        _form(
            r"\{ \.reg \.u64 (\w+) ; cvta\.to\.shared\.u64 \w+ , %1 ; "
            r"cvt\.u32\.u64 %0 , \w+ ; \}"
        ),
        lambda _, operands: f"{operands[0]} = executor_shared_address({operands[1]})",
    ),
)

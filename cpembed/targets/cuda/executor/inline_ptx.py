"""Inline PTX of other people's kernels, as calls of the runtime: what TVM's own schedules write.

``ldmatrix``, ``mma.sync``, ``cp.async`` with its groups, and addresses of shared memory. Anything
else becomes a statement that does not compile and says what it is; in a part that the preprocessor
leaves out, it does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_START = re.compile(r"\b(?:__asm__|asm)\b\s*(?:__volatile__|volatile)?\s*\(")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\((.*)\)\s*$', re.DOTALL)
_VECTORS = re.compile(r"\{([^{}]*)\}")

_TYPES = {"f32": "float", "f16": "unsigned int", "s32": "int"}
"""Of the registers of sums."""


def translated(source: str) -> str:
    """A text with its inline PTX replaced; every line stays where it is."""
    parts, done = list[str](), 0
    for start, end, inside in _statements(source):
        made = _call(inside)
        lines = "\n" * source.count("\n", start, end)
        parts += [source[done:start], made, lines]
        done = end
    return "".join([*parts, source[done:]])


def _statements(source: str) -> Iterator[tuple[int, int, str]]:
    """Where statements begin and end, and what is between their parentheses."""
    place = 0
    while found := _START.search(source, place):
        line = source.rfind("\n", 0, found.start()) + 1
        end = _closing(source, found.end())
        if source[line:].lstrip().startswith("#") or end is None:
            place = found.end()
            continue
        yield found.start(), end + 1, source[found.end() : end]
        place = end + 1


def _closing(source: str, place: int) -> int | None:
    """Where the parenthesis that is open at a place is closed."""
    depth = 1
    while place < len(source):
        string = _STRING.match(source, place)
        if string:
            place = string.end()
            continue
        depth += (source[place] == "(") - (source[place] == ")")
        if depth == 0:
            return place
        place += 1
    return None


def _split(text: str, separator: str) -> list[str]:
    """At separators outside of strings and brackets."""
    parts, depth, place = [""], 0, 0
    while place < len(text):
        string = _STRING.match(text, place)
        if string:
            parts[-1] += string[0]
            place = string.end()
            continue
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if text[place] == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += text[place]
        place += 1
    return [part.strip() for part in parts]


def _call(inside: str) -> str:
    """What replaces a statement, without its semicolon."""
    sections = _split(inside, ":")
    template = "".join(text[1:-1] for text in _STRING.findall(sections[0]))
    template = " ".join(template.replace("\\n", " ").replace("\\t", " ").split())
    operands = list[str]()
    for section in sections[1:3]:
        for operand in filter(None, _split(section, ",")):
            found = _OPERAND.match(operand)
            operands.append(f"({found[2]})" if found else operand)
    for pattern, make in _FORMS:
        found = pattern.fullmatch(template)
        if found:
            return make(found, operands)
    return f'static_assert(false, "the executor does not know this inline PTX: {template[:120]}")'


def _named(text: str, operands: list[str]) -> list[str]:
    """The operands that a text mentions, in its order."""
    return [operands[int(number)] for number in re.findall(r"%(\d+)", text)]


def _load_matrices(found: re.Match[str], operands: list[str]) -> str:
    count, transposed, registers, address = found.groups()
    function = f"cpembed_ldmatrix_x{count}{'_trans' if transposed else ''}"
    outputs = _named(registers, operands)
    into = " ".join(f"{out} = r_[{n}];" for n, out in enumerate(outputs))
    pointer = f"executor_shared_pointer({_named(address, operands)[0]})"
    return f"{{ unsigned int r_[{count}]; {function}(r_, {pointer}); {into} }}"


def _multiply(found: re.Match[str], operands: list[str]) -> str:
    shape, sums, first, second, rest = found.groups()
    d, a, b, c = (_named(vector, operands) for vector in _VECTORS.findall(rest))
    function, kind = f"cpembed_mma_{shape}_{sums}_{first}_{second}", _TYPES[sums]
    return (
        f"{{ unsigned int a_[] = {{{', '.join(a)}}}; unsigned int b_[] = {{{', '.join(b)}}}; "
        f"{kind} c_[] = {{{', '.join(c)}}}; {function}(c_, a_, b_); "
        + " ".join(f"{out} = c_[{n}];" for n, out in enumerate(d))
        + " }"
    )


def _copy(found: re.Match[str], operands: list[str]) -> str:
    to, source, size, taken = found.groups()
    size = _value(size, operands)
    valid = f"({_value(taken, operands)}) != 0" if taken else "true"
    return _copied(_named(to, operands)[0], _named(source, operands)[0], size, valid)


def _predicated_copy(found: re.Match[str], operands: list[str]) -> str:
    predicate, to, source, size = found.groups()
    valid = f"{operands[int(predicate)]} != 0"
    return _copied(
        _named(to, operands)[0], _named(source, operands)[0], _value(size, operands), valid
    )


def _copied(to: str, source: str, size: str, valid: str) -> str:
    return f"executor_cp_async(executor_shared_pointer({to}), {source}, {size}, {valid})"


def _value(text: str, operands: list[str]) -> str:
    return operands[int(text[1:])] if text.startswith("%") else text


def _form(pattern: str) -> re.Pattern[str]:
    """A pattern in which a space is any spaces, or none."""
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
        lambda found, operands: f"executor_cp_async_wait({_value(found[1], operands)})",
    ),
    (
        _form(
            r"\{ \.reg \.u64 (\w+) ; cvta\.to\.shared\.u64 \w+ , %1 ; "
            r"cvt\.u32\.u64 %0 , \w+ ; \}"
        ),
        lambda _, operands: f"{operands[0]} = executor_shared_address({operands[1]})",
    ),
)

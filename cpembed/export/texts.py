"""Texts of a library's folder: tables of the runtime, header, JSON description, README."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.codegen.plan import storage_dtype
from cpembed.export.layout import Layout
from cpembed.export.program import Buffer, Call, Program, Role

NATIVE = Path(__file__).parent / "native"
"""Folder of the runtime and the templates in C."""

# Status of a processor without the first of the program's features; the next ones follow it.
_LACKS_FEATURE = 100

STATUSES: Mapping[str, tuple[int, str]] = {
    "OK": (0, "done"),
    "BAD_ARGUMENT": (1, "a pointer is null or unaligned, or a number out of range"),
    "OUT_OF_MEMORY": (2, "out of memory"),
    "NO_WEIGHTS_FILE": (3, "the file of weights cannot be opened"),
    "WEIGHTS_DAMAGED": (4, "the file of weights is damaged, or of another build"),
    "NOT_PACKED": (5, "weights have to be packed before the first run"),
    "KERNEL_FAILED": (6, "a kernel refused its arguments, or found no memory"),
    "NO_THREADS": (7, "threads cannot be started"),
    "REGISTERS_REFUSED": (8, "the operating system does not save registers that are used"),
    "LACKS_FEATURE": (_LACKS_FEATURE, "and above: the processor lacks a feature"),
}
"""Results of a library's functions and their texts; numbers are consecutive up to the last."""

# Names of a caller's buffers in the interface.
_CALLER_NAMES = {Role.INPUT: "input", Role.OUTPUT: "output", Role.WEIGHTS: "weight"}


def filled(template: str, values: Mapping[str, str]) -> str:
    """Replace each key of ``values`` in a template of :data:`NATIVE` by its value."""
    text = (NATIVE / template).read_text(encoding="utf-8")
    keys = "|".join(map(re.escape, values))
    return re.sub(keys, lambda match: values[match.group()], text)


def documents(program: Program) -> str:
    """Return the caller's tensors, one per line with number, name, type and shape."""
    return "\n".join(
        f"{name}[{number}]: {buffer.name}, {buffer.dtype} {list(buffer.shape)}"
        for role, name in zip(_CALLER_NAMES, ("inputs", "outputs", "weights"), strict=True)
        for number, buffer in enumerate(program.with_role(role))
    )


def header(program: Program, *, in_file: bool) -> str:
    """Return ``NAME.h``, the interface of a library whose constants may be ``in_file``."""
    name = program.name
    file = "weights_file: NULL, there is none."
    if in_file:
        file = f"weights_file: the path of\n   {name}.weights, NULL for the one beside the library."
    is_packed = bool(program.with_role(Role.WEIGHTS))
    return filled(
        "interface.h",
        {
            "NOTE": "\n   Weights are packed before the first run." if is_packed else "",
            # The text is inside a comment, which a name must not end.
            "DOCUMENTS": "\n   ".join(documents(program).replace("*/", "* /").splitlines()),
            "GUARD": f"{name.upper()}_H",
            "STATUSES": "\n".join(
                f"#define CPEMBED_{status} {code} /* {text} */"
                for status, (code, text) in STATUSES.items()
            ),
            "DEFAULT": str(program.threads or "the cores of the process"),
            "WEIGHTS_FILE": file,
            "NAME": name,
        },
    )


# -- tables ---------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return a string literal of C, in which all but printable ASCII is escaped."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def tables(layout: Layout) -> str:
    """Return ``program.h``, the tables with which the runtime is compiled."""
    program, buffers = layout.program, layout.buffers
    numbers = {buffer.name: number for number, buffer in enumerate(buffers)}
    arguments: list[int] = []
    calls: dict[str, list[str]] = {"prepare_calls": [], "run_calls": []}
    for name, steps in zip(calls, (program.prepare, program.run), strict=True):
        for call in steps:
            calls[name].append(_call(call, len(arguments)))
            arguments += [numbers[argument] for argument in call.arguments]
    texts = [text for code, text in STATUSES.values() if code < _LACKS_FEATURE]
    lacks = [f"the processor lacks {name}" for name in program.features]
    defines = _defines(layout, len(arguments), len(texts))
    symbols = sorted({call.kernel for call in (*program.prepare, *program.run)})
    lines = [
        f'#include "{program.name}.h"',
        f"#define PUBLIC(name) {program.name}_##name",
        *(f"#define {name} {value}" for name, value in defines.items()),
        *_constants(layout),
        *(f"int __tvm_ffi_{symbol}(void *, const Any *, int32_t, Any *);" for symbol in symbols),
        *_array("Buffer", "buffers", [_buffer(layout, buffer) for buffer in buffers]),
        *_array("int32_t", "arguments", [str(number) for number in arguments]),
        *(line for name, rows in calls.items() for line in _array("Call", name, rows)),
        *_loop_tables(program, numbers),
        *_array("char *const", "status_texts", map(quoted, texts)),
        *_array("char *const", "feature_names", map(quoted, program.features)),
        *_array("char *const", "lacks_texts", map(quoted, lacks)),
        *(line for role in _CALLER_NAMES for line in _caller_tables(program, role, numbers)),
    ]
    return "\n".join(lines) + "\n"


def _defines(layout: Layout, arguments: int, statuses: int) -> dict[str, object]:
    program, blob = layout.program, layout.blob
    plain, placed = blob.sums
    counts = {f"{n.upper()}_COUNT": len(program.with_role(r)) for r, n in _CALLER_NAMES.items()}
    return {
        "BUFFER_COUNT": len(layout.buffers),
        "ARGUMENT_COUNT": arguments,
        "PREPARE_COUNT": len(program.prepare),
        "STEP_COUNT": len(program.run),
        "LOOP_COUNT": len(program.loops),
        "STATUS_COUNT": statuses,
        "FEATURE_COUNT": len(program.features),
        **counts,
        "WORKSPACE_BYTES": layout.workspace.bytes,
        "OWN_BYTES": layout.handle_places[1],
        "DEFAULT_THREADS": program.threads,
        "CONSTANTS_IN_FILE": int(layout.in_file),
        "CONSTANTS_BYTES": len(blob.contents),
        "CONSTANTS_SUM": f"UINT64_C({plain})",
        "CONSTANTS_PLACED_SUM": f"UINT64_C({placed})",
        "CONSTANTS_FILE": quoted(f"{program.name}.weights"),
    }


def _array(kind: str, name: str, rows: Iterable[str]) -> list[str]:
    """Return an array of C."""
    # C has no empty arrays; counts say how many elements are used.
    empty = "0" if kind in ("int32_t", "char *const") else "{0}"
    body = [f"  {row}," for row in [*rows] or [empty]]
    return [f"static const {kind} {name}[] = {{", *body, "};"]


def _call(call: Call, first: int) -> str:
    label = quoted(call.label or call.kernel)
    return f"{{__tvm_ffi_{call.kernel}, {label}, {first}, {len(call.arguments)}}}"


def _loop_tables(program: Program, numbers: Mapping[str, int]) -> list[str]:
    """Return the tables of loops and of what they move."""
    moves: list[str] = []
    rows: list[str] = []
    for number, loop in enumerate(program.loops):
        places = (loop.number, loop.limit, loop.condition, loop.again)
        buffers = [-1 if name is None else numbers[name] for name in places]
        steps = "INT64_MAX" if loop.steps is None else f"INT64_C({loop.steps})"
        after = program.loop_after(number)
        fields = [steps, loop.first, loop.last, after, len(moves), len(loop.moves), *buffers]
        rows.append(f"{{{', '.join(map(str, fields))}}}")
        moves += [
            f"{{{m.moving.value}, {numbers[m.source]}, {numbers[m.target]}, {int(m.backwards)}}}"
            for m in loop.moves
        ]
    return [*_array("Loop", "loops", rows), *_array("Move", "moves", moves)]


def _buffer(layout: Layout, buffer: Buffer) -> str:
    stored = np.dtype(storage_dtype(buffer.dtype))
    is_own = buffer.role is Role.PACKED or (buffer.role is Role.WORKSPACE and not buffer.is_shared)
    copy = layout.handle_places[0].get(buffer.name, -1) if buffer.role is Role.WEIGHTS else -1
    fields = [
        quoted(buffer.name),
        quoted(buffer.dtype),
        # The position is the DLDataTypeCode.
        "iuf".index(stored.kind),
        8 * stored.itemsize,
        "OWN" if is_own else buffer.role.name,
        int(buffer.fill is not None),
        buffer.elements,
        buffer.bytes,
        layout.place(buffer),
        copy,
        f"UINT64_C({int.from_bytes(buffer.filling, 'little')})",
    ]
    return f"{{{', '.join(str(field) for field in fields)}}}"


def _caller_tables(program: Program, role: Role, numbers: Mapping[str, int]) -> list[str]:
    """Return the numbers of a caller's buffers, and their descriptions for callers."""
    buffers, name = program.with_role(role), _CALLER_NAMES[role]
    shapes = [
        f"static const int64_t {name}_shape_{k}[] = {{{', '.join(map(str, b.shape)) or 0}}};"
        for k, b in enumerate(buffers)
    ]
    rows = [
        f"{{{quoted(b.name)}, {quoted(b.dtype)}, {len(b.shape)}, {name}_shape_{k}, {b.bytes}}}"
        for k, b in enumerate(buffers)
    ]
    places = [str(numbers[b.name]) for b in buffers]
    table = _array("cpembed_tensor", f"{name}_table", rows)
    return [*shapes, *table, *_array("int32_t", f"{name}_buffers", places)]


def _constants(layout: Layout) -> list[str]:
    """Return the declaration of the constants, which are linked in from ``constants.bin``."""
    if layout.in_file:
        return []
    if not layout.blob.contents:
        return ["static const unsigned char CONSTANTS[1];"]
    section = (
        ".pushsection .rodata\\n.balign 64\\n.globl cpembed_constants\\n"
        ".hidden cpembed_constants\\ncpembed_constants:\\n"
        '.incbin \\"constants.bin\\"\\n.popsection'
    )
    return [
        f'__asm__("{section}");',
        "extern const unsigned char cpembed_constants[];",
        "#define CONSTANTS cpembed_constants",
    ]


# -- descriptions ---------------------------------------------------------------------------------


def about_json(layout: Layout, details: Mapping[str, Any]) -> str:
    """Return ``NAME.json``: the caller's tensors, the steps, the memory, and further details."""
    program = layout.program

    def described(role: Role) -> list[dict[str, object]]:
        return [
            {"name": b.name, "dtype": b.dtype, "shape": list(b.shape)}
            for b in program.with_role(role)
        ]

    document = {
        "name": program.name,
        "inputs": described(Role.INPUT),
        "outputs": described(Role.OUTPUT),
        "weights": described(Role.WEIGHTS),
        "steps": [call.label or call.kernel for call in program.run],
        "loops": [
            {"name": loop.name, "first": loop.first, "last": loop.last, "steps": loop.steps}
            for loop in program.loops
        ],
        "cpu_features": list(program.features),
        "workspace_bytes": layout.workspace.bytes,
        "handle_bytes": layout.handle_places[1],
        "constant_bytes": len(layout.blob.contents),
        **details,
    }
    return json.dumps(document, indent=2) + "\n"


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
    "runtime.c": "the library's own code, with `threads.h`, `processor.h` and `program.h`",
    ".s": "the machine code of the contraction, to be read",
}


def readme(program: Program, files: Sequence[str], about: str, *, linked: bool = True) -> str:
    """Return ``README.md``.

    Parameters
    ----------
    program : Program
    files : sequence of str
        Names of the files in the folder.
    about : str
        Sentence about the computation.
    linked : bool, default True
        True if the folder holds the library rather than its sources.
    """
    name = program.name
    names = {role: ", ".join(b.name for b in program.with_role(role)) for role in _CALLER_NAMES}
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

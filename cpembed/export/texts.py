"""Texts of a library's folder: tables of the runtime, header, JSON description."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.codegen.plan import storage_dtype
from cpembed.export.layout import Layout, LibraryLayout
from cpembed.export.program import Buffer, Call, Program, Role
from cpembed.export.sized import FillerBuffer, ProgramInstance, SizedProgram
from cpembed.graph.family import Extent, Shape, shape_text

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
    "SIZE_OUT_OF_RANGE": (9, "a size is out of the range that the library takes"),
    "LACKS_FEATURE": (_LACKS_FEATURE, "and above: the processor lacks a feature"),
}
"""Results of a library's functions and their texts; numbers are consecutive up to the last."""

# Names of a caller's buffers in the interface.
CALLER_NAMES = {Role.INPUT: "input", Role.OUTPUT: "output", Role.WEIGHTS: "weight"}


def filled(template: str, values: Mapping[str, str]) -> str:
    """Replace each key of ``values`` in a template of :data:`NATIVE` by its value."""
    text = (NATIVE / template).read_text(encoding="utf-8")
    keys = "|".join(map(re.escape, values))
    return re.sub(keys, lambda match: values[match.group()], text)


def documents(program: SizedProgram) -> str:
    """Return the caller's tensors, one per line with number, name, type and shape, and ranges."""
    tensors = [
        f"{name}[{number}]: {buffer.name}, {buffer.dtype} {shape_text(program.shape(role, number))}"
        for role, name in zip(CALLER_NAMES, ("inputs", "outputs", "weights"), strict=True)
        for number, buffer in enumerate(program.with_role(role))
    ]
    ranges = [
        f"sizes[{number}]: {symbol.name}, {symbol.least} to {symbol.most}"
        for number, symbol in enumerate(program.symbols)
    ]
    return "\n".join((*tensors, *ranges))


def header(program: SizedProgram, *, in_file: bool) -> str:
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


def tables(layout: LibraryLayout) -> str:
    """Return ``program.h``, the tables with which the runtime is compiled."""
    program = layout.program
    texts = [text for code, text in STATUSES.values() if code < _LACKS_FEATURE]
    lacks = [f"the processor lacks {name}" for name in program.features]
    defines = _defines(layout, len(texts))
    symbols = sorted({call.kernel for call in program.calls})
    ranges = [f"{{{quoted(s.name)}, {s.least}, {s.most}}}" for s in program.symbols]
    instances: list[str] = []
    lines = [
        f'#include "{program.name}.h"',
        '#include "tables.h"',
        f"#define PUBLIC(name) {program.name}_##name",
        *(f"#define {name} {value}" for name, value in defines.items()),
        *_constants(layout),
        *(f"int __tvm_ffi_{symbol}(void *, const Any *, int32_t, Any *);" for symbol in symbols),
        *_array("Symbol", "symbols", ranges),
        *_array("char *const", "status_texts", map(quoted, texts)),
        *_array("char *const", "feature_names", map(quoted, program.features)),
        *_array("char *const", "lacks_texts", map(quoted, lacks)),
        *(line for role in CALLER_NAMES for line in _caller_tables(program, role)),
    ]
    first_step = first_loop = 0
    for number, (instance, placed) in enumerate(
        zip(program.instances, layout.instances, strict=True)
    ):
        rows, row = _instance(program, instance, placed, number, (first_step, first_loop))
        lines += rows
        instances.append(row)
        first_step += len(instance.program.run)
        first_loop += len(instance.program.loops)
    return "\n".join((*lines, *_array("Instance", "instances", instances))) + "\n"


def _instance(
    sized: SizedProgram,
    instance: ProgramInstance,
    layout: Layout,
    number: int,
    firsts: tuple[int, int],
) -> tuple[list[str], str]:
    """Return the tables of an instance, and its row in the table of instances.

    Parameters
    ----------
    sized : SizedProgram
    instance : ProgramInstance
    layout : Layout
        Layout of the instance's program.
    number : int
        Number of the instance.
    firsts : tuple of int
        Numbers of its first step and its first loop among those of all instances.
    """
    program, buffers = layout.program, layout.buffers
    numbers = {buffer.name: place for place, buffer in enumerate(buffers)}
    arguments: list[int] = []
    calls: dict[str, list[str]] = {"prepare_calls": [], "run_calls": []}
    for name, steps in zip(calls, (program.prepare, program.run), strict=True):
        for call in steps:
            calls[name].append(_call(call, len(arguments), sized.prefix(instance)))
            arguments += [numbers[argument] for argument in call.arguments]
    weights = [buffer.name for buffer in program.with_role(Role.WEIGHTS)]
    symbols = [symbol.name for symbol in sized.symbols]
    fillers = [_filler(filler, numbers, symbols) for filler in instance.fillers]
    loops, moves = _loops(program, numbers)

    def tabled(kind: str, name: str, rows: Iterable[str]) -> list[str]:
        return _array(kind, f"{name}_{number}", rows)

    def places(names: Sequence[str]) -> list[str]:
        return [str(numbers[name]) for name in names]

    lines = [
        *tabled("int64_t", "sizes", map(str, instance.sizes)),
        *tabled("int64_t", "least", map(str, instance.least)),
        *tabled("int64_t", "most", map(str, instance.most)),
        *tabled("Buffer", "buffers", [_buffer(layout, buffer) for buffer in buffers]),
        *tabled("int32_t", "arguments", map(str, arguments)),
        *(line for name, rows in calls.items() for line in tabled("Call", name, rows)),
        *tabled("int32_t", "input_buffers", places(instance.inputs)),
        *tabled("int32_t", "output_buffers", places(instance.outputs)),
        *tabled("int32_t", "weight_buffers", places(weights)),
        *tabled("Filler", "fillers", fillers),
        *tabled("Loop", "loops", loops),
        *tabled("Move", "moves", moves),
    ]
    listed = (buffers, arguments, program.prepare, program.run, fillers, loops)
    tables_of = (
        *("buffers", "arguments", "prepare_calls", "run_calls"),
        *("input_buffers", "output_buffers", "weight_buffers", "fillers", "loops", "moves"),
    )
    fields = [
        *(f"{name}_{number}" for name in ("sizes", "least", "most")),
        repr(float(instance.cost_us)),
        *map(str, (*map(len, listed), *firsts)),
        *(f"{name}_{number}" for name in tables_of),
        str(layout.handle_places[1]),
    ]
    return lines, f"{{{', '.join(fields)}}}"


def _filler(filler: FillerBuffer, numbers: Mapping[str, int], symbols: Sequence[str]) -> str:
    extent = ", ".join(map(str, (0, *_extent_fields(filler.extent, symbols))))
    buffer, kind = numbers[filler.buffer], filler.kind.value
    return f"{{{buffer}, {kind}, {filler.size}, {{{extent}}}}}"


def _extent_fields(extent: Extent, symbols: Sequence[str]) -> tuple[int, int, int, int]:
    """Return the number of an extent's symbol, its factor, its offset and its divisor."""
    number = -1 if extent.symbol is None else symbols.index(extent.symbol)
    return number, extent.factor, extent.offset, extent.divisor


def _defines(layout: LibraryLayout, statuses: int) -> dict[str, object]:
    program, blob = layout.program, layout.blob
    plain, placed = blob.sums
    counts = {f"{n.upper()}_COUNT": len(program.with_role(r)) for r, n in CALLER_NAMES.items()}
    names = [symbol.name for symbol in program.symbols]
    shapes = [
        program.shape(role, number)
        for role in CALLER_NAMES
        for number in range(len(program.with_role(role)))
    ]
    return {
        "INSTANCE_COUNT": len(program.instances),
        "SYMBOL_COUNT": len(names),
        "SPLIT": -1 if program.split is None else names.index(program.split),
        "MOST_EXTENTS": max((len(_extents(shape)) for shape in shapes), default=0) + 1,
        "STEP_COUNT": len(program.steps),
        "LOOP_COUNT": sum(len(instance.program.loops) for instance in program.instances),
        "STATUS_COUNT": statuses,
        "FEATURE_COUNT": len(program.features),
        **counts,
        "WORKSPACE_BYTES": layout.workspace_bytes,
        "DEFAULT_THREADS": program.threads,
        "CONSTANTS_IN_FILE": int(layout.in_file),
        "CONSTANTS_BYTES": len(blob.contents),
        "CONSTANTS_SUM": f"UINT64_C({plain})",
        "CONSTANTS_PLACED_SUM": f"UINT64_C({placed})",
        "CONSTANTS_FILE": quoted(f"{program.name}.weights"),
    }


def _extents(shape: Shape) -> list[tuple[int, Extent]]:
    """Return the extents of a shape with the numbers of their axes."""
    return [(axis, extent) for axis, extents in enumerate(shape) for extent in extents]


def _array(kind: str, name: str, rows: Iterable[str]) -> list[str]:
    """Return an array of C."""
    # C has no empty arrays; counts say how many elements are used.
    empty = "0" if kind in ("int32_t", "int64_t", "char *const") else "{0}"
    body = [f"  {row}," for row in [*rows] or [empty]]
    return [f"static const {kind} {name}[] = {{", *body, "};"]


def _call(call: Call, first: int, prefix: str) -> str:
    label = quoted(prefix + (call.label or call.kernel))
    return f"{{__tvm_ffi_{call.kernel}, {label}, {first}, {len(call.arguments)}}}"


def _loops(program: Program, numbers: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the table rows of loops and of the buffers that they move."""
    moves: list[str] = []
    rows: list[str] = []
    for number, loop in enumerate(program.loops):
        places = (loop.number, loop.limit, loop.condition, loop.again)
        buffers = [-1 if name is None else numbers[name] for name in places]
        steps = "INT64_MAX" if loop.steps is None else f"INT64_C({loop.steps})"
        after = program.loop_after(number)
        moved = len(moves), len(loop.moves)
        fields = [steps, loop.first, loop.last, after, *moved, *buffers, int(loop.padded)]
        rows.append(f"{{{', '.join(map(str, fields))}}}")
        moves += [
            f"{{{m.moving.value}, {numbers[m.source]}, {numbers[m.target]}, {int(m.backwards)}}}"
            for m in loop.moves
        ]
    return rows, moves


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


def _caller_tables(program: SizedProgram, role: Role) -> list[str]:
    """Return the descriptions of a caller's buffers."""
    buffers, name = program.with_role(role), CALLER_NAMES[role]
    symbols = [symbol.name for symbol in program.symbols]
    lines: list[str] = []
    rows: list[str] = []
    for k, b in enumerate(buffers):
        extents = [
            f"{{{', '.join(map(str, (axis, *_extent_fields(extent, symbols))))}}}"
            for axis, extent in _extents(program.shape(role, k))
        ]
        lines += _array("int64_t", f"{name}_shape_{k}", map(str, b.shape))
        lines += _array("cpembed_extent", f"{name}_extents_{k}", extents)
        item = np.dtype(storage_dtype(b.dtype)).itemsize
        rows.append(
            f"{{{quoted(b.name)}, {quoted(b.dtype)}, {len(b.shape)}, {name}_shape_{k}, {b.bytes}, "
            f"{item}, {len(extents)}, {name}_extents_{k}}}"
        )
    return [*lines, *_array("cpembed_tensor", f"{name}_table", rows)]


def _constants(layout: LibraryLayout) -> list[str]:
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


def about_json(layout: LibraryLayout, details: Mapping[str, Any]) -> str:
    """Return ``NAME.json``: the caller's tensors, the steps, the memory, and further details.

    Where sizes are ranges, ``shape`` is the one at the largest sizes.
    """
    program = layout.program

    def described(role: Role) -> list[dict[str, object]]:
        return [
            {
                "name": b.name,
                "dtype": b.dtype,
                "shape": list(b.shape),
                **({"sizes": shape_text(program.shape(role, k))} if program.symbols else {}),
            }
            for k, b in enumerate(program.with_role(role))
        ]

    document = {
        "name": program.name,
        "inputs": described(Role.INPUT),
        "outputs": described(Role.OUTPUT),
        "weights": described(Role.WEIGHTS),
        **({"ranges": _ranges(program)} if program.symbols else {}),
        "steps": list(program.steps),
        "loops": list(_loop_documents(program)),
        "cpu_features": list(program.features),
        "workspace_bytes": layout.workspace_bytes,
        "handle_bytes": layout.handle_bytes,
        "constant_bytes": len(layout.blob.contents),
        **details,
    }
    return json.dumps(document, indent=2) + "\n"


def _loop_documents(program: SizedProgram) -> Iterator[dict[str, object]]:
    """Yield the loops of all instances, with the numbers of their steps among those of all."""
    first = 0
    for instance in program.instances:
        for loop in instance.program.loops:
            yield {
                "name": f"{program.prefix(instance)}{loop.name}",
                "first": first + loop.first,
                "last": first + loop.last,
                "steps": loop.steps,
            }
        first += len(instance.program.run)


def _ranges(program: SizedProgram) -> dict[str, object]:
    """Return the ranges of sizes, and the sizes for which there are kernels."""
    names = [symbol.name for symbol in program.symbols]
    return {
        "symbols": {symbol.name: [symbol.least, symbol.most] for symbol in program.symbols},
        "split": program.split,
        "instances": [
            {"sizes": dict(zip(names, i.sizes, strict=True)), "predicted_us": i.cost_us}
            for i in program.instances
        ],
    }

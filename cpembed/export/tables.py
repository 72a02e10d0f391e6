"""A program as C, the tables that the runtime is compiled with, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cpembed.codegen.script import storage_dtype
from cpembed.export.memory import MemoryPlan, aligned, workspace_of
from cpembed.export.program import GIVEN, Buffer, Call, Program, Role
from cpembed.export.weights import Blob

_TYPE_CODES: Mapping[str, int] = {"i": 0, "u": 1, "f": 2}
"""``DLDataTypeCode`` by numpy's kinds."""

LACKS_FEATURE = 100
"""The status of a processor without the first of the features; those after it count on."""

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
    "LACKS_FEATURE": (LACKS_FEATURE, "and above: the processor lacks a feature"),
}
"""What functions of a library return; numbers without a gap up to the last."""


@dataclass(frozen=True)
class Layout:
    """Where the buffers of a program lie; ``blob`` holds its constants, which are in a file beside
    the library (``in_file``) or linked into it."""

    program: Program
    blob: Blob
    in_file: bool

    @cached_property
    def workspace(self) -> MemoryPlan:
        return workspace_of(self.program)

    @cached_property
    def own(self) -> tuple[dict[str, int], int]:
        """Offsets in the memory of a handle, and its bytes: what is packed, what is filled, and
        weights that are read when they were packed before."""
        used = {name for call in self.program.run for name in call.arguments}
        places: dict[str, int] = {}
        end = 0
        for buffer in self.program.buffers:
            kept = buffer.role is Role.WEIGHTS and buffer.name in used
            if buffer.role is Role.PACKED or buffer.fill is not None or kept:
                places[buffer.name] = end
                end += aligned(buffer.bytes)
        return places, end

    @property
    def taken(self) -> tuple[Buffer, ...]:
        """The buffers that a library has: all but those that nothing takes."""
        used = self.program.used
        return tuple(b for b in self.program.buffers if b.role in GIVEN or b.name in used)

    def place(self, buffer: Buffer) -> int:
        """The number of what is given, else an offset in bytes."""
        if buffer.role in GIVEN:
            return self.program.of(buffer.role).index(buffer)
        if buffer.role is Role.CONSTANT:
            return self.blob.places[buffer.name]
        if buffer.is_shared:
            return self.workspace.places[buffer.name]
        return self.own[0][buffer.name]


def quoted(text: str) -> str:
    """A literal of C: the printable characters of ASCII as they are, the others escaped."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def tables(layout: Layout) -> str:
    """``program.h``."""
    program, blob = layout.program, layout.blob
    taken = layout.taken
    numbers = {buffer.name: number for number, buffer in enumerate(taken)}
    used: list[int] = []
    calls: dict[str, list[str]] = {"prepare_calls": [], "run_calls": []}
    for name, steps in (("prepare_calls", program.prepare), ("run_calls", program.run)):
        for call in steps:
            calls[name].append(_call(call, len(used)))
            used += [numbers[argument] for argument in call.arguments]
    plain, placed = blob.sums
    texts = [text for code, text in STATUSES.values() if code < LACKS_FEATURE]
    defined: dict[str, object] = {
        "BUFFER_COUNT": len(taken),
        "ARGUMENT_COUNT": len(used),
        "PREPARE_COUNT": len(program.prepare),
        "STEP_COUNT": len(program.run),
        "STATUS_COUNT": len(texts),
        "FEATURE_COUNT": len(program.features),
        "INPUT_COUNT": len(program.of(Role.INPUT)),
        "OUTPUT_COUNT": len(program.of(Role.OUTPUT)),
        "WEIGHT_COUNT": len(program.of(Role.WEIGHTS)),
        "WORKSPACE_BYTES": layout.workspace.bytes,
        "OWN_BYTES": layout.own[1],
        "DEFAULT_THREADS": program.threads,
        "CONSTANTS_IN_FILE": int(layout.in_file),
        "CONSTANTS_BYTES": len(blob.contents),
        "CONSTANTS_SUM": f"UINT64_C({plain})",
        "CONSTANTS_PLACED_SUM": f"UINT64_C({placed})",
        "CONSTANTS_FILE": quoted(f"{program.name}.weights"),
    }
    lines = [
        f'#include "{program.name}.h"',
        f"#define PUBLIC(name) {program.name}_##name",
        *(f"#define {name} {value}" for name, value in defined.items()),
        *_constants(layout),
        *(f"int __tvm_ffi_{symbol}(void *, const Any *, int32_t, Any *);"
          for symbol in _symbols(program)),
        *_array("Buffer", "buffers", [_buffer(layout, buffer) for buffer in taken]),
        *_array("int32_t", "arguments", [str(number) for number in used]),
        *_array("Call", "prepare_calls", calls["prepare_calls"]),
        *_array("Call", "run_calls", calls["run_calls"]),
        *_array("char *const", "status_texts", [quoted(text) for text in texts]),
        *_array("char *const", "feature_names", [quoted(name) for name in program.features]),
        *_array("char *const", "lacks_texts",
                [quoted(f"the processor lacks {name}") for name in program.features]),
        *_given(program, Role.INPUT, "input", numbers),
        *_given(program, Role.OUTPUT, "output", numbers),
        *_given(program, Role.WEIGHTS, "weight", numbers),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _symbols(program: Program) -> list[str]:
    return sorted({call.kernel for call in (*program.prepare, *program.run)})


_STRUCTURES = ("Buffer", "Call", "cpembed_tensor")


def _array(kind: str, name: str, rows: Sequence[str]) -> list[str]:
    """An array of C, which has an element at least."""
    nothing = "{0}" if kind in _STRUCTURES else "0"
    body = [f"  {row}," for row in rows or [nothing]]
    return [f"static const {kind} {name}[] = {{", *body, "};"]


def _call(call: Call, first: int) -> str:
    label = quoted(call.label or call.kernel)
    return f"{{__tvm_ffi_{call.kernel}, {label}, {first}, {len(call.arguments)}}}"


def _buffer(layout: Layout, buffer: Buffer) -> str:
    stored = np.dtype(storage_dtype(buffer.dtype))
    copy = layout.own[0].get(buffer.name, -1) if buffer.role is Role.WEIGHTS else -1
    role = {Role.INPUT: "INPUT", Role.OUTPUT: "OUTPUT", Role.WEIGHTS: "WEIGHTS",
            Role.CONSTANT: "CONSTANT", Role.PACKED: "OWN",
            Role.WORKSPACE: "WORKSPACE" if buffer.is_shared else "OWN"}[buffer.role]  # fmt: skip
    fields = [
        quoted(buffer.name),
        quoted(buffer.dtype),
        _TYPE_CODES[stored.kind],
        8 * stored.itemsize,
        role,
        int(buffer.fill is not None),
        buffer.elements,
        buffer.bytes,
        layout.place(buffer),
        copy,
        f"UINT64_C({int.from_bytes(buffer.filling, 'little')})",
    ]
    return f"{{{', '.join(str(field) for field in fields)}}}"


def _given(program: Program, role: Role, name: str, numbers: Mapping[str, int]) -> list[str]:
    """The numbers of what is given, and how it is described to callers."""
    given = program.of(role)
    shapes = [
        f"static const int64_t {name}_shape_{k}[] = {{{', '.join(map(str, b.shape)) or 0}}};"
        for k, b in enumerate(given)
    ]
    rows = [
        f"{{{quoted(b.name)}, {quoted(b.dtype)}, {len(b.shape)}, {name}_shape_{k}, {b.bytes}}}"
        for k, b in enumerate(given)
    ]
    table = _array("cpembed_tensor", f"{name}_table", rows)
    places = _array("int32_t", f"{name}_buffers", [str(numbers[b.name]) for b in given])
    return [*shapes, *table, *places]


def _constants(layout: Layout) -> list[str]:
    """The constants, linked in from ``constants.bin``."""
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


def documents(program: Program) -> str:
    """The given tensors, one a line, for comments and texts: number, name, type, shape."""
    lines: list[str] = []
    for role, name in (
        (Role.INPUT, "inputs"),
        (Role.OUTPUT, "outputs"),
        (Role.WEIGHTS, "weights"),
    ):
        for number, buffer in enumerate(program.of(role)):
            lines.append(f"{name}[{number}]: {buffer.name}, {buffer.dtype} {list(buffer.shape)}")
    return "\n".join(lines)


def about_json(layout: Layout, details: Mapping[str, Any]) -> str:
    """``NAME.json``: what is given, the steps, the memory, and further ``details``."""
    program = layout.program

    def given(role: Role) -> list[dict[str, object]]:
        return [
            {"name": b.name, "dtype": b.dtype, "shape": list(b.shape)} for b in program.of(role)
        ]

    document = {
        "name": program.name,
        "inputs": given(Role.INPUT),
        "outputs": given(Role.OUTPUT),
        "weights": given(Role.WEIGHTS),
        "steps": [call.label or call.kernel for call in program.run],
        "cpu_features": list(program.features),
        "workspace_bytes": layout.workspace.bytes,
        "handle_bytes": layout.own[1],
        "constant_bytes": len(layout.blob.contents),
        **details,
    }
    return json.dumps(document, indent=2) + "\n"

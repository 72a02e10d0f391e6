"""Folders of saved kernels: text, machine code, manifest, and the programs that check them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from cpembed.files import folder_draft, write_whole
from cpembed.ir.dtypes import is_integer, numpy_dtype, size_bytes
from cpembed.steps import step
from cpembed.targets.cuda import compiling
from cpembed.targets.cuda.build import CudaText, Kernel, Tensor
from cpembed.targets.cuda.remote import check
from cpembed.targets.cuda.remote.load import FORMAT, read_manifest
from cpembed.targets.cuda.saving.cases import Case
from cpembed.targets.cuda.tma.tensor_maps import ENCODERS_TEXT

INSTRUCTIONS = (
    "On a machine with a GPU, `python check.py` (Python 3.10 or later and the CUDA driver) or "
    "`make check` (nvcc alone) runs the kernels, compares their results with the expected ones, "
    "and times them; the exit status is 1 if anything is refused or wrong. `load.py` takes the "
    "kernels into a program."
)
"""Message to a user about the saved files."""

ALIGNMENT = 16
"""Bytes that addresses of buffers are multiples of: the widest access of a thread, and what tensor
maps require."""

REMOTE = Path(check.__file__).parent
"""Folder of the modules that go with the kernels."""

TEMPLATES = Path(__file__).parent / "templates"

BASELINES = REMOTE.with_name("baselines")
"""Folder of the modules that call other libraries there."""


@dataclass(frozen=True, kw_only=True)
class SavedKernel:
    """Kernels with everything that a folder says of them.

    Attributes
    ----------
    name : str
        Identifier of C, with which the names of kernels and files begin.
    text : CudaText
    inputs : sequence of Tensor
        Tensors that they read, in their original layouts.
    outputs : sequence of Tensor
        Tensors that they write, the result first.
    prepares : frozenset of str
        Names in ``text`` of the kernels that run before all calls.
    cases : sequence of Case
        Inputs with their results; without them, the folder's programs check nothing and fail.
    macs : int
        Multiply-adds of a call.
    about : mapping
        Further entries of the manifest: workload, embedding, schedule, machine.
    """

    name: str
    text: CudaText
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    prepares: frozenset[str]
    cases: Sequence[Case]
    macs: int
    about: Mapping[str, Any]


def identifier(text: str) -> str:
    """Return an identifier of C that resembles a text, such as the name of a folder.

    >>> identifier("layer-3.kernel"), identifier("3x3"), identifier("kernel")
    ('layer_3_kernel', 'k3x3', 'kernel')
    """
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"k{name}"


def save(kernel: SavedKernel, folder: Path) -> None:
    """Write kernels, and programs that load, check and time them.

    Machine code is written if nvcc is installed; without it, the programs compile the text on the
    machine with the GPU.

    Raises :class:`~cpembed.errors.LoweringError` if nvcc rejects the text.
    """
    with folder_draft(folder, f"{kernel.name}.json") as draft:
        samples = save_samples(kernel.cases, draft)
        architectures = kernel.text.architectures if compiling.compiler() is not None else ()
        text, document = save_kernels(kernel, draft, samples, architectures)
        for module in ("load.py", "check.py"):
            write_whole(draft / module, remote_text(REMOTE / module))
        write_whole(draft / "check.cu", _check_text(document, text))
        write_whole(
            draft / "Makefile",
            _template("Makefile", source=document["source"], architecture=_flags(text)),
        )


Samples = Mapping[str, Mapping[str, str]]
"""Files with the samples of results, by case and tensor."""


def save_samples(cases: Sequence[Case], folder: Path) -> Samples:
    """Write the samples of the cases' results, and return the names of the files."""
    files: dict[str, dict[str, str]] = {}
    for case in cases:
        files[case.name] = {}
        for number, (tensor, expected) in enumerate(case.results.items()):
            name = f"expected.{case.name}{'.second' * number}.bin"
            (folder / name).write_bytes(expected.sample())
            files[case.name][tensor] = name
    return files


def save_kernels(
    kernel: SavedKernel,
    folder: Path,
    samples: Samples,
    architectures: Sequence[str],
) -> tuple[CudaText, dict[str, Any]]:
    """Write the text, its images and the manifest; return the text as written, and the latter.

    Parameters
    ----------
    kernel : SavedKernel
    folder : Path
        Folder of the files, which exists.
    samples : mapping
        Files of the cases' samples, relative to the folder.
    architectures : sequence of str
        Architectures that the text is compiled for; none to write the text only.
    """
    text = named(kernel.text, kernel.name)
    document = _document(kernel, text, samples)
    source = folder / document["source"]
    write_whole(source, text.source)
    if architectures:
        with step("compiling a CUDA kernel"):
            document["images"] = compiling.compiled(source, kernel.name, architectures)
    write_whole(folder / f"{kernel.name}.json", json.dumps(document, indent=1) + "\n")
    return text, document


def save_torch(folder: Path) -> None:
    """Write an operator of PyTorch beside the kernels of a folder."""
    name = read_manifest(folder)["name"]
    write_whole(folder / f"{name}_torch.py", _template("torch_operator.py", name=name))


def remote_text(module: Path) -> str:
    """Return a module as it is beside the kernels, where the others are its neighbours."""
    text = module.read_text(encoding="utf-8")
    for package in (REMOTE, BASELINES):
        name = f"cpembed.targets.cuda.{package.name}"
        text = text.replace(f"from {name} import ", "import ").replace(f"from {name}.", "from ")
    return text


def named(text: CudaText, name: str) -> CudaText:
    """Return a text that one program can hold beside others, in one translation unit too.

    Kernels begin with a name; all other functions belong to the file, and are defined once where
    several texts are included.
    """
    names = {k.launch.kernel: _kernel_name(k.launch.kernel, name) for k in text.kernels}
    source = text.source
    for before, after in names.items():
        source = re.sub(rf"\b{before}\b", after, source)
    # Dynamic shared memory, which is declared with the alignment that a text needs.
    for shared in set(re.findall(r"extern __shared__ [^;]*?(\w+)\[\];", source)):
        source = re.sub(rf"\b{shared}\b", f"{name}_shared", source)
    # Functions of the host as well as of the device would be defined twice in one program.
    source = re.sub(
        r"^(?=(?:__(?:device|host|forceinline)__ )+\w[\w ]*[\w*&] \w+\()",
        "static ",
        source,
        flags=re.MULTILINE,
    )
    kernels = tuple(
        replace(k, launch=replace(k.launch, kernel=names[k.launch.kernel])) for k in text.kernels
    )
    return replace(text, source=_QUIET + _defined_once(source), kernels=kernels)


def _defined_once(source: str) -> str:
    """Guard each declaration before the kernels by a macro that its text names.

    Texts have the declarations that their kernels use, so that those of two of them overlap.
    """
    declarations, kernel, rest = source.partition('extern "C" __global__')
    blocks: list[str] = []
    lines: list[str] = []
    conditionals, in_body = 0, False
    for line in [*declarations.split("\n"), ""]:
        directive = line.lstrip()
        conditionals += directive.startswith("#if") - directive.startswith("#endif")
        if not line.startswith(("#", " ")):
            in_body = line.endswith("{") or (in_body and not line.startswith("}"))
        if line or conditionals or in_body:
            lines.append(line)
        elif lines:
            blocks.append("\n".join(lines))
            lines = []
    guarded = [_guarded(block) for block in blocks]
    return "\n".join([*guarded, kernel + rest])


def _guarded(block: str) -> str:
    macro = f"CPEMBED_{zlib.crc32(block.encode()):08X}"
    return f"#ifndef {macro}\n#define {macro}\n{block}\n#endif\n"


_QUIET = """\
#ifdef __CUDACC__
// Functions of the prelude that no kernel calls, and statements that only tell TVM of a use.
#pragma nv_diag_suppress 174, 177
#endif
"""


def _kernel_name(kernel: str, name: str) -> str:
    return f"{name}_{kernel.removesuffix('_kernel')}"


def _document(kernel: SavedKernel, text: CudaText, samples: Samples) -> dict[str, Any]:
    """Return the manifest without images."""
    prepares = {_kernel_name(each, kernel.name) for each in kernel.prepares}
    reads, writes = (
        {tensor.buffer: tensor.tensor for tensor in tensors}
        for tensors in (kernel.inputs, kernel.outputs)
    )
    cases = [case.to_json(reads, writes, samples[case.name]) for case in kernel.cases]
    return {
        "format": FORMAT,
        "name": kernel.name,
        **kernel.about,
        "macs": kernel.macs,
        "source": f"{kernel.name}.cu",
        "operands": list(dict.fromkeys(tensor.tensor for tensor in kernel.inputs)),
        "results": [tensor.tensor for tensor in kernel.outputs],
        "architectures": list(text.architectures),
        "buffers": _buffers(kernel, text),
        "kernels": [_kernel_document(each, prepares) for each in text.kernels],
        "images": [],
        "cases": cases,
    }


def _buffers(kernel: SavedKernel, text: CudaText) -> list[dict[str, Any]]:
    """Return the buffers of all kernels: tensors of the workload, and memory between kernels."""
    tensors = {tensor.buffer: ("input", tensor) for tensor in kernel.inputs}
    tensors |= {tensor.buffer: ("output", tensor) for tensor in kernel.outputs}
    buffers: dict[str, dict[str, Any]] = {}
    for parameter in (p for each in text.kernels for p in each.parameters):
        role, tensor = tensors.get(parameter.name, ("workspace", None))
        dtype = parameter.dtype if tensor is None else tensor.dtype
        buffers[parameter.name] = {
            "name": parameter.name,
            "role": role,
            "tensor": None if tensor is None else tensor.tensor,
            "shape": [parameter.elements] if tensor is None else list(tensor.shape),
            "elements": parameter.elements,
            "dtype": dtype,
            "itemsize": np.dtype(parameter.dtype).itemsize if tensor is None else size_bytes(dtype),
            "alignment": ALIGNMENT,
        }
    return list(buffers.values())


def _kernel_document(kernel: Kernel, prepares: set[str]) -> dict[str, Any]:
    launch = kernel.launch
    return {
        "name": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(getattr(launch, "cluster", (1, 1, 1))),
        "dynamic_shared_bytes": launch.shared_bytes,
        "prepares": launch.kernel in prepares,
        "parameters": [
            {"kind": "buffer", "buffer": p.name}
            if p.tensor_map is None
            else {"kind": "tensor_map", "buffer": p.name, "map": p.tensor_map.to_json()}
            for p in kernel.parameters
        ],
    }


# --------------------------------------------------------------------------- the check in CUDA C++


def _flags(text: CudaText) -> str:
    """Return the options of nvcc that compile a text for the GPU of the machine."""
    architecture = text.architectures[0]
    if architecture[-1].isdigit():
        # Without a GPU nvcc takes its oldest architecture for the native one, which has not the
        # text's instructions; then the program is to say that there is no device.
        return f"$(if $(shell nvidia-smi -L 2>/dev/null),-arch=native,-arch={architecture})"
    # `-arch` would compile the text for the architecture without the letter, too.
    return f"-gencode arch={architecture.replace('sm_', 'compute_')},code={architecture}"


def _template(template: str, **values: object) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _check_text(document: Mapping[str, Any], text: CudaText) -> str:
    """Return the program that checks and times the kernels without Python."""
    numbers = {buffer["name"]: n for n, buffer in enumerate(document["buffers"])}
    permissions: list[str] = []
    launches: dict[bool, list[str]] = {True: [], False: []}
    maps: list[str] = []
    for kernel, entry in zip(text.kernels, document["kernels"], strict=True):
        name, shared = entry["name"], entry["dynamic_shared_bytes"]
        if shared > 48 * 1024:
            permissions.append(
                f"  REQUIRE(cudaFuncSetAttribute((const void*){name}, "
                f"cudaFuncAttributeMaxDynamicSharedMemorySize, {shared}));"
            )
        arguments: list[str] = []
        for parameter in kernel.parameters:
            place = f"addresses[{numbers[parameter.name]}]"
            if parameter.tensor_map is None:
                arguments.append(f"&{place}")
                continue
            encoding = parameter.tensor_map.c_text("map", place)
            maps.append(f"  {{\n{encoding}\n  tensor_maps[{len(maps)}] = map;\n  }}")
            arguments.append(f"&tensor_maps[{len(maps) - 1}]")
        grid, block, cluster = (
            f"dim3({', '.join(map(str, entry[field]))})" for field in ("grid", "block", "cluster")
        )
        launches[entry["prepares"]].append(
            f"  {{\n    void* arguments[] = {{{', '.join(arguments)}}};\n"
            f'    launch("{name}", (const void*){name}, {grid}, {block}, {cluster}, {shared}, '
            "arguments);\n  }"
        )
    encoders = f"{ENCODERS_TEXT}static CUtensorMap tensor_maps[{len(maps)}];\n" if maps else ""
    return _template(
        "check.cu",
        source=document["source"],
        architecture=_flags(text),
        tables=_tables(document, numbers),
        encoders=encoders,
        permissions="\n".join(permissions),
        prepares="\n".join(launches[True]),
        computes="\n".join(launches[False]),
        encoded="\n".join(maps),
    )


def _tables(document: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    """Return the manifest's buffers and cases as C++."""
    buffers = [_buffer_text(buffer) for buffer in document["buffers"]]
    shared = max(kernel["dynamic_shared_bytes"] for kernel in document["kernels"])
    lines = [
        f"enum {{ GUARD_BYTES = {check.GUARD_BYTES}, GUARD = {check.GUARD} }};",
        f"enum {{ UNWRITTEN = {check.UNWRITTEN} }};",
        f"enum {{ RUNS = {check.RUNS}, WARM_UP = {check.WARM_UP}, SHARED_BYTES = {shared} }};",
        f"static const double MACS = {float(document['macs'])!r};",
        "static const std::vector<Buffer> buffers = {",
        *buffers,
        "};",
        "static const std::vector<Case> cases = {",
        *(_case_text(case, numbers) for case in document["cases"]),
        "};",
    ]
    return "\n".join(lines)


def _buffer_text(buffer: Mapping[str, Any]) -> str:
    exponent, mantissa = check.FLOAT_BITS.get(buffer["dtype"], (0, 0))
    signed = is_integer(buffer["dtype"]) and numpy_dtype(buffer["dtype"]).kind == "i"
    return (
        f'    {{"{buffer["name"]}", {buffer["role"].upper()}, {buffer["elements"]}, '
        f"{buffer['itemsize']}, {buffer['alignment']}, {exponent}, {mantissa}, "
        f"{str(signed).lower()}}},"
    )


def _case_text(case: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    inputs = [
        f"       {{{numbers[name]}, {spec['seed']}u, {_braces(spec['values'])}, "
        f"{_braces(spec['rare'])}, {spec['rare_one_in']}u, {spec['crc32']}u}},"
        for name, spec in case["inputs"].items()
    ]
    outputs = [
        f"       {{{numbers[name]}, {expected['rule'].upper()}, {expected['absolute']!r}, "
        f"{expected['relative']!r}, {expected['slice_elements']}, {_braces(expected['crc32'])}, "
        f'"{expected["sample"]}", {expected["sample_step"]}}},'
        for name, expected in case["expected"].items()
    ]
    name = f'    {{"{case["name"]}",'
    return "\n".join([name, "     {", *inputs, "     },", "     {", *outputs, "     }},"])


def _braces(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(f"{number}u" for number in numbers) + "}"

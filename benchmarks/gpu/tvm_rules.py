"""A baseline of TVM itself: dlight's default schedules of a layer, as the wheel has them.

The Tensor Core rule is for products whose rows, columns and depth all exceed 64; for others
dlight's further rules make kernels that use none. The rule for bytes fails in the wheel as shipped;
*repaired* means that its loop of the depth is split in two.
"""
# pyright: basic

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.codegen import runtime
from cpembed.driver.bench_pack import PackItem
from cpembed.errors import LoweringError
from cpembed.targets.cuda.build import CudaText, Kernel, Parameter, Tensor, cuda_target
from cpembed.targets.cuda.compiling import ARCHITECTURES
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.pack.packing import save_variant
from cpembed.targets.cuda.saving.cases import cases_of
from cpembed.targets.cuda.saving.folder import SavedKernel, save_samples

_TAGS = {
    f"{kind}Idx.{axis}": (kind, n) for kind in ("block", "thread") for n, axis in enumerate("xyz")
}
_DYNAMIC = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class RuleKernels:
    """Kernels of a rule: CUDA text, and how its kernels are launched, in order."""

    source: str
    kernels: tuple[dict[str, Any], ...]


def described(item: PackItem) -> dict[str, Any]:
    """Return the operands, sizes and element types of a layer."""
    layer, layer_workload = item.layer(1), item.workload
    inputs = {operand.tensor: operand for operand in layer_workload.inputs}
    sums = layer_workload.output.dtype
    return {
        "kind": layer.kind,
        "sizes": layer.sizes,
        "inputs": [
            {"name": name, "shape": list(operand.shape), "dtype": operand.dtype}
            for name, operand in inputs.items()
        ],
        "output": {
            "shape": list(layer_workload.output.shape),
            "sums": sums,
            "stored": sums if layer.epilogue is None else layer.epilogue.dtype,
        },
    }


def module(layer: dict[str, Any]) -> Any:
    """Return the operator as a PrimFunc, with the names of the layer's operands."""
    tvm = runtime.tvm()
    from tvm import te

    sums, stored = layer["output"]["sums"], layer["output"]["stored"]
    inputs = {
        i["name"]: te.placeholder(i["shape"], i["dtype"], name=i["name"]) for i in layer["inputs"]
    }
    shape = layer["output"]["shape"]
    if layer["kind"] == "gemm":
        first, second = inputs["A"], inputs["B"]
        z = te.reduce_axis((0, layer["sizes"]["k"][0]), "z")
        total = te.compute(
            shape,
            lambda i, j: te.sum(first[i, z].astype(sums) * second[z, j].astype(sums), axis=[z]),
            name="product",
        )
    else:
        total = _convolution(te, tvm, layer, inputs, sums)
    result = total
    if stored != sums:
        result = te.compute(shape, lambda *i: total[i].astype(stored), name="result")
    return tvm.IRModule({"main": te.create_prim_func([*inputs.values(), result])})


def _convolution(
    te: Any, tvm: Any, layer: dict[str, Any], inputs: dict[str, Any], sums: str
) -> Any:
    size = layer["sizes"]
    image, filters = inputs["I"], inputs["W"]
    n, h, w, c = image.shape
    pad, stride, dilation = (
        tuple((size.get(name, [default]) * 2)[:2])
        for name, default in (("pad", 0), ("stride", 1), ("dilation", 1))
    )
    padded = image
    if any(pad):
        padded = te.compute(
            (n, h + 2 * pad[0], w + 2 * pad[1], c),
            lambda b, y, x, d: tvm.tirx.if_then_else(
                tvm.tirx.all(y >= pad[0], y < h + pad[0], x >= pad[1], x < w + pad[1]),
                image[b, y - pad[0], x - pad[1], d],
                tvm.tirx.const(0, image.dtype),
            ),
            name="padded",
        )
    r, s, d = (te.reduce_axis((0, size[name][0]), name) for name in ("r", "s", "c"))
    return te.compute(
        layer["output"]["shape"],
        lambda b, y, x, k: te.sum(
            padded[b, y * stride[0] + r * dilation[0], x * stride[1] + s * dilation[1], d].astype(
                sums
            )
            * filters[k, r, s, d].astype(sums),
            axis=[r, s, d],
        ),
        name="convolution",
    )


def scheduled(item: PackItem, *, repaired: bool = False) -> RuleKernels:
    """Schedule a layer by dlight's rules.

    Raises :class:`LoweringError` if the rules or TVM's code generation fail.
    """
    layer = described(item)
    tvm = runtime.tvm()
    from tvm.s_tir import dlight
    from tvm.tirx.build import codegen_build, split_host_device_mods

    target = cuda_target(ARCHITECTURES[0])
    gpu = dlight.gpu
    rules = (
        _matmul(repaired)(),
        gpu.GEMV(),
        gpu.Reduction(),
        gpu.GeneralReduction(),
        gpu.Fallback(),
    )
    try:
        with target:
            scheduled_module = dlight.ApplyDefaultSchedule(*rules)(module(layer))
            bind = tvm.tirx.transform.BindTarget(target.with_host(tvm.target.Target("llvm")))
            pipeline, _, finish = tvm.tirx.get_default_tir_pipeline(target)
            host, devices = split_host_device_mods(pipeline(bind(scheduled_module)))
            ((device_target, device),) = devices.items()
            source = codegen_build(finish()(device), device_target).inspect_source()
    except Exception as error:  # What fails inside TVM has many types.
        raise LoweringError(f"dlight has no kernel: {str(error).strip()[-160:]}") from error
    kernels = tuple(_launches(host.script(), source, layer))
    if not kernels:
        raise LoweringError("dlight's module calls no kernel")
    return RuleKernels(source, kernels)


def _matmul(repaired: bool) -> Any:
    from tvm.s_tir.dlight.gpu import matmul

    if not repaired:
        return matmul.Matmul
    text = inspect.getsource(matmul).replace("[None, 1],\n        )", "[None, 2],\n        )")
    names = dict(vars(matmul))
    exec(compile(text, matmul.__file__, "exec"), names)
    return names["Matmul"]


_CALL = re.compile(r'call_ffi_kernel\("(\w+)", (.*?), launch_params=\[(.*?)\]')


def _launches(host: str, source: str, layer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the launches of the calls in the text of the host's functions.

    After the operands there is a number for each of the launch's parameters.
    """
    for name, passed, named in _CALL.findall(host):
        tags = re.findall(r'"([\w.]+)"', named)
        values = [
            int(number) for number in re.findall(r"\d+", re.sub(r"int64|\w+_\d+\.data", "", passed))
        ]
        sizes, shared = {"block": [1, 1, 1], "thread": [1, 1, 1]}, 0
        for tag, value in zip(tags, values[len(values) - len(tags) :], strict=True):
            if tag == _DYNAMIC:
                shared = value
            else:
                kind, place = _TAGS[tag]
                sizes[kind][place] = value
        yield {
            "name": name,
            "grid": sizes["block"],
            "block": sizes["thread"],
            "dynamic_shared_bytes": shared,
            "arguments": _arguments(name, source, layer),
        }


def _arguments(name: str, source: str, layer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return operands in the text's own order; the one that is no input is the result."""
    match = re.search(rf"\b{name}\(([^)]*)\)", source)
    if match is None:
        raise LoweringError(f"dlight's text has no kernel {name}")
    names = re.findall(r"(\w+?)(?:_ptr)?(?:,|$)", match.group(1))
    inputs = {i["name"]: i for i in layer["inputs"]}
    unknown = [n for n in names if n not in inputs]
    if len(unknown) != 1:
        raise LoweringError(f"dlight's kernels pass buffers to each other: {' '.join(names)}")
    arguments: list[dict[str, Any]] = []
    for argument in names:
        operand = inputs.get(argument)
        shape = operand["shape"] if operand else layer["output"]["shape"]
        dtype = operand["dtype"] if operand else layer["output"]["stored"]
        elements = 1
        for extent in shape:
            elements *= extent
        arguments.append(
            {"name": argument if operand else "C", "elements": elements, "dtype": dtype}
        )
    return arguments


def save(item: PackItem, kernels: RuleKernels, folder: Path, stem: str) -> None:
    """Write a rule's kernels into a layer's folder, beside those that were generated.

    Parameters
    ----------
    item : PackItem
        The layer.
    kernels : RuleKernels
        Its kernels.
    folder : Path
        Folder of the layer.
    stem : str
        Name of the kernels' own folder.
    """
    layer, document = item.layer(1), described(item)
    cases = cases_of(item.workload, layer.epilogue)
    launches = [
        Kernel(
            Launch(k["name"], tuple(k["grid"]), tuple(k["block"]), k["dynamic_shared_bytes"]),
            tuple(Parameter(a["name"], a["elements"], a["dtype"]) for a in k["arguments"]),
        )
        for k in kernels.kernels
    ]
    output = document["output"]
    saved = SavedKernel(
        name=stem,
        text=CudaText(kernels.source, tuple(launches)),
        inputs=[
            Tensor(i["name"], i["name"], tuple(i["shape"]), i["dtype"]) for i in document["inputs"]
        ],
        outputs=[Tensor("C", item.workload.output.name, tuple(output["shape"]), output["stored"])],
        prepares=frozenset(),
        cases=cases,
        macs=item.workload.macs,
        about={"workload": str(item.workload), "schedule": "dlight"},
    )
    save_variant(saved, folder / stem, save_samples(cases, folder))

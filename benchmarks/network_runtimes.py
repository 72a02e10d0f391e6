"""Run one network in one runtime, in a process of its own: what ``networks.py`` asks for rounds.

    python benchmarks/network_runtimes.py RUNTIME MODEL THREADS INPUTS OUTPUTS

MODEL is an ONNX file; for ``cpembed`` the folder of a library that ``cpembed build`` wrote. INPUTS
is an .npz with an array for each input, OUTPUTS where one for each output is written. The process
then writes a line of JSON, ``{"version": ...}``, and answers a line with a number of calls by
``{"seconds": ..., "elsewhere": ..., "rested": ...}``: a call's time on average, the cores that
other processes had meanwhile, whether its threads slept before the answer. ``{"missing": ...}``:
why there is no such runtime here.

The interpreter needs numpy and the runtime, and of cpembed its source only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpembed.runtime.measurement.interleaved import Elsewhere, wait_for_idle_threads

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[], Arrays]


class MissingRuntimeError(Exception):
    """The runtime is not installed, or rejects the network; the text says why."""


def onnxruntime(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open a network in ONNX Runtime with all graph optimizations.

    Parameters
    ----------
    model : Path
        File of the network.
    threads : int
        Number of threads.
    inputs : mapping of str to array
        Inputs by name.

    Returns
    -------
    tuple
        Version of the runtime, and a call that returns arrays of numpy.
    """
    return _onnxruntime(model, threads, inputs, [])


def onnxruntime_unfused(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open a network with all optimizations but the one that joins products with their sums.

    If the results of products are float32, that one makes the following operators compute in
    float32, several times as slowly. Parameters as of :func:`onnxruntime`.
    """
    return _onnxruntime(model, threads, inputs, ["MatMulAddFusion"])


def onnxruntime_plain(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open a network without optimizations: every operator as the file has it.

    It is not timed, but other results are compared with its results. Parameters as of
    :func:`onnxruntime`.
    """
    ort = _imported("onnxruntime")
    return _onnxruntime(model, threads, inputs, [], ort.GraphOptimizationLevel.ORT_DISABLE_ALL)


def _onnxruntime(
    model: Path, threads: int, inputs: Arrays, disabled: list[str], level: Any = None
) -> tuple[str, Run]:  # fmt: skip
    ort = _imported("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = level or ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )
    names, feed = [each.name for each in session.get_outputs()], dict(inputs)
    return ort.__version__, lambda: dict(zip(names, session.run(None, feed), strict=True))


def openvino(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open a network in OpenVINO, as it is by default for one answer at a time.

    What is not quantized is computed in bfloat16 if the processor has that. Parameters as of
    :func:`onnxruntime`.
    """
    return _openvino(model, threads, inputs, {})


def openvino_f32(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open a network in OpenVINO, in which float32 stays float32.

    Parameters as of :func:`onnxruntime`.
    """
    return _openvino(model, threads, inputs, {"INFERENCE_PRECISION_HINT": "f32"})


def _openvino(
    path: Path, threads: int, inputs: Arrays, settings: dict[str, Any]
) -> tuple[str, Run]:  # fmt: skip
    ov = _imported("openvino")
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        **settings,
    }
    model = ov.Core().compile_model(path, "CPU", settings)
    request = model.create_infer_request()
    names = [each.get_any_name() for each in model.outputs]

    def run() -> Arrays:
        results = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return {name: results[k] for k, name in enumerate(names)}

    return ov.__version__.split("-")[0], run


def torch(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open a network in PyTorch's inductor, with torchao's passes for quantized products.

    It needs a C++ compiler. Parameters as of :func:`onnxruntime`.
    """
    _imported("torchao")
    from benchmarks.network_torch import compiled

    return _imported("torch").__version__, compiled(model, threads, dict(inputs))


def cpembed(model: Path, threads: int, inputs: Arrays) -> tuple[str, Run]:
    """Open the library in the folder MODEL by the loader that was written with it.

    The loader needs numpy alone. Parameters as of :func:`onnxruntime`.
    """
    libraries = sorted(model.glob("lib*.so"))
    if len(libraries) != 1:
        raise MissingRuntimeError(
            f"{model} has {len(libraries)} libraries: cpembed build writes one"
        )
    name = libraries[0].stem.removeprefix("lib")
    spec = importlib.util.spec_from_file_location(f"built_{name}", model / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    library = module.Library(threads=threads)
    arguments = [inputs[info.name] for info in library.inputs]
    names = [info.name.removesuffix(".result") for info in library.outputs]
    return "built", lambda: dict(zip(names, library.run(*arguments), strict=True))


PLAIN = "onnxruntime_plain"
RUNTIMES: dict[str, Callable[[Path, int, Arrays], tuple[str, Run]]] = {
    "cpembed": cpembed,
    "onnxruntime": onnxruntime,
    "onnxruntime_unfused": onnxruntime_unfused,
    "openvino": openvino,
    "openvino_f32": openvino_f32,
    "torch": torch,
}


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingRuntimeError(f"{name} is not installed: pip install {name}") from error


def main() -> None:
    """Run the command."""
    name, model, threads, input_file, output_file = sys.argv[1:]
    for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(pool, threads)
    with np.load(input_file) as file:
        inputs = {key: file[key] for key in file.files}
    opened = onnxruntime_plain if name == PLAIN else RUNTIMES[name]
    try:
        version, run = opened(Path(model), int(threads), inputs)
        np.savez(output_file, **{key: np.asarray(array) for key, array in run().items()})
    except MissingRuntimeError as error:
        answer(missing=str(error))
        return
    except Exception as error:  # whatever a runtime raises, the others are measured
        answer(missing=f"{type(error).__name__}: {error}".split("\n", 1)[0])
        return
    answer(version=version)
    for line in sys.stdin:
        calls = int(line)
        for _ in range(1 + calls // 10):  # wakes the threads and fills the caches again
            run()
        elsewhere = Elsewhere()
        with elsewhere:
            started = time.perf_counter()
            for _ in range(calls):
                run()
            seconds = (time.perf_counter() - started) / calls
        rested = wait_for_idle_threads()
        answer(seconds=seconds, elsewhere=elsewhere.cores, rested=rested)


def answer(**values: object) -> None:
    """Write a line of JSON."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()

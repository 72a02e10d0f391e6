"""Kernels of CUTLASS for a product or a convolution, compiled for one architecture by nvcc."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from benchmarks.gpu.peer_layers import CompiledKernel, Layer, Tile
from cpembed.errors import BackendUnavailable

DEFAULTS: dict[tuple[str, str], Tile] = {
    ("gemm", "sm_80"): Tile(128, 256, 64, 3),
    ("conv", "sm_80"): Tile(128, 128, 64, 3),
    ("gemm", "sm_90a"): Tile(128, 256, 64, 0),
    ("conv", "sm_90a"): Tile(128, 128, 64, 0),
    ("gemm", "sm_120a"): Tile(128, 128, 64, 3),
    ("conv", "sm_120a"): Tile(128, 128, 64, 3),
}
"""Tiles of ``DefaultGemmConfiguration`` and of the examples 16 and 48.

The number of stages of Hopper's is CUTLASS's own choice. For sm_120 there is no other kernel of
16-bit floats than that of sm_80, whose default needs more shared memory than is there.
"""

_WARP_PRODUCT = """\
#include <cutlass/gemm/device/gemm_universal.h>
using namespace cutlass;
using Peer = gemm::device::GemmUniversal<
    half_t, layout::RowMajor, half_t, layout::ColumnMajor, half_t, layout::RowMajor, float,
    arch::OpClassTensorOp, arch::Sm80, gemm::GemmShape<{m}, {n}, {k}>,
    gemm::GemmShape<64, {w}, {k}>, gemm::GemmShape<16, 8, 16>,
    epilogue::thread::LinearCombination<half_t, 8, float, float>,
    gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, {stages}, 8, 8>::GemmKernel;
template __global__ void cutlass::Kernel2<Peer>(Peer::Params);
"""

_WARP_CONVOLUTION = """\
#include <cutlass/conv/kernel/default_conv2d_fprop.h>
#include <cutlass/conv/device/implicit_gemm_convolution.h>
using namespace cutlass;
using Peer = conv::kernel::DefaultConv2dFprop<
    half_t, layout::TensorNHWC, half_t, layout::TensorNHWC, half_t, layout::TensorNHWC, float,
    arch::OpClassTensorOp, arch::Sm80, gemm::GemmShape<{m}, {n}, {k}>,
    gemm::GemmShape<64, {w}, {k}>, gemm::GemmShape<16, 8, 16>,
    epilogue::thread::LinearCombination<half_t, 8, float, float>,
    gemm::threadblock::GemmIdentityThreadblockSwizzle<4>, {stages}, arch::OpMultiplyAdd,
    conv::IteratorAlgorithm::kOptimized, conv::StrideSupport::kStrided, 8, 8>::Kernel;
template __global__ void cutlass::Kernel<Peer>(Peer::Params);
"""

_GROUP_PRODUCT = """\
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/device_kernel.h>
using namespace cute;
using cutlass::half_t;
using Block = Shape<Int<{m}>, Int<{n}>, Int<{k}>>;
using Cluster = Shape<_2, _1, _1>;
using Row = cutlass::layout::RowMajor;
using End = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Block, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, 8, half_t, Row, 8,
    cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
using Main = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, half_t, Row, 8,
    half_t, cutlass::layout::ColumnMajor, 8, float, Block, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(End::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
using Peer = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Main, End>;
template __global__ void cutlass::device_kernel<Peer>(CUTLASS_GRID_CONSTANT Peer::Params const);
"""

_GROUP_CONVOLUTION = """\
#include <cutlass/kernel_hardware_info.h>
#include <cute/tensor.hpp>
#include <cutlass/conv/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/conv/convnd_problem_shape.hpp>
#include <cutlass/conv/dispatch_policy.hpp>
#include <cutlass/conv/kernel/conv_universal.hpp>
#include <cutlass/device_kernel.h>
using namespace cute;
using cutlass::half_t;
using Block = Shape<Int<{m}>, Int<{n}>, Int<{k}>>;
using Cluster = Shape<_1, _1, _1>;
using Images = cutlass::layout::TensorNHWC;
constexpr auto kForward = cutlass::conv::Operator::kFprop;
using End = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Block, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Images, 8, half_t, Images,
    8, cutlass::epilogue::TmaWarpSpecialized>::CollectiveOp;
using Main = cutlass::conv::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, kForward, half_t, Images, 8,
    half_t, Images, 8, float, Shape<Int<{m}>, Int<{n}>, Shape<Int<{k}>>>, Cluster,
    cutlass::conv::collective::StageCountAutoCarveout<int(sizeof(End::SharedStorage))>,
    cutlass::conv::collective::KernelScheduleAuto>::CollectiveOp;
using Problem = cutlass::conv::ConvProblemShape<kForward, 2>;
using Peer = cutlass::conv::kernel::ConvUniversal<Problem, Main, End>;
template __global__ void cutlass::device_kernel<Peer>(CUTLASS_GRID_CONSTANT Peer::Params const);
"""

_SHARED = """
// The listing names this kernel, and with it the bytes of shared memory.
template <int kBytes> __global__ void peer_shared() {}
template __global__ void peer_shared<int(sizeof(Peer::SharedStorage))>();
"""
_SHARED_NAME = re.compile(rb"peer_sharedILi(\d+)E")

_TEXTS = {
    ("gemm", False): _WARP_PRODUCT,
    ("conv", False): _WARP_CONVOLUTION,
    ("gemm", True): _GROUP_PRODUCT,
    ("conv", True): _GROUP_CONVOLUTION,
}


def version(cutlass: Path) -> str:
    """Return the version of a checkout.

    Raises :class:`BackendUnavailable` if there is none in the folder.
    """
    header = cutlass / "include/cutlass/version.h"
    if not header.is_file():
        raise BackendUnavailable(f"{cutlass} is no checkout of CUTLASS: it has no include/cutlass")
    numbers = re.findall(r"#define CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text())
    return ".".join(numbers)


def compile_kernel(
    cutlass: Path, layer: Layer, tile: Tile, architecture: str, folder: Path
) -> CompiledKernel:
    """Compile CUTLASS's kernel for a layer.

    Parameters
    ----------
    cutlass : Path
        Checkout of CUTLASS.
    layer : Layer
        Product or convolution; kernels of CUTLASS take sizes when they are launched.
    tile : Tile
        Rows, columns and depth of a block, and stages.
    architecture : str
        ``sm_80``, ``sm_90a`` or ``sm_120a``.
    folder : Path
        Folder of the text and the cubin, which are kept.

    Raises
    ------
    BackendUnavailable
        If CUTLASS has no such kernel.
    """
    group = architecture == "sm_90a"
    text = _TEXTS[layer.kind, group]
    values = {"m": tile.rows, "n": tile.columns, "k": tile.depth, "w": min(64, tile.columns // 2)}
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    text = text.replace("{stages}", str(tile.stages)) + _SHARED
    stem = f"cutlass_{layer.kind}_{tile.name}_{architecture}"
    source, cubin = folder / f"{stem}.cu", folder / f"{stem}.cubin"
    seconds = folder / f"{stem}.seconds"
    if not (cubin.is_file() and source.is_file() and source.read_text() == text):
        source.write_text(text)
        command = ["nvcc", "-cubin", "-std=c++17", "-O3", "--expt-relaxed-constexpr"]
        command += [f"-arch={architecture}", f"-I{cutlass}/include"]
        command += [f"-I{cutlass}/tools/util/include", "-o", str(cubin), str(source)]
        start = time.perf_counter()
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            lines = (process.stdout + process.stderr).splitlines()
            raise BackendUnavailable(next(line for line in lines if "error" in line))
        seconds.write_text(f"{time.perf_counter() - start:.2f}")
    shared = _SHARED_NAME.search(cubin.read_bytes())
    assert shared is not None
    return CompiledKernel(cubin, float(seconds.read_text()), int(shared[1]), tile)

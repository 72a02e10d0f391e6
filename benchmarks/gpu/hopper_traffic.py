"""Compare the traffic that the model of wgmma kernels counts with what the emulator counts.

    python -m benchmarks.gpu.hopper_traffic -o benchmarks/gpu/hopper_traffic.md
    python -m benchmarks.gpu.hopper_traffic --only 8192 --workers 132

Needs a C++ compiler, and no GPU. Of each workload the best of eight embeddings is taken with the
schedule of the least estimate on an H100. Some persistent blocks (clusters, where blocks share
loads) execute all of their tiles at the workload's own size: neighbours at both ends of the grid
and in its middle, so that tiles whose reductions they share are added up too. The products
themselves are not computed (``Program.count``). A difference is printed as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.files import write_whole
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.model import gpu
from cpembed.targets.cuda.tma.reads import count_reads
from cpembed.targets.cuda.warp_specialized.build import cuda_text
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedProduct
from cpembed.targets.cuda.warp_specialized.space import SpecializedSpace
from cpembed.targets.cuda.warp_specialized.traffic import traffic

PEAK_TERA = {"float16": 989.4, "bfloat16": 989.4, "int8": 1978.9}
"""Dense tera-operations a second: NVIDIA H100 white paper, SXM5."""

WORKLOADS = (
    ("wgmma_f16", "gemm m=8192 n=8192 k=8192"),
    ("wgmma_f16", "gemm m=4096 n=4096 k=4096"),
    ("wgmma_f16", "gemm m=16384 n=1024 k=4096 trans_b=1"),
    ("wgmma_f16", "gemm m=5000 n=3000 k=1032"),
    ("wgmma_bf16", "batched_gemm b=12 m=1024 n=1024 k=512"),
    ("wgmma_s8", "gemm m=8192 n=8192 k=8192 dtype=int8"),
    ("wgmma_f16", "conv2d n=16 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 layout=NHWC"),
    ("wgmma_f16", "conv2d n=64 c=256 h=28 w=28 k=256 r=3 s=3 pad=1 layout=NHWC"),
    ("wgmma_f16", "conv2d n=32 c=512 h=14 w=14 k=1024 r=3 s=3 pad=1 stride=2 layout=NHWC"),
    ("wgmma_f16", "conv2d n=32 c=256 h=14 w=14 k=1024 r=1 s=1 layout=NHWC"),
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Counts of some workers of a kernel, by the model and by the emulator."""

    title: str
    schedule: str
    workers: int
    total_workers: int
    us: float
    share_of_peak: float
    counts: dict[str, tuple[int, int]]
    """Numbers of the model and of the emulator by their names."""

    @property
    def differences(self) -> dict[str, tuple[int, int]]:
        return {name: pair for name, pair in self.counts.items() if pair[0] != pair[1]}


def best_plan(target: str, words: str) -> tuple[SpecializedPlan, float]:
    """Return the plan of the smallest estimate on an H100, and the estimate in microseconds."""
    spec = hardware_spec(target)
    machine, plans = gpu(spec, "h100"), list[tuple[float, SpecializedPlan]]()
    embeddings = solve(workload(words, target=spec), spec, constraints="fused", top=8).embeddings
    for embedding in embeddings:
        try:
            product = SpecializedProduct(lower(embedding.candidate.program, spec))
            scored = SpecializedSpace(product, machine).best()
        except LoweringError:
            continue
        plans.append((scored.cost, SpecializedPlan(product, scored.schedule)))
    # Of estimates that are equal to three digits, one whose factors TMA loads.
    us, plan = min(plans, key=lambda each: (float(f"{each[0]:.3g}"), each[1].by_threads))
    return plan, us


def sampled_workers(count: int, limit: int) -> list[int]:
    """Return pairs of neighbours at both ends and in the middle, or all workers."""
    if limit >= count:
        return list(range(count))
    starts = (0, count // 2, count - 2)
    pairs = [worker for start in starts for worker in (start, start + 1)]
    return sorted(set(pairs[:limit]))


def counted(plan: SpecializedPlan, workers: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return each count by the model and by the emulator, of some workers."""
    counters = CudaKernels(plan, cuda_text(plan)).count(workers)
    expected = traffic(plan, workers)
    items = [item for worker in workers for item in plan.order.items(worker)]
    read_bytes, sectors = count_reads(plan, items)
    stored = counters.global_store_bytes + counters.bulk_store_bytes
    stored_sectors = counters.global_store_sectors + counters.bulk_store_sectors
    counts = {
        "products": (expected.products, sum(counters.mma.values())),
        "wavefronts of products": (expected.matrix_wavefronts, counters.wgmma_wavefronts),
        "wavefronts, shared loads": (
            expected.shared_load_wavefronts,
            counters.shared_load_wavefronts,
        ),
        "wavefronts, shared stores": (
            expected.shared_store_wavefronts,
            counters.shared_store_wavefronts,
        ),
        "phases of barriers": (expected.phases, counters.mbarrier_phases),
        "transactions, bytes": (expected.image_bytes, counters.bulk_load_image_bytes),
        "bytes read by copies": (read_bytes, counters.bulk_load_bytes),
        "sectors read by copies": (sectors, counters.bulk_load_sectors),
        "bytes stored": (expected.stored_bytes, stored),
        "sectors stored": (expected.stored_sectors, stored_sectors),
    }
    if not plan.by_threads:
        parts = expected.part_bytes_loaded, counters.global_load_bytes
        counts["bytes of parts read"] = parts
    return counts


def compare(target: str, words: str, limit: int) -> Comparison:
    """Compare the counts of a workload's best kernel.

    Parameters
    ----------
    target, words : str
        Target and workload.
    limit : int
        Number of workers.
    """
    plan, us = best_plan(target, words)
    workers = sampled_workers(plan.order.workers, limit)
    operations = 2 * plan.product.program.unfused.macs / us / 1e6
    return Comparison(
        title=f"{target} {words}",
        schedule=str(plan.schedule),
        workers=len(workers),
        total_workers=plan.order.workers,
        us=us,
        share_of_peak=operations / PEAK_TERA[plan.product.instruction.a],
        counts=counted(plan, workers),
    )


def report(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Traffic of wgmma kernels: the model beside the emulator"
    yield ""
    yield (
        "Made by `python -m benchmarks.gpu.hopper_traffic`. Times are *estimated* for an H100; "
        "traffic is *counted*, by the model from the schedule and by the emulator, which executes "
        "the CUDA text of some persistent blocks at the size of the workload."
    )
    for comparison in comparisons:
        yield ""
        yield f"## {comparison.title}"
        yield ""
        yield f"{comparison.schedule[0].upper()}{comparison.schedule[1:]}."
        yield (
            f"Estimated {comparison.us:,.1f} us, {comparison.share_of_peak:.1%} of the peak. "
            f"{comparison.workers} of {comparison.total_workers} workers are emulated; "
            f"{len(comparison.counts) - len(comparison.differences)} of "
            f"{len(comparison.counts)} counts are equal."
        )
        yield ""
        yield "| count | model | emulator | difference |"
        yield "| --- | ---: | ---: | ---: |"
        for name, (model, emulated) in comparison.counts.items():
            difference = "-" if model == emulated else f"{model / emulated - 1:+.2%}"
            yield f"| {name} | {model:,} | {emulated:,} | {difference} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="workloads whose words contain this")
    parser.add_argument("--workers", type=int, default=6, help="workers that are emulated")
    options = parser.parse_args(arguments)
    comparisons = list[Comparison]()
    for target, words in WORKLOADS:
        if options.only in words:
            comparisons.append(compare(target, words, options.workers))
            lines = "\n".join(report(comparisons)) + "\n"
            if options.output is not None:
                write_whole(options.output, lines.encode())
    print("\n".join(report(comparisons)))


if __name__ == "__main__":
    main()

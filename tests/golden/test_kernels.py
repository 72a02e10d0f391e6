"""Generated kernels against stored texts; ``--update-golden`` rewrites them, to be read."""

from __future__ import annotations

from cpembed.targets.cuda.warp_specialized.build import cuda_text
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from tests.golden.test_reports import Golden
from tests.unit.targets.cuda.warp_specialized.products import lowered


def test_a_kernel_of_warp_groups_is_the_stored_one(golden: Golden) -> None:
    """Pixels in im2col mode, multicast of filters, and two groups that take turns."""
    words = "conv2d n=2 c=64 h=14 w=14 k=32 r=3 s=3 pad=1 layout=NHWC"
    _, product = lowered(words, "wgmma_f16", "fused")
    schedule = SpecializedSchedule(
        2, (1, 4), 4, 3, ("tensor", "tensor"), blocks=2, cluster=(2, 1), alternating=True
    )
    source = cuda_text(SpecializedPlan(product, schedule)).source
    # The device functions before it have tests of their own.
    golden("wgmma_conv2d.cu", source[source.rindex('extern "C"') :])

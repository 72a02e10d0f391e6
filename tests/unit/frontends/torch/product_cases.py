"""Operators that add up: reductions, windows, normalisations, products."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tests.unit.frontends.torch.inputs import IMAGE, ROW, Case, X, booleans, floats, integers  # noqa: E402

F = torch.nn.functional


REDUCTIONS: dict[str, Case] = {
    "sum": (lambda x: x.sum(), (X,)),
    "sum of axes": (lambda x: x.sum((0, -1), keepdim=True), (X,)),
    "sum of Booleans": (lambda x: x.sum(1), (booleans(3, 4),)),
    "mean": (lambda x: x.mean(), (X,)),
    "mean of axes": (lambda x: x.mean((2, 3)), (IMAGE,)),
    "prod": (lambda x: x.prod(1), (X,)),
    "amax": (lambda x: x.amax((0, 2)), (X,)),
    "amin": (lambda x: x.amin(1, keepdim=True), (X,)),
    "max": (lambda x: x.max(), (X,)),
    "max of an axis": (lambda x: x.max(1).values, (X,)),
    "min of an axis": (lambda x: x.min(-1, keepdim=True)[0], (X,)),
    "var": (lambda x: x.var((0, 2)), (X,)),
    "var unbiased": (lambda x: x.var(1, unbiased=False, keepdim=True), (X,)),
    "std": (lambda x: x.std(-1), (X,)),
    "var and mean": (lambda x: torch.var_mean(x, 1), (X,)),
    "norm": (lambda x: x.norm(dim=1), (X,)),
    "norm 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=1), (X,)),
    "norm inf": (lambda x: torch.linalg.vector_norm(x, float("inf")), (X,)),
    "norm 3": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), (X,)),
    "norm 0": (lambda x: torch.linalg.vector_norm(x, 0), (X,)),
    "norm -inf": (lambda x: torch.linalg.vector_norm(x, -float("inf"), dim=2), (X,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "softmax": (lambda x: x.softmax(1), (X,)),
    "log softmax": (lambda x: x.log_softmax(-1), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X * 30,)),
    "std of all": (lambda x: x.std() + x.var() + x.min() + x.prod() + x.norm(), (X,)),
    "any of all": (lambda x: x.any() | x.all(0), (booleans(4, 2),)),
    "any": (lambda x: x.any(1), (booleans(4, 2),)),
    "all": (lambda x: x.all(), (booleans(4, 2),)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "cumsum integers": (lambda x: x.cumsum(0), (integers(7),)),
}
WINDOWS: dict[str, Case] = {
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "max pool dilated": (lambda x: F.max_pool2d(x, (2, 3), 1, 0, dilation=2), (IMAGE,)),
    "max pool ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (floats(1, 2, 8, 6),)),
    "max pool 1d": (lambda x: F.max_pool1d(x, 2), (X,)),
    "max pool 3d": (lambda x: F.max_pool3d(x, 2), (floats(1, 2, 4, 5, 6),)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "average pool inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (IMAGE,),
    ),
    "average pool ceil": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        (floats(1, 2, 8, 6),),
    ),
    "average pool ceil inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (floats(1, 2, 8, 6),),
    ),
    "average pool divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (IMAGE,)),
    "average pool 1d": (lambda x: F.avg_pool1d(x, 2, 1, 1), (X,)),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (floats(1, 3, 6, 9),)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (floats(1, 3, 6, 9),)),
    "adaptive 1d": (lambda x: F.adaptive_avg_pool1d(x, 2), (X,)),
    "average pool 3d": (lambda x: F.avg_pool3d(x, 2), (floats(1, 2, 4, 5, 6),)),
    "adaptive 3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), (floats(1, 2, 4, 5, 6),)),
    "max pool with places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (IMAGE,)),
    "max pool with places, ceil": (
        lambda x: F.max_pool2d(x, (2, 3), 2, 0, 1, True, return_indices=True),
        (IMAGE,),
    ),
    "unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 9)),
        (floats(1, 2, 7, 9),),
    ),
    "adaptive average of unequal windows": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    "adaptive max with places": (
        lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        (IMAGE,),
    ),
    "fold": (lambda x: F.fold(x, (4, 5), (2, 3), padding=(0, 1)), (floats(2, 12, 15),)),
    "area": (lambda x: F.interpolate(x, (3, 4), mode="area"), (IMAGE,)),
    **{
        f"antialiased {mode}": (
            lambda x, mode=mode: F.interpolate(x, (3, 5), mode=mode, antialias=True),
            (floats(1, 2, 9, 8),),
        )
        for mode in ("bilinear", "bicubic")
    },
    **{
        f"grid {mode} {padding} {aligned}": (
            partial(F.grid_sample, mode=mode, padding_mode=padding, align_corners=aligned),
            (IMAGE, floats(IMAGE.shape[0], 3, 5, 2)),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for aligned in (False, True)
    },
    "distances": (lambda x, y: torch.cdist(x, y, 1.5), (floats(2, 4, 3), floats(2, 5, 3))),
    "pair distances": (F.pdist, (floats(6, 4),)),
    "pool of one image": (lambda x: F.max_pool2d(x, 2), (IMAGE[0],)),
}
NORMALIZATION: dict[str, Case] = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b), (X, floats(3, 4), floats(3, 4))),
    "layer norm without weights": (lambda x: F.layer_norm(x, (4,)), (X,)),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), (X, ROW)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, ROW, ROW)),
    "instance norm": (F.instance_norm, (IMAGE,)),
}
PRODUCTS: dict[str, Case] = {
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, 2, (1, 0)),
        (IMAGE, floats(6, 4, 3, 3), floats(6)),
    ),
    "conv2d without bias": (lambda x, w: F.conv2d(x, w, dilation=2), (IMAGE, floats(6, 4, 3, 3))),
    "conv2d of one image": (F.conv2d, (IMAGE[0], floats(6, 4, 3, 3))),
    "grouped": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), (IMAGE, floats(6, 2, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), (IMAGE, floats(4, 1, 3, 3))),
    "depthwise twice": (lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, floats(8, 1, 3, 3))),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, floats(6, 4, 3, 5))),
    "same of even filters": (
        lambda x, w: F.conv2d(x, w, padding="same"),
        (IMAGE, floats(6, 4, 2, 4)),
    ),
    "valid": (lambda x, w: F.conv2d(x, w, padding="valid"), (IMAGE, floats(6, 4, 2, 4))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 1, 1), (X, floats(5, 3, 3), floats(5))),
    "conv1d depthwise": (lambda x, w: F.conv1d(x, w, groups=3), (X, floats(3, 1, 3))),
    "conv3d": (
        lambda x, w: F.conv3d(x, w, stride=(1, 2, 1)),
        (floats(1, 2, 4, 5, 6), floats(3, 2, 2, 3, 2)),
    ),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, dilation=(1, 2)),
        (IMAGE, floats(4, 3, 3, 2), floats(3)),
    ),
    "transposed by itself": (F.conv_transpose2d, (IMAGE, floats(4, 3, 2, 2))),
    "transposed groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), groups=2),
        (IMAGE, floats(4, 3, 3, 3)),
    ),
    "transposed depthwise": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=4),
        (IMAGE, floats(4, 1, 2, 2)),
    ),
    "transposed 1d": (lambda x, w: F.conv_transpose1d(x, w, stride=3), (X, floats(3, 2, 4))),
    "transposed 3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2),
        (floats(1, 2, 2, 3, 2), floats(2, 3, 2, 2, 2)),
    ),
    "linear": (F.linear, (X, floats(5, 4), floats(5))),
    "linear of a vector": (F.linear, (ROW, floats(5, 4), floats(5))),
    "linear to a scalar": (F.linear, (X, floats(4))),
    "mm": (torch.mm, (floats(3, 4), floats(4, 5))),
    "mv": (torch.mv, (floats(3, 4), floats(4))),
    "dot": (torch.dot, (floats(4), floats(4))),
    "outer": (torch.outer, (floats(4), floats(3))),
    "int_mm": (
        torch._int_mm,
        (
            torch.randint(-128, 128, (18, 16)).to(torch.int8),
            (torch.randint(-128, 128, (16, 8))).to(torch.int8),
        ),
    ),
    "bmm": (torch.bmm, (X, floats(2, 4, 5))),
    "matmul": (torch.matmul, (floats(2, 1, 3, 4), floats(5, 4, 6))),
    "matmul of a row": (torch.matmul, (floats(4), floats(5, 4, 6))),
    "matmul of a column": (torch.matmul, (X, floats(4))),
    "matmul of shared rows": (torch.matmul, (floats(3, 4), floats(5, 4, 6))),
    "matmul crosswise": (torch.matmul, (floats(2, 1, 3, 4), floats(1, 5, 4, 2))),
    "addmm": (torch.addmm, (floats(5), floats(3, 4), floats(4, 5))),
    "addmm scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        (floats(3, 5), floats(3, 4), floats(4, 5)),
    ),
    "addmm alone": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0),
        (floats(3, 5), floats(3, 4), floats(4, 5)),
    ),
    "addmv": (torch.addmv, (floats(3), floats(3, 4), ROW)),
    "baddbmm": (torch.baddbmm, (floats(2, 3, 5), X, floats(2, 4, 5))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), (X, floats(2, 5, 4))),
    "einsum of three axes": (lambda a, b: torch.einsum("abc,cb->ca", a, b), (X, floats(4, 3))),
    "attention": (F.scaled_dot_product_attention, (floats(2, 3, 5, 4),) * 3),
    "causal": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        (floats(2, 3, 5, 4), floats(2, 3, 5, 4)),
    ),
    "masked": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m, scale=0.3),
        (floats(2, 3, 5, 4), floats(2, 3, 6, 4), floats(5, 6)),
    ),
    "masked by Booleans": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
        (floats(2, 3, 5, 4), floats(2, 3, 6, 4), booleans(5, 6) | (torch.arange(6) == 0)),
    ),
    "shared keys": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (floats(2, 6, 5, 4), floats(2, 2, 5, 4)),
    ),
}

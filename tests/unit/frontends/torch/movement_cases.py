"""Operators that move elements or pick some."""

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.frontends.torch.inputs import IMAGE, ROW, Case, X, Y, floats, integers  # noqa: E402

F = torch.nn.functional
aten = torch.ops.aten


MOVEMENT: dict[str, Case] = {
    "view": (lambda x: x.view(6, 4), (X,)),
    "flatten": (lambda x: x.flatten(1), (IMAGE,)),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), (IMAGE,)),
    "unsqueeze": (lambda x: x.unsqueeze(-2), (X,)),
    "squeeze": (lambda x: x[:, :1].squeeze(1), (X,)),
    "permute": (lambda x: x.permute(0, 2, -1, 1), (IMAGE,)),
    "transpose": (lambda x: x.transpose(1, -1), (X,)),
    "t": (lambda x: x.t(), (floats(3, 5),)),
    "T": (lambda x: x.T, (floats(3, 5),)),
    "mT": (lambda x: x.mT, (X,)),
    "movedim": (lambda x: x.movedim((0, 3), (2, 0)), (IMAGE,)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), (X,)),
    "expand": (lambda x: x.expand(3, 5, -1), (floats(5, 1).expand(5, 4),)),
    "expand as": (lambda x, y: x.expand_as(y), (ROW, X)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (floats(2, 3),)),
    "tile": (lambda x: x.tile(2, 3), (floats(2, 3),)),
    "repeat each": (lambda x: x.repeat_interleave(3, 1), (X,)),
    "repeat each of all": (lambda x: x.repeat_interleave(2), (X,)),
    "slice": (lambda x: x[:, 1:6:2, -3:], (IMAGE.transpose(1, 2).contiguous(),)),
    "slice beyond": (lambda x: x[:, -99:99], (X,)),
    "select": (lambda x: x[:, -1], (X,)),
    "narrow": (lambda x: x.narrow(2, 1, 2), (X,)),
    "split": (lambda x: x.split(3, -1), (X,)),
    "split sizes": (lambda x: x.split([1, 2], 1), (X,)),
    "chunk": (lambda x: x.chunk(2, 1), (X,)),
    "tensor split": (lambda x: x.tensor_split(3, 2), (X,)),
    "unbind": (lambda x: x.unbind(1), (X,)),
    "cat": (lambda x, y: torch.cat([x, y, x], 1), (X, Y)),
    "cat of types": (lambda x, y: torch.cat([x, y], -1), (X, integers(2, 3, 2))),
    "stack": (lambda x, y: torch.stack([x, y], -1), (X, Y)),
    "flip": (lambda x: x.flip(0, -1), (X,)),
    "roll": (lambda x: x.roll((1, -2), (0, 2)), (X,)),
    "roll of all": (lambda x: x.roll(5), (X,)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), (X,)),
    "pad cut": (lambda x: F.pad(x, (-1, 2, -1, 0)), (X,)),
    "pad reflect": (lambda x: F.pad(x, (2, 1, 3, 0), mode="reflect"), (IMAGE,)),
    "pad edge": (lambda x: F.pad(x, (2, 1, 3, 0), mode="replicate"), (IMAGE,)),
    "pad circular": (lambda x: F.pad(x, (2, 1, 3, 0), mode="circular"), (IMAGE,)),
    "reflection pad": (lambda x: aten.reflection_pad1d(x, [2, 1]), (X,)),
    "replication pad": (lambda x: aten.replication_pad2d(x, [2, 1, 1, 0]), (IMAGE,)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (floats(2, 8, 3, 5),)),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (floats(2, 3, 4, 6),)),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), (IMAGE,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    "nearest to a size": (lambda x: F.interpolate(x, (10, 5)), (IMAGE,)),
    "nearest exact": (lambda x: F.interpolate(x, (10, 5), mode="nearest-exact"), (IMAGE,)),
    "nearest 1d": (lambda x: F.interpolate(x, 9), (X,)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "bilinear smaller": (lambda x: F.interpolate(x, (5, 4), mode="bilinear"), (IMAGE,)),
    "bilinear aligned": (
        lambda x: F.interpolate(x, (13, 1), mode="bilinear", align_corners=True),
        (IMAGE,),
    ),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "linear": (lambda x: F.interpolate(x, 9, mode="linear"), (X,)),
    "trilinear": (
        lambda x: F.interpolate(x, (4, 5, 6), mode="trilinear"),
        (floats(1, 2, 3, 3, 4),),
    ),
    "store a slice": (lambda x, y: _stored(x, y, 1), (X, floats(2, 2, 4))),
    "store at an index": (lambda x, y: _stored(x, y, None), (X, floats(2, 4))),
    "upper triangle": (lambda x: x.triu(1), (floats(4, 5),)),
    "lower triangle": (lambda x: x.tril(), (floats(4, 5),)),
    "shape of zeros": (lambda x: torch.zeros_like(x) + torch.arange(4), (X,)),
    "filled": (
        lambda x: x * torch.full_like(x, 0.3) + torch.ones_like(x) + x.new_zeros(4),
        (X,),
    ),
    "views": (
        lambda x, y: x.reshape(4, -1).view_as(y).reshape_as(x).ravel() + x.view(1, 24),
        (X, floats(3, 8)),
    ),
    "squeeze all": (lambda x: x.squeeze() + x.squeeze((0, 2)), (floats(1, 3, 1),)),
    "split at places": (lambda x: x.tensor_split([1, 2], 1), (X,)),
    "other padding": (
        lambda x: aten.reflection_pad2d(aten.replication_pad2d(x, [1, 0, 2, 1]), [1, 2, 0, 1]),
        (IMAGE,),
    ),
    "other sizes": (
        lambda x: aten.upsample_nearest2d(aten.upsample_bilinear2d(x, [9, 6], False), [18, 6]),
        (IMAGE,),
    ),
    "identity": (lambda x: x, (X,)),
    "twice": (lambda x: (x + 1, x, x), (X,)),
    "copies": (lambda x: x.clone().contiguous().detach() + F.dropout(x, 0.5, False), (X,)),
}


def _stored(x: Any, y: Any, start: int | None) -> Any:
    x = x.clone()
    if start is None:
        x[:, 1] = y
    else:
        x[:, start:] = y
    return x * 2


def _scatter_reduced(x: Any, index: Any, source: Any, *, name: str, includes: bool) -> Any:
    return x.scatter_reduce(1, index, source, name, include_self=includes)


TARGETS = integers(1, 3, 4, low=0, high=2)
"""Indices that differ from each other along the axis, which is scattered along."""
REPEATED, ROWS = integers(2, 5, 4, low=0, high=3), integers(5, low=0, high=3)
COPIED = torch.tensor([3, 1])
INDEXING: dict[str, Case] = {
    "embedding": (F.embedding, (integers(2, 5, low=0), floats(10, 3))),
    "index select": (lambda x, i: x.index_select(1, i), (X, integers(5, low=0, high=3))),
    "index": (lambda x, i: x[:, i], (X, integers(5, low=-3, high=3))),
    "two indices": (
        lambda x, i, j: x[:, i, j],
        (IMAGE, integers(5, 1, low=-4, high=4), integers(6, low=0, high=7)),
    ),
    "indices apart": (
        lambda x, i, j: x[i, :, j],
        (IMAGE, integers(6, low=0, high=2), integers(6, low=0, high=7)),
    ),
    "gather": (lambda x, i: x.gather(1, i), (X, integers(2, 5, 4, low=0, high=3))),
    "gather fewer": (lambda x, i: x.gather(2, i), (X, integers(1, 2, 6, low=0, high=4))),
}
TIES = integers(3, 9, low=-2, high=3)
SORTING: dict[str, Case] = {
    "sort": (lambda x: x.sort(1), (X,)),
    "sort descending": (lambda x: x.sort(stable=True, dim=-1, descending=True), (TIES,)),
    "argsort": (lambda x: x.argsort(stable=True, dim=0), (TIES,)),
    "msort": (torch.msort, (X,)),
    "topk": (lambda x: x.topk(2, 1), (X,)),
    "topk smallest": (lambda x: x.topk(3, largest=False), (X,)),
    "kthvalue": (lambda x: x.kthvalue(2, 1, keepdim=True), (X,)),
    "median": (lambda x: x.median(), (X,)),
    "median of an axis": (lambda x: x.median(-1), (floats(4, 7),)),
    "max with index": (lambda x: x.max(1), (X,)),
    "min with index": (lambda x: x.min(-1, keepdim=True), (X,)),
    "argmax": (lambda x: x.argmax(1), (X,)),
    "argmin of all": (lambda x: x.argmin(), (X,)),
    "cummax": (lambda x: x.cummax(1), (TIES,)),
    "cummin": (lambda x: x.cummin(0), (X,)),
    "cumprod": (lambda x: x.cumprod(2), (X,)),
    "bucketize": (lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5), right=True), (X,)),
    "searchsorted": (lambda e, x: torch.searchsorted(e.sort().values, x), (floats(2, 5), X[0, :2])),
}
SCATTERING: dict[str, Case] = {
    "scatter": (lambda x, i, y: x.scatter(0, i, y), (X, TARGETS, floats(1, 3, 4))),
    "scatter a number": (lambda x, i: x.scatter(2, i, 1.5), (X, integers(2, 3, 2, low=0, high=4))),
    "scatter add": (lambda x, i, y: x.scatter_add(1, i, y), (X, REPEATED, floats(2, 5, 4))),
    **{
        f"scatter {name} {includes}": (
            partial(_scatter_reduced, name=name, includes=includes),
            (X, REPEATED, floats(2, 5, 4)),
        )
        for name in ("sum", "prod", "mean", "amax", "amin")
        for includes in (True, False)
    },
    "index add": (lambda x, i, y: x.index_add(1, i, y, alpha=2), (X, ROWS, floats(2, 5, 4))),
    "index copy": (lambda x, i, y: x.index_copy(2, i, y), (X, COPIED, floats(2, 3, 2))),
    "index fill": (lambda x, i: x.index_fill(1, i, -1.0), (X, ROWS)),
    "index put": (
        lambda x, i, j, y: x.index_put((i, j), y),
        (X, integers(1, low=0, high=2), integers(1, low=0, high=3), floats(1, 4)),
    ),
    "index put accumulated": (
        lambda x, i, y: aten.index_put(x, [None, i], y, True),
        (X, ROWS, floats(5, 4)),
    ),
    "masked put": (lambda x: x.index_put((x > 0,), torch.tensor(0.5)), (X,)),
    "masked scatter": (lambda x, y: x.masked_scatter(x > 0, y), (X, floats(24))),
    "put": (
        lambda x, i, y: x.put(i, y, accumulate=True),
        (X, integers(6, low=0, high=24), floats(6)),
    ),
    "diagonal": (lambda x: x.diagonal(1, 0, 2), (X,)),
    "trace": (torch.trace, (floats(3, 5),)),
    "as strided": (lambda x: x.as_strided((2, 3), (5, 2), 1), (X,)),
    "unfold": (lambda x: x.unfold(2, 3, 1), (X,)),
}

"""Branches: the one that a constant condition takes is translated in the operator's place."""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.frontends.onnx.model import Body
from cpembed.frontends.onnx.site import Site, Translation


def if_(site: Site) -> Sequence[str]:
    condition = site.builder.value(site.input())
    if condition is None:
        site.refuse(
            "its condition is computed while the network runs: export the model with the branch "
            "that is meant"
        )
    body = site.attribute("then_branch" if condition.reshape(-1)[0] else "else_branch")
    if not isinstance(body, Body):
        site.refuse("it has no such branch: the file is damaged")
    return site.run(body)


def refused(what: str) -> Translation:
    def translate(site: Site) -> str:
        site.refuse(f"{what}: export the model with its steps written out")

    return translate


TABLE: dict[str, Translation] = {
    "If": if_,
    "Loop": refused("loops are not read"),
    "Scan": refused("scans are not read"),
}

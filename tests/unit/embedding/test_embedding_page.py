"""The page of definitions: what docstrings cite is there, and its example is what comes out."""

import re
from pathlib import Path

import pytest

import cpembed
from cpembed.embedding.constraints import CONSTRAINTS
from cpembed.embedding.cpsat import Status
from cpembed.transform import rewrites
from cpembed.transform.rewrites import Rewrite

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)


def citations(text: str) -> list[str]:
    """The sections of the page that a text cites, None of which may be left out."""
    mentions = len(re.findall(r"embedding\.md", text))
    cited = re.findall(r'docs/embedding\.md,\s+"([^"]+)"', text)
    assert len(cited) == mentions, f"a citation without a section: {text[:200]}"
    return [" ".join(section.split()) for section in cited]


def test_every_section_that_is_cited_exists():
    cited = {
        section
        for folder in ("cpembed", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
        for section in citations(path.read_text(encoding="utf-8"))
    }
    assert cited
    assert cited <= set(SECTIONS)
    assert {"Axis maps", "Program and proof", "Ground truth"} <= cited


def test_links_within_the_page_lead_to_sections():
    anchors = {section.lower().replace(" ", "-") for section in SECTIONS}
    links = re.findall(r"\(#([^)]+)\)", PAGE)
    assert links
    assert set(links) <= anchors


def first_cells(section: str) -> list[str]:
    """The code in the first column of a section's tables."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def test_every_constraint_and_every_rewrite_is_defined():
    assert sorted(first_cells("Constraints")) == sorted(CONSTRAINTS)
    kinds = [kind for kind in vars(rewrites).values() if isinstance(kind, type)]
    names = [kind.name for kind in kinds if issubclass(kind, Rewrite) and hasattr(kind, "name")]
    assert sorted(first_cells("Rewrites")) == sorted(names)


@pytest.fixture(scope="module")
def layer():
    words = re.search(r"cpembed explain (.+?) --target vta_1x16x16 --constraints fused", PAGE)
    assert words
    return cpembed.workload(words[1], target="vta_1x16x16")


def test_the_example_has_the_figures_on_the_page(layer):
    result = cpembed.solve(layer, "vta_1x16x16", constraints="fused")
    best = result.embeddings[0]
    embedding, costs = best.candidate.embedding, best.overheads
    assert embedding.family == {"x": (), "y": ("k",), "z": ("c", "r", "s")}
    assert [(d.axis, d.count, d.stride) for d in embedding.digits["z"]] == [("c_r_s", 16, 1)]
    example = " ".join(PAGE.split("## Worked example")[1].split())
    for figure in (
        f"{costs.calls} executions",
        f"{costs.executed_macs:,} products for {costs.macs:,}",
        f"{100 * costs.utilisation:.1f} %",
        f"own {costs.footprint['O']} elements",
        f"= {costs.footprint['W']}:",
        f"= {costs.footprint['I']:,}:",
        f"= {costs.packed_data:,} elements for {costs.data:,}",
        f"{costs.executed_macs - costs.macs:,} too many",
        f"{costs.packed_data - costs.data:,} too many",
        f"= {best.score:,.2f}.",
    ):
        assert figure in example, figure


def test_strict_has_no_embedding_of_the_example(layer):
    strict = cpembed.solve(layer, "vta_1x16x16", constraints="strict")
    assert strict.status is Status.INFEASIBLE

"""The page of definitions: what docstrings cite is there, and its example is what comes out."""

import re
from pathlib import Path

import pytest

import cpembed
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.constraints import CONSTRAINTS
from cpembed.embedding.cpsat import Status
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import (
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.parser import parse_computation
from cpembed.resources import constraint_files
from cpembed.transform import rewrites
from cpembed.transform.program import Rewrite
from tests.brute_force import embeddings, shipped_tables

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


def example_counts(name: str) -> tuple[int, int]:
    """How many lists of digits the second example has for x and for z under a set."""
    example = PAGE.split("An example to check an enumerator with")[1].split("\n## ")[0]
    sentence, *rows = example.split("\n| ")
    for row in rows:
        names, *cells = row.split(" | ")
        if f"`{name}`" in names:
            first, second = (cell.count(";") + 1 for cell in cells)
            return first, second
    assert f"`{name}`" in sentence
    return 0, 0


@pytest.mark.parametrize("name", sorted(constraint_files()))
def test_the_example_for_enumerators_is_what_they_find(name):
    sizes = {"p": 3, "r": 2, "c": 2}
    workload = parse_computation("O[p] += I[p+r,c] * W[r,c]", sizes, name="workload")
    unit = parse_computation("C[x] += A[x,z] * B[z]", {"x": 2, "z": 4}, name="unit")
    memory = {
        operand: OperandMemory("memory", tuple(map(TileDimension, axes)), rules)
        for operand, axes, rules in (
            ("A", "xz", {"x": StrideRule.ANY}),
            ("B", "z", {}),
            ("C", "x", {}),
        )
    }
    axes = (InstructionAxis("x", 2, 2), InstructionAxis("z", 4, 4))
    types = {operand.name: (operand.dtype,) for operand in unit.operands}
    instruction = Instruction("unit", axes, unit, types, memory)
    found = find_embeddings(workload, instruction, load_constraint_set(name))
    rows, columns = example_counts(name)
    assert found.complete
    assert len(found.embeddings) == rows * columns
    assert len(embeddings(workload, instruction, shipped_tables(name))) == rows * columns

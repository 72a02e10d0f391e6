"""``--id`` and ``explain --chosen``: the candidate that was printed is the one that is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpembed.targets import choice
from cpembed.targets.choice import ModelChoice
from tests.cli.calling import Caller
from tests.features import needs

GEMM = ("gemm", "m=8", "n=60", "k=200", "--target", "vta_1x16x16")
LAYER = ("conv2d", "n=1", "c=4", "h=6", "w=6", "k=16", "r=3", "s=3", "--target", "avx512_vnni")
needs_vnni = needs("avx512_vnni")


@pytest.mark.slow
def test_an_id_is_that_candidate_whatever_set_it_came_from(cpembed: Caller) -> None:
    words = ("conv2d", "n=1", "c=3", "h=6", "w=6", "k=16", "r=3", "s=3")
    target = ("--target", "vta_1x16x16")
    narrow = (*words, *target, "--constraints", "in_place_padded", "--all", "--json")
    default = {e["id"] for e in cpembed("solve", *narrow).json["embeddings"]}
    wider = cpembed("solve", *words, *target, "--constraints", "flattened", "--json").json
    other = next(e for e in wider["embeddings"] if e["id"] not in default)
    shown = cpembed("explain", *words, *target, "--id", other["id"], "--json")
    assert (shown.code, shown.err) == (0, "")
    assert shown.json["embedding"]["id"] == shown.json["candidate"] == other["id"]
    assert shown.json["embedding"]["axes"] == other["axes"]
    assert shown.json["constraints"] == shown.json["ranking_of"] != "in_place_padded"
    ran = cpembed("run", *words, *target, "--id", other["id"], "--json").json
    assert (ran["embedding"], ran["verified"]) == (other["id"], True)


def test_the_start_of_an_id_is_enough_where_one_begins_so(cpembed: Caller) -> None:
    found = cpembed("solve", *LAYER, "--all", "--json").json["embeddings"]
    second = next(e for e in found if e["rank"] == 2)["id"]
    shown = cpembed("explain", *LAYER, "--id", second[:8], "--json").json
    assert (shown["embedding"]["id"], shown["embedding"]["rank"]) == (second, 2)
    assert any(reason.startswith("behind #1") for reason in shown["ranking"])
    many = ("conv2d", "n=1", "c=64", "h=14", "w=14", "k=64", "r=3", "s=3")
    digits = "0123456789abcdef"
    called = [cpembed("explain", *many, "--target", "amx_int8", "--id", digit) for digit in digits]
    assert any("give more of it" in c.err and c.code == 2 for c in called)


@pytest.mark.parametrize(
    "wanted, words",
    [
        ("first", ("'first' is no id",)),
        ("0123456789ab", ("0123456789ab", "in_place_padded", "complete", "--constraints")),
    ],
)
def test_an_id_of_nothing_is_one_line(cpembed: Caller, wanted: str, words: tuple[str, ...]) -> None:
    for command in ("explain", "run"):
        cpembed(command, *GEMM, "--id", wanted).is_one_line_error(2, *words)


def test_an_id_of_another_target_says_which(cpembed: Caller) -> None:
    words = ("gemm", "m=64", "n=1", "k=64")
    there = cpembed("solve", *words, "--target", "avx512_vnni_dot", "--json").json
    wanted = there["embeddings"][0]["id"]
    called = cpembed("explain", *words, "--target", "avx512_vnni", "--id", wanted)
    called.is_one_line_error(2, wanted, "give --target avx512_vnni_dot")


@pytest.mark.parametrize(
    "options", [("--rank", "1", "--id", "ab"), ("--id", "ab", "--chosen"), ("--untuned",)]
)
def test_one_way_to_say_which(cpembed: Caller, options: tuple[str, ...]) -> None:
    cpembed("explain", *GEMM, *options).is_one_line_error(2, "explain --help")


def test_what_was_tuned_is_chosen_and_its_id_is_known(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPEMBED_TUNE_DIR", str(tmp_path))
    before = cpembed("explain", *GEMM, "--chosen", "--json").json
    assert (before["tuned"], before["embedding"]["rank"]) == (None, 1)
    best = cpembed("tune", *GEMM, "--trials", "12", "--json").json["best"]
    chosen = cpembed("explain", *GEMM, "--chosen", "--json").json
    ran = cpembed("run", *GEMM, "--json").json
    assert chosen["candidate"] == best["identifier"] == ran["embedding"]
    assert (chosen["tuned"], chosen["executed"]) == (ran["tuned"], "vta_1x16x16")
    shown = cpembed("explain", *GEMM, "--id", best["identifier"], "--json").json
    assert shown["candidate"] == best["identifier"]
    assert cpembed("explain", *GEMM, "--chosen", "--untuned", "--json").json["tuned"] is None


@needs_vnni
def test_the_chosen_variant_is_shown_and_found_again(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = choice.compared

    def variants_first(*arguments: Any, **named: Any) -> ModelChoice:
        found = compared(*arguments, **named)
        by_variant = sorted(found.estimates, key=lambda e: not e.ranked.candidate.variant)
        return replace(found, estimates=tuple(by_variant))

    monkeypatch.setattr(choice, "compared", variants_first)
    ran = cpembed("run", *LAYER, "--json").json
    assert ran["model"]["constraints"].startswith("in_place_padded, over")
    chosen = cpembed("explain", *LAYER, "--chosen", "--json").json
    assert (chosen["candidate"], chosen["ranking_of"]) == (
        ran["candidate"],
        ran["model"]["constraints"],
    )
    assert chosen["model"] == ran["model"]
    for command in ("explain", "run"):
        again = cpembed(command, *LAYER, "--id", ran["candidate"], "--json").json
        assert again["candidate"] == ran["candidate"]
    text = cpembed("explain", *LAYER, "--chosen").out
    assert (
        f"rank {ran['rank']} of {chosen['ranking_of']}, {ran['candidate']}, program proven" in text
    )
    assert "by estimate, packing and unpacking included" in text

"""The experiment on what is lost by not measuring everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.targets.x86 import features
from experiments.common import load
from tests.experiments.loading import script
from tests.features import require_features


@pytest.mark.slow
@pytest.mark.parametrize("target", ["amx_int8", "avx512_vnni"])
def test_all_schedules_are_beside_the_chosen_ones(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer of which nearly everything is hopeless."""
    require_features(hardware_spec(target))
    experiment = script("studies/cpu_choice")
    monkeypatch.setattr(experiment, "HOPELESS", 1.05)
    experiment.EXPERIMENT.run([f"unit16:12/{target}"], 2, tmp_path)
    row = load(tmp_path)[f"unit16:12/{target}"]
    assert 1 < row["measured"] <= row["schedules"]
    assert min(row["untuned_loss"], row["tuned_loss"], row["best_loss"]) == 0
    assert row["trials"] == 2
    text = (tmp_path / "results.md").read_text()
    assert f"| `{row['layer']}` |" in text.replace("unit16:12* ", "").replace("unit16:12 ", "")
    assert "kernels that tuning measures" in text


def test_rows_that_this_machine_cannot_compute_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(features, "cpu_features", frozenset)
    script("studies/cpu_choice").EXPERIMENT.run(["unit16:12/amx_int8"], 2, tmp_path)
    assert not load(tmp_path)
    assert "unit16:12/amx_int8: left out, missing: CPU feature amx_tile" in capsys.readouterr().err

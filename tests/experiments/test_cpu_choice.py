"""The experiment on what is lost by not measuring everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.api.solve import hardware_spec
from cpembed.backends.x86.features import missing_features
from experiments.vta_evaluation.rows import load
from tests.experiments.loading import script

LACKS = missing_features(hardware_spec("amx_int8"))
needs_amx = pytest.mark.skipif(bool(LACKS), reason=f"missing: {', '.join(LACKS)}")


@needs_amx
@pytest.mark.slow
def test_all_schedules_are_beside_the_chosen_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer of which nearly everything is hopeless."""
    experiment = script("cpu_choice")
    monkeypatch.setattr(experiment, "HOPELESS", 1.05)
    experiment.EXPERIMENT.run(["unit16:12"], 2, tmp_path)
    row = load(tmp_path)["unit16:12"]
    assert 1 < row["measured"] <= row["schedules"]
    assert min(row["untuned_loss"], row["tuned_loss"], row["best_loss"]) == 0
    assert row["trials"] == 2
    text = (tmp_path / "results.md").read_text()
    assert f"| `{row['layer']}` |" in text.replace("unit16:12* ", "").replace("unit16:12 ", "")
    assert "kernels that tuning measures" in text

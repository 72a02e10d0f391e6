"""A decoder with caches, from its file to tokens, beside ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime

from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from examples.decoder.generate import Decoder, main
from examples.decoder.model import Config, save
from tests.features import needs

SMALL = Config(
    vocabulary=64, width=64, layers=1, heads=4, kv_heads=2, head_width=16, hidden=96, context=16
)
PROMPT = [3, 14, 15, 9, 26]


class Referee:
    """The same decoder in ONNX Runtime, with caches of its own."""

    def __init__(self, config: Config, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.caches = config.caches()
        self.sessions = {
            tokens: onnxruntime.InferenceSession(
                str(save(config, tokens, folder / f"referee{tokens}.onnx")), options
            )
            for tokens in (len(PROMPT), 1)
        }

    def logits(self, tokens: list[int], first: int) -> Any:
        inputs = {"tokens": np.array([tokens]), "first": np.array([first]), **self.caches}
        logits, *caches = self.sessions[len(tokens)].run(None, inputs)
        self.caches = dict(zip(self.caches, caches, strict=True))
        return logits[0]


@pytest.mark.parametrize("level", [0, 4])
def test_the_graph_has_the_logits_of_onnx_runtime(level: int, tmp_path: Path) -> None:
    config = Config(**{**vars(SMALL), "accuracy_level": level})
    graph = load_model(save(config, len(PROMPT), tmp_path / "model.onnx"))
    inputs = {"tokens": np.array([PROMPT]), "first": np.array([0]), **config.caches()}
    results = evaluate(graph, inputs)
    referee = Referee(config, tmp_path)
    logits = referee.logits(PROMPT, 0)
    tolerance = 1e-4 if level == 0 else 0.05
    np.testing.assert_allclose(results["logits"][0], logits, tolerance, tolerance)
    np.testing.assert_allclose(results["keys.0"], referee.caches["past_keys.0"], 1e-2, tolerance)


@needs("avx2_f32")
@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 4])
def test_a_prompt_and_tokens_after_it(level: int, tmp_path: Path) -> None:
    """Logits and caches agree with ONNX Runtime's after the prompt and after each token, while the
    libraries write into the caches that they were passed."""
    config = Config(**{**vars(SMALL), "accuracy_level": level})
    decoder, referee = Decoder.compiled(config, len(PROMPT), tmp_path), Referee(config, tmp_path)
    addresses = {name: cache.ctypes.data for name, cache in decoder.caches.items()}
    tokens, position = PROMPT, 0
    for _ in range(4):
        ours, theirs = decoder.logits(tokens, position), referee.logits(tokens, position)
        tolerance = 1e-4 if level == 0 else 0.05
        np.testing.assert_allclose(ours, theirs, tolerance, tolerance)
        for name, cache in decoder.caches.items():
            np.testing.assert_allclose(cache, referee.caches[name], 1e-2, tolerance)
            assert cache.ctypes.data == addresses[name]
            # Nothing is written behind the position that was reached.
            assert not cache[:, :, position + len(tokens) :].any()
        position += len(tokens)
        tokens = [int(theirs.argmax())]
    assert decoder.decode.in_place == {
        "keys.0": "past_keys.0", "values.0": "past_values.0"
    }  # fmt: skip
    about = json.loads((tmp_path / "decode" / "decode.json").read_text())
    assert about["in_place"] == decoder.decode.in_place


@pytest.mark.parametrize("width", ["32", "100"])
def test_widths_that_heads_do_not_divide_are_one_line(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["generate", "--width", width])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "a multiple of 64" in capsys.readouterr().err

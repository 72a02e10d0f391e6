"""Inputs and answers of the trained networks, without the networks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from experiments.studies.trained_networks import sentences, trained


def test_words_are_split_into_the_longest_known_parts():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "lay", "layout", "##s", "##outs", ".", "un"]
    given = sentences.tokens("Layouts unlay.", words)
    found = [words[k] for k in given["input_ids"][0]]
    assert found[:8] == ["[CLS]", "layout", "##s", "[UNK]", ".", "[SEP]", "[PAD]", "[PAD]"]
    assert given["attention_mask"][0].tolist() == [1] * 6 + [0] * (sentences.SEQUENCE - 6)


def test_a_meaning_is_the_mean_of_the_tokens_that_count():
    hidden = np.zeros((1, 3, 2), np.float32)
    hidden[0] = [[3, 0], [0, 4], [9, 9]]
    found = sentences.meaning(hidden, np.array([[1, 1, 0]]))
    assert np.allclose(found, [0.6, 0.8])


def test_repeated_characters_count_once_unless_something_stands_between():
    characters = ["", "a", "b"]
    steps = np.eye(3, dtype=np.float32)[[0, 1, 1, 0, 1, 2, 2, 0]]
    assert trained.decoded(steps, characters) == "aab"


def test_a_letter_may_be_wrong_in_eight_bits_only(tmp_path, monkeypatch):
    line = trained.pictures.LINES[0]
    monkeypatch.setattr(trained.pictures, "LINES", (line,))
    monkeypatch.setattr(trained.pictures, "page", lambda: np.zeros((191, 384), np.uint8))
    monkeypatch.setattr(trained.pictures, "for_text", lambda *given: None)
    monkeypatch.setattr(trained, "alphabet", lambda path: ["", *"aegimnoqst"])
    for read, good, good_int8 in (
        ("segmentation", True, True),
        ("seqmentation", False, True),
        ("sementation", False, False),
        ("seqmentatiom", False, False),
    ):
        steps = np.zeros((1, 2 * len(read), 11), np.float32)
        for k, letter in enumerate(read):
            steps[0, 2 * k, 1 + "aegimnoqst".index(letter)] = 1
            steps[0, 2 * k + 1, 0] = 1
        for name, holds in (("ocr_rec.onnx", good), ("ocr_rec_int8.onnx", good_int8)):
            checks = list(trained.recognised(lambda inputs, steps=steps: steps, tmp_path / name))
            assert [check.holds for check in checks] == [holds]

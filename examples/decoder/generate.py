"""Continue a prompt with a decoder: one library for the prompt, one for each token after it.

    python -m examples.decoder.generate [--tokens 16] [--layers 2] [--width 128]

The caches are arrays of this script. Both libraries get them as inputs and as memory of their
outputs, so that a call writes the keys and values of its new tokens and nothing else of a cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cpembed
from cpembed.export.loader import aligned
from examples.decoder.model import Config, save

Array = NDArray[Any]


@dataclass(frozen=True)
class Decoder:
    """Libraries of a decoder and the caches that they share."""

    prefill: Any
    decode: Any
    caches: dict[str, Array]

    @classmethod
    def compiled(cls, config: Config, prompt: int, folder: Path, seed: int = 0) -> Decoder:
        """Compile a decoder for a prompt of a length.

        Parameters
        ----------
        config : Config
        prompt : int
            Number of tokens of the prompt.
        folder : Path
            Folder of the models and libraries.
        seed : int
            Seed of the weights.
        """
        networks: list[Any] = []
        for name, tokens in (("prefill", prompt), ("decode", 1)):
            path = save(config, tokens, folder / f"{name}.onnx", seed)
            networks.append(cpembed.compile(path, "native", folder=folder / name))
        caches: dict[str, Array] = {}
        for name, empty in config.caches().items():
            # Memory on a cache line, which a library uses without a copy.
            caches[name] = aligned(empty.shape, empty.dtype)
            caches[name][...] = empty
        return cls(*networks, caches)

    def logits(self, tokens: list[int], first: int) -> Array:
        """Append tokens at a position to the caches; return the logits of the next one."""
        network = self.decode if len(tokens) == 1 else self.prefill
        inputs = {
            "tokens": np.array([tokens], np.int64),
            "first": np.array([first], np.int64),
            **self.caches,
        }
        out = {name: self.caches[cache] for name, cache in network.in_place.items()}
        result: Array = network.run(inputs, out)["logits"][0]
        return result

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Return the ``count`` most likely tokens after a prompt, one after the other."""
        tokens = [int(self.logits(prompt, 0).argmax())]
        while len(tokens) < count:
            position = len(prompt) + len(tokens) - 1
            tokens.append(int(self.logits(tokens[-1:], position).argmax()))
        return tokens


def main() -> None:
    """Generate tokens after a random prompt, and print them with the time of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16, help="tokens to generate")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128, help="elements of a hidden state")
    parser.add_argument("--accuracy-level", type=int, default=0, help="4: activations in int8")
    arguments = parser.parse_args()
    width = arguments.width
    if width < 64 or width % 64:
        parser.error(f"--width {width}: two heads of 32 elements share keys: take a multiple of 64")
    if arguments.tokens < 1 or arguments.layers < 1:
        parser.error("--tokens and --layers are at least 1")
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, 256, 8)]
    config = Config(
        layers=arguments.layers, width=width, heads=width // 32, kv_heads=width // 64,
        hidden=2 * width, accuracy_level=arguments.accuracy_level,
        # The caches hold the prompt and all tokens after it.
        context=max(64, len(prompt) + arguments.tokens),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = Decoder.compiled(config, len(prompt), Path(folder))
        started = time.perf_counter()
        tokens = model.generate(prompt, arguments.tokens)
        seconds = time.perf_counter() - started
    print(f"{prompt} -> {tokens}")
    print(f"{config.weights:,} weights in the layers, {seconds / len(tokens) * 1e3:.2f} ms a token")


if __name__ == "__main__":
    main()

"""``python -m tests.models NAME [--int8 | --signed] -o FILE``: write a model as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.models.registry import MODELS, TINY, write, write_int8


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--int8", action="store_true", help="quantize: int8 weights, uint8 between")
    parser.add_argument("--signed", action="store_true", help="quantize: int8 weights and between")
    parser.add_argument("--tiny", action="store_true", help="the sizes of quick tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    sizes = {**(TINY[asked.name] if asked.tiny else {}), "seed": asked.seed}
    if asked.int8 or asked.signed:
        write_int8(asked.name, asked.output, signed=asked.signed, **sizes)
    else:
        write(asked.name, asked.output, **sizes)
    print(f"{asked.output}: {asked.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

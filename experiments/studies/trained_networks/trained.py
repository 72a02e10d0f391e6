"""Check that trained networks still see, read and understand when our pipeline computes them.

    python -m experiments.studies.trained_networks.trained MODELS [--by reference] [--int8] [NAME]

``MODELS`` is the folder that ``collect.py`` wrote. ``--by``: ``reference``, the graph that the
front end makes of the file, by the definition of each kind of operator; ``onnxruntime``; or a
target, for which the network is compiled.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import write_document
from cpembed.errors import CpembedError
from cpembed.graph.graph import Graph, evaluate
from cpembed.runtime.measurement.environment import provenance
from experiments.studies.trained_networks import pictures, sentences

Arrays = Mapping[str, NDArray[Any]]
Engine = Callable[[Arrays], NDArray[Any]]
"""A function from the network's inputs to its first output."""


@dataclass(frozen=True)
class Check:
    """Expected answer of a network to an input, and its answer."""

    network: str
    input_name: str
    expected: str
    answer: str
    holds: bool
    seconds: float = 0.0


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", default=list(CHECKS), help=", ".join(CHECKS))
    parser.add_argument("--by", default="reference", help="reference, onnxruntime or a target")
    parser.add_argument("--int8", action="store_true", help="the quantized files")
    parser.add_argument("--output", type=Path, help="write the checks as JSON, too")
    options = parser.parse_args()
    checks: list[Check] = []
    for name in options.names:
        path = options.models / f"{name}{'_int8' if options.int8 else ''}.onnx"
        if not path.exists():
            print(f"{name} is left out: there is no {path}")
            continue
        for check in checked(name, path, options.by):
            checks.append(check)
            sign = "holds" if check.holds else "FAILS"
            print(
                f"{check.network:20} {check.input_name:34} expected {check.expected:26} "
                f"found {check.answer:30} {sign}  ({check.seconds:.1f} s)", flush=True,
            )  # fmt: skip
    failed = sum(not check.holds for check in checks)
    print(f"{len(checks)} checks by {options.by}, {failed} fail")
    if options.output is not None:
        rows = [asdict(check) for check in checks]
        document = {**provenance(), "by": options.by, "int8": options.int8, "checks": rows}
        write_document(options.output, document)
    raise SystemExit(bool(failed))


def checked(name: str, path: Path, engine_name: str) -> Iterator[Check]:
    """Yield a network's checks; one that fails if the network cannot be loaded or compiled.

    Parameters
    ----------
    name : str
        Key of :data:`CHECKS`.
    path : Path
        File of the network.
    engine_name : str
        ``reference``, ``onnxruntime`` or a target.
    """
    try:
        yield from CHECKS[name](engine(path, engine_name), path)
    except CpembedError as error:
        yield Check(path.stem, "the file", "a network that runs", str(error), False)


def engine(path: Path, engine_name: str) -> Engine:
    """Return a function that computes a network's first output."""
    if engine_name == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, dict(inputs))[0]
    from cpembed.frontends import load_model

    graph = load_model(path)
    if engine_name == "reference":
        return lambda inputs: evaluate(graph, inputs, lambda name: False)[graph.outputs[0]]
    run = compiled(graph, engine_name)
    return lambda inputs: run(inputs)[graph.outputs[0]]


def compiled(graph: Graph, target: str) -> Callable[[Arrays], dict[str, NDArray[Any]]]:
    """Return a function from inputs to outputs by name that calls a network's library."""
    from cpembed.network.build import compile_model

    return compile_model(graph, target).run


def classified(run: Engine, path: Path) -> Iterator[Check]:
    """Yield checks of photographs: the right class is the likeliest.

    Of a cat it may be any of three that look alike.
    """
    alike = {285: (281, 282, 285)}
    for photograph in pictures.PHOTOGRAPHS:
        picture = pictures.for_classification(pictures.photograph(photograph.name))
        scores, seconds = timed(run, {"input": picture})
        best = int(scores.argmax())
        holds = best in alike.get(photograph.label, (photograph.label,))
        expected = f"{photograph.label} {photograph.words}"
        yield Check(path.stem, f"photograph {photograph.name}", expected, str(best), holds, seconds)


def recognised(run: Engine, path: Path) -> Iterator[Check]:
    """Yield checks of the characters of printed lines.

    Spaces do not count, nor does one letter in eight bits.
    """
    wrong_letters = 1 if path.stem.endswith("_int8") else 0
    characters = alphabet(path.with_stem("ocr_rec"))
    for line in pictures.LINES:
        scores, seconds = timed(run, {"x": pictures.for_text(line.picture, 48, 320)})
        text_read = decoded(scores[0], characters)
        read, printed = text_read.replace(" ", ""), line.text.replace(" ", "")
        differing = sum(a != b for a, b in zip(read, printed, strict=False))
        holds = len(read) == len(printed) and differing <= wrong_letters
        yield Check(path.stem, f"rows {line.rows} of a page", line.text, text_read, holds, seconds)


def alphabet(path: Path) -> list[str]:
    """Return the characters of the recogniser's classes; the first is empty."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    (text,) = (p.value for p in model.metadata_props if p.key == "character")
    return ["", *text.splitlines(), " "]


def decoded(scores: NDArray[np.float32], characters: list[str]) -> str:
    """Return the likeliest character of every step; repeated ones count once."""
    best = scores.argmax(-1)
    changed = np.concatenate([[True], best[1:] != best[:-1]])
    return "".join(characters[k] for k in best[changed])


def detected(run: Engine, path: Path) -> Iterator[Check]:
    """Yield checks that there is text where lines are printed, and none where the page is empty."""
    page = pictures.page()
    scores, seconds = timed(run, {"x": pictures.for_text(page, 384, 768)})
    text = (scores[0, 0] > 0.3).reshape(192, 2, 384, 2).any((1, 3))
    for line in pictures.LINES:
        covered = float(text[slice(*line.rows), slice(*line.columns)].any(0).mean())
        yield Check(path.stem, f"rows {line.rows}", "text along 80%", f"{covered:.0%}",
                    covered > 0.8, seconds)  # fmt: skip
    for rows in pictures.LINES_BETWEEN:
        covered = float(text[slice(*rows)].any(0).mean())
        yield Check(path.stem, f"rows {rows}", "no text", f"{covered:.0%}", covered < 0.1, seconds)


def upright(run: Engine, path: Path) -> Iterator[Check]:
    """Yield checks that a line of text stands upright, and that the same line turned does not."""
    for line in pictures.LINES:
        for turned in (False, True):
            picture = line.picture[::-1, ::-1] if turned else line.picture
            scores, seconds = timed(run, {"x": pictures.for_text(picture, 48, 192)})
            best = int(scores[0].argmax())
            yield Check(path.stem, f"rows {line.rows}", ("upright", "turned")[turned],
                        ("upright", "turned")[best], best == turned, seconds)  # fmt: skip


def understood(run: Engine, path: Path) -> Iterator[Check]:
    """Yield checks that sentences that mean the same are nearer to each other than to others."""
    words = path.with_name("minilm.txt").read_text(encoding="utf-8").splitlines()
    meanings: dict[str, NDArray[np.float32]] = {}
    seconds = 0.0
    for text in (*sentences.NEAR, *sentences.FAR):
        inputs = sentences.tokens(text, words)
        hidden, seconds = timed(run, inputs)
        meanings[text] = sentences.meaning(hidden, inputs["attention_mask"])
    first, second = (meanings[text] for text in sentences.NEAR)
    near = float(first @ second)
    for text in sentences.FAR:
        far = float(first @ meanings[text])
        yield Check(path.stem, text[:34], f"less than {near:.2f} / 2", f"{far:.2f}",
                    far < near / 2, seconds)  # fmt: skip


def heard(run: Engine, path: Path) -> Iterator[Check]:
    """Yield checks that nobody speaks in silence, nor in noise."""
    random = np.random.default_rng(0)
    for sound_name, loudness in (("silence", 0.0), ("noise", 0.01)):
        sound = (loudness * random.standard_normal((1, 576))).astype(np.float32)
        state = np.zeros((2, 1, 128), np.float32)
        scores, seconds = timed(run, {"input": sound, "state": state})
        score = float(scores.max())
        yield Check(path.stem, sound_name, "no voice", f"{score:.2f}", score < 0.5, seconds)


def timed(run: Engine, inputs: Arrays) -> tuple[NDArray[Any], float]:
    """Return the output and the seconds that it took."""
    started = time.perf_counter()
    output = run(inputs)
    return output, time.perf_counter() - started


CHECKS: dict[str, Callable[[Engine, Path], Iterator[Check]]] = {
    "efficientnet_lite0": classified,
    "ocr_rec": recognised,
    "ocr_det": detected,
    "ocr_cls": upright,
    "minilm": understood,
    "silero_vad": heard,
}

if __name__ == "__main__":
    main()

"""Documents of networks, as ``cpembed network --json`` prints them, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TARGET = "avx512_vnni"


def operator(name: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any) -> Any:
    return {
        "name": name,
        "kind": "elementwise",
        "label": "add",
        "inputs": list(inputs),
        "outputs": list(outputs),
        "workload": None,
        "macs": 0,
        "embedded_on": None,
        "embedding": None,
        "family": None,
        "utilisation": None,
        "reason": None,
        "predicted_us": 2.0,
        "measured_us": 2.5,
        "verified": True,
        **more,
    }


def product(name: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any) -> Any:
    given = {
        "kind": "product",
        "label": "conv2d",
        "workload": "O[n, k, p, q] += (I[n, c, p + r - 1, q + s - 1] * W[k, c, r, s])",
        "macs": 115_605_504,
        "embedded_on": TARGET,
        "embedding": "a8d74cd168cd",
        "family": "y ← k   z ← c",
        "utilisation": 0.875,
        "predicted_us": 120.0,
        "measured_us": 131.5,
        **more,
    }
    return operator(name, inputs, outputs, **given)


def document(operators: Sequence[Any], name: str = "small", **more: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for each in operators:
        for tensor in (*each["inputs"], *each["outputs"]):
            tensors[tensor] = {
                "shape": [1, 64, 56, 56],
                "dtype": "uint8",
                "layout": "NHWC halo 1,1",
                "conversions": [],
            }
    products = [each for each in operators if each["workload"] is not None]
    return {
        "network": name,
        "target": TARGET,
        "threads": 2,
        "provenance": "measured",
        "operators": list(operators),
        "tensors": tensors,
        "totals": {
            "predicted_us": sum(each["predicted_us"] or 0 for each in operators),
            "measured_us": sum(each["measured_us"] or 0 for each in operators),
            "cold_us": 5000.0,
            "bytes_workspace": 3 << 20,
            "bytes_weights": 11 << 20,
            "embedded": sum(each["embedded_on"] is not None for each in products),
            "products": len(products),
            "macs": sum(each["macs"] for each in operators),
        },
        "assignment": {
            "cost_us": 1000.0,
            "bound_us": 990.0,
            "gap": 0.01,
            "proven": False,
            "seconds": 1.25,
            "options": 4321,
            "layouts": 97,
            "channels_last_us": 1100.0,
            "own_best_us": 1400.0,
        },
        "machine": {"cpu": "Some CPU", "cores": 2},
        **more,
    }


def residual(blocks: int, **more: Any) -> dict[str, Any]:
    """Blocks of two convolutions beside a short cut, with every state of an operator."""
    operators: list[Any] = [product("/stem/Conv", ["image"], ["t0"], measured_us=310.0)]
    for block in range(blocks):
        before, prefix = operators[-1]["outputs"][0], f"/layer1/layer1.{block}"
        operators.append(product(f"{prefix}/conv1/Conv", [before, f"w{block}.1"], [f"a{block}"]))
        short = before
        if block % 3 == 2:
            short = f"s{block}"
            operators.append(
                product(
                    f"{prefix}/downsample/Conv",
                    [before],
                    [short],
                    embedded_on="avx512_vnni_dot",
                    reason="faster by estimate",
                )
            )
        if block % 3 == 1:
            operators.append(
                product(
                    f"{prefix}/odd/Conv",
                    [f"a{block}"],
                    [f"o{block}"],
                    embedded_on=None,
                    embedding=None,
                    family=None,
                    utilisation=None,
                    reason="axis z cannot be fed",
                )
            )
        middle = operators[-1]["outputs"][0] if block % 3 == 1 else f"a{block}"
        operators.append(product(f"{prefix}/conv2/Conv", [middle], [f"b{block}"]))
        operators.append(operator(f"{prefix}/Add", [f"b{block}", short], [f"t{block + 1}"]))
    found = document(operators, **more)
    found["tensors"]["a0"]["conversions"] = [{"to": "NCHW16c", "us": 3.25}]
    return found


def attention(layers: int) -> dict[str, Any]:
    """Layers of a transformer: three branches, two products of activations, a short cut."""
    operators: list[Any] = [operator("/embeddings/Add", ["ids"], ["h0"])]
    for n in range(layers):
        prefix, source = f"/encoder/layer.{n}", f"h{n}"
        for part in "qkv":
            name = f"{prefix}/attention/{part}/MatMul"
            operators.append(product(name, [source], [f"{part}{n}"], label="gemm"))
            operators.append(
                operator(f"{prefix}/attention/{part}/Transpose", [f"{part}{n}"], [f"{part}t{n}"])
            )
        scores, weights, values = f"s{n}", f"p{n}", f"c{n}"
        operators += [
            product(
                f"{prefix}/scores/MatMul", [f"qt{n}", f"kt{n}"], [scores], label="batched_gemm"
            ),
            operator(f"{prefix}/Softmax", [scores], [weights], label="softmax"),
            product(f"{prefix}/values/MatMul", [weights, f"vt{n}"], [values], label="batched_gemm"),
            product(f"{prefix}/output/dense/MatMul", [values], [f"d{n}"], label="gemm"),
            operator(f"{prefix}/output/Add", [f"d{n}", source], [f"r{n}"]),
            operator(f"{prefix}/output/LayerNorm", [f"r{n}"], [f"l{n}"], label="layer norm"),
            product(f"{prefix}/intermediate/MatMul", [f"l{n}"], [f"i{n}"], label="gemm"),
            operator(f"{prefix}/intermediate/Gelu", [f"i{n}"], [f"g{n}"], label="gelu"),
            product(f"{prefix}/ffn/MatMul", [f"g{n}"], [f"f{n}"], label="gemm"),
            operator(f"{prefix}/ffn/Add", [f"f{n}", f"l{n}"], [f"x{n}"]),
            operator(f"{prefix}/ffn/LayerNorm", [f"x{n}"], [f"h{n + 1}"], label="layer norm"),
        ]
    return document(operators, "bert")

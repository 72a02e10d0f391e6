"""Static quantization by PT2E."""

import warnings
from typing import Any

import torch


def quantized(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> torch.nn.Module:
    """A model whose products, sums and pools are quantized, observed on an input and noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
            X86InductorQuantizer,
            get_default_x86_inductor_quantization_config,
        )

        config = get_default_x86_inductor_quantization_config(**options)
        captured = torch.export.export(model.eval(), (x,)).module()
        prepared = prepare_pt2e(captured, X86InductorQuantizer().set_global(config))
        with torch.no_grad():
            prepared(x)
            prepared(torch.randn_like(x))
        return convert_pt2e(prepared)

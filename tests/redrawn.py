"""Models whose parameters tell every difference: none is 0, 1 or that of another."""

import torch


def redrawn(model, deviation=0.2):
    """Every parameter drawn anew, biases and norms too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() or "ln_" in name
            parameter.normal_(float(is_norm and name.endswith("weight")), deviation)
    return model.eval()

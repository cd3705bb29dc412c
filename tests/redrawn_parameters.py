"""Random parameters, so that an exchanged or ignored parameter changes the output."""

import torch


def redrawn(model, deviation=0.2):
    """Draw new values for every parameter, including biases and norms."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() or "ln_" in name
            parameter.normal_(float(is_norm and name.endswith("weight")), deviation)
    return model.eval()

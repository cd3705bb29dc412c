"""Floor 3: configurations and whole models."""

from heedful.models.directory import load_model, load_weights, weights_of, write_description
from heedful.models.gpt import GPT, GPTConfig, GPTOutput, loss, parameters

__all__ = [
    "GPT",
    "GPTConfig",
    "GPTOutput",
    "load_model",
    "load_weights",
    "loss",
    "parameters",
    "weights_of",
    "write_description",
]

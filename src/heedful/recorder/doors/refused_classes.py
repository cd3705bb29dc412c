"""Refuses, by class name, attention whose weights are not a map of queries × keys."""

from __future__ import annotations

from torch import nn

from heedful.errors import ArgumentError
from heedful.recorder.doors import transformers_interface
from heedful.recording.module_names import Modules

BAND = "a band of neighbours and a few global tokens"
BLOCKS = "blocks of neighbours"
LAYOUTS = {  # names of module classes, and what they attend by
    "AutoformerAttention": "delays of the whole series",
    "BigBirdBlockSparseAttention": "blocks and random blocks",
    "BigBirdPegasusBlockSparseAttention": "blocks and random blocks",
    "InformerProbSparseAttention": "a few chosen queries, and a mean for the others",
    "LEDEncoderSelfAttention": BAND,
    "LongformerSelfAttention": BAND,
    "LongT5LocalAttention": BLOCKS,
    "LongT5TransientGlobalAttention": f"{BLOCKS} and a summary of each",
    "MraSelfAttention": "blocks at two resolutions",
    "NeighborhoodAttention": "a neighbourhood around each query",
    "NystromformerSelfAttention": "landmarks in place of keys",
    "PegasusXGlobalLocalAttention": f"{BLOCKS} and a few global tokens",
    "ReformerAttention": "buckets of hashed tokens",
    "YosoSelfAttention": "hashed tokens, without a softmax",
}


def modules_of(model: nn.Module) -> Modules:
    """Return all modules of a model with their names.

    Raises:
        ArgumentError: not a module, or a model with a module of a class in `LAYOUTS`.
        HeedfulError: a model of an old version of transformers, for which there is no door.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}",
            expected="a torch module",
            remedy="for a pipeline, pass its .model",
        )
    modules = {module: name for name, module in model.named_modules()}
    transformers_interface.check(modules)
    for module, name in modules.items():
        layout = LAYOUTS.get(type(module).__name__)
        if layout:
            raise ArgumentError(
                f"{name or 'the model'} is a {type(module).__name__}, which attends by {layout}",
                expected="attention whose weights are a map of queries × keys",
                remedy="record another model: maps of this one would be wrong",
            )
    return modules

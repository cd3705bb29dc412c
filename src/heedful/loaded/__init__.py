"""Floor 4: a model with its tokenizer as one thing, which reads a text and records it."""

from heedful.loaded.head_survey import LeftOut, Survey, survey
from heedful.loaded.heedful_models import (
    LoadedBert,
    LoadedGPT,
    LoadedHeedful,
    LoadedSeq2Seq,
    Positions,
)
from heedful.loaded.loaded_model import LoadedModel, Pass
from heedful.loaded.opening import check_tokenizer, open_as, open_model, open_ours
from heedful.loaded.segment_markers import Marked, Part
from heedful.loaded.transformers_models import LoadedTransformers
from heedful.loaded.truncation import TruncationWarning
from heedful.loaded.vision_models import ImageWarning, LoadedVision

open = open_model  # the name that `heedful.open` has; here it would hide Python's own

__all__ = [
    "TruncationWarning",
    "LeftOut",
    "Marked",
    "LoadedModel",
    "LoadedBert",
    "LoadedGPT",
    "LoadedHeedful",
    "LoadedSeq2Seq",
    "LoadedTransformers",
    "LoadedVision",
    "Survey",
    "Part",
    "Pass",
    "ImageWarning",
    "Positions",
    "check_tokenizer",
    "open_as",
    "open_model",
    "open_ours",
    "survey",
]

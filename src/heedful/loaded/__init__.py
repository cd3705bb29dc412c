"""A model with its tokenizer as one object, which reads texts and records attention on them."""

from heedful.loaded.head_survey import LeftOut, Survey, survey
from heedful.loaded.heedful_models import LoadedBert, LoadedGPT, LoadedHeedful, LoadedSeq2Seq
from heedful.loaded.loaded_model import LoadedModel, ModelInputs
from heedful.loaded.opening import check_tokenizer, open_as, open_heedful, open_model
from heedful.loaded.segment_markers import Marked, Part
from heedful.loaded.transformers_models import LoadedTransformers
from heedful.loaded.truncation import TruncationWarning
from heedful.loaded.vision_models import ImageWarning, LoadedVision

open = open_model  # for `heedful.open`; `open_model` does not hide Python's `open`

__all__ = [
    "ImageWarning", "LeftOut", "LoadedBert", "LoadedGPT", "LoadedHeedful", "LoadedModel",
    "LoadedSeq2Seq", "LoadedTransformers", "LoadedVision", "Marked", "ModelInputs", "Part",
    "Survey", "TruncationWarning", "check_tokenizer", "open_as", "open_heedful", "open_model",
    "survey",
]  # fmt: skip

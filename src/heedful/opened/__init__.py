"""Floor 4: a model with its tokenizer as one thing, which reads a text and records it."""

from heedful.opened.cutting import CutWarning
from heedful.opened.many_texts import LeftOut, OverTexts, over_texts
from heedful.opened.marks import Marked, Part
from heedful.opened.opening import check_tokenizer, open_as, open_model, open_ours
from heedful.opened.ours import OpenedBert, OpenedGPT, OpenedOurs, OpenedSeq2Seq, Positions
from heedful.opened.protocol import Opened, Pass
from heedful.opened.transformers_model import OpenedTransformers
from heedful.opened.vision import OpenedVision, PictureWarning

open = open_model  # the name that `heedful.open` has; here it would hide Python's own

__all__ = [
    "CutWarning",
    "LeftOut",
    "Marked",
    "Opened",
    "OpenedBert",
    "OpenedGPT",
    "OpenedOurs",
    "OpenedSeq2Seq",
    "OpenedTransformers",
    "OpenedVision",
    "OverTexts",
    "Part",
    "Pass",
    "PictureWarning",
    "Positions",
    "check_tokenizer",
    "open_as",
    "open_model",
    "open_ours",
    "over_texts",
]

"""Floor 4: every step from a text to a model's predictions, with its shape, formula and numbers.

Documents 000 (Chung), 001 (Pahwa), 002 and 003 (both after Raschka's book) build attention step by
step on a few words. This package shows the same steps on any text, computed by the layers.
Document 004 (Zhang, *LLM: From Zero to Hero*) goes on to the next word, as a whole model does.
"""

from heedful.explain.models import explain_bert, explain_gpt, explain_seq2seq
from heedful.explain.stage_types import Answer, Explanation, Formula, Likely, Section, Stage
from heedful.explain.variants import VARIANTS, document_004, explain, vector

__all__ = [
    "VARIANTS",
    "Answer",
    "Explanation",
    "Formula",
    "Likely",
    "Section",
    "Stage",
    "document_004",
    "explain",
    "explain_bert",
    "explain_gpt",
    "explain_seq2seq",
    "vector",
]

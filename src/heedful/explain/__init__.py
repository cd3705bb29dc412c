"""Every step from a text to a model's predictions, with its shape, formula and numbers.

Documents 000 (Chung), 001 (Pahwa), 002 and 003 (both after Raschka's book) build attention step by
step on a few words. Document 004 (Zhang, *LLM: From Zero to Hero*) builds a whole model.
This package explains the same steps on any text. `docs/documents.md` lists the five documents.
"""

from heedful.explain.models import explain_bert, explain_gpt, explain_seq2seq
from heedful.explain.stage_types import Answer, Explanation, Formula, Likely, Section, Stage
from heedful.explain.variants import VARIANTS, document_004, explain, vector

__all__ = [
    "Answer", "Explanation", "Formula", "Likely", "Section", "Stage", "VARIANTS",
    "document_004", "explain", "explain_bert", "explain_gpt", "explain_seq2seq", "vector",
]  # fmt: skip

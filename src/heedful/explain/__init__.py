"""Floor 4: every step of attention on a text, with its name, shape, formula and numbers.

Documents 000–003 build attention step by step on six words; here the same steps are taken on any
text, by the layers themselves.
"""

from heedful.explain.stages import Explanation, Stage
from heedful.explain.trained import explain_model
from heedful.explain.variants import VARIANTS, explain, vector

__all__ = ["VARIANTS", "Explanation", "Stage", "explain", "explain_model", "vector"]

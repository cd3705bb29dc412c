"""Translation: from a source to the likeliest targets, greedily or by beam search.

The search knows no text, only ids, and stands beside its model: `heedful.models.beam_search`.
"""

from heedful.models.beam_search import Search, Translation, translate

__all__ = ["Search", "Translation", "translate"]

"""Translation: from a source to the likeliest targets, greedily or by beam search.

The search knows no text, only ids, and stands beside its model: `heedful.models.search`.
"""

from heedful.models.search import Search, Translation, translate

__all__ = ["Search", "Translation", "translate"]

"""Translation of a source into the likeliest targets, greedily or by beam search.

The search works on ids and is in `heedful.models.beam_search`.
"""

from heedful.models.beam_search import Search, Translation, translate

__all__ = ["Search", "Translation", "translate"]

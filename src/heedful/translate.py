"""Translation of a source into its likeliest targets; see `heedful.models.beam_search`."""

from heedful.models.beam_search import Search, Translation, translate

__all__ = ["Search", "Translation", "translate"]

"""Small examples: those of the documents with their own numbers, and the rhyme of the lessons."""

SENTENCE = "Your journey starts with one step"
SECOND = "Votre voyage commence par un seul pas"  # the same in French, for cross-attention

# Document 002, a notebook after Raschka's book: one row for each word of the sentence
EMBEDDINGS = (
    (0.43, 0.15, 0.89),
    (0.55, 0.87, 0.66),
    (0.57, 0.85, 0.64),
    (0.22, 0.58, 0.33),
    (0.77, 0.25, 0.10),
    (0.05, 0.80, 0.55),
)

# Document 001, Pahwa's *Decoding the magic behind LLMs*, section 4.2
FAMILY = {
    "queen": (0.2, 0.5, 0.1),
    "king": (0.9, 0.5, 0.1),
    "dad": (0.9, 0.7, 0.9),
    "mom": (0.2, 0.7, 0.9),
}

_LINES = """the house that Jack built|the malt that lay in|the rat that ate|the cat that killed
the dog that worried|the cow with the crumpled horn that tossed|the maiden all forlorn that milked
the man all tattered and torn that kissed|the priest all shaven and shorn that married
the cock that crowed in the morn that waked|the farmer sowing his corn that kept"""
_HEARD = _LINES.replace("\n", "|").split("|")

# An English nursery rhyme: each verse adds a line in front of the one before it
RHYME = "".join(
    "This is " + "\n".join(reversed(_HEARD[: last + 1])) + ".\n\n" for last in range(len(_HEARD))
)

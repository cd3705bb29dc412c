"""The small examples of the documents, with their own numbers."""

SENTENCE = "Your journey starts with one step"

# Document 002: one row for each word of the sentence
EMBEDDINGS = (
    (0.43, 0.15, 0.89),
    (0.55, 0.87, 0.66),
    (0.57, 0.85, 0.64),
    (0.22, 0.58, 0.33),
    (0.77, 0.25, 0.10),
    (0.05, 0.80, 0.55),
)

# Document 001, section 4.2
FAMILY = {
    "queen": (0.2, 0.5, 0.1),
    "king": (0.9, 0.5, 0.1),
    "dad": (0.9, 0.7, 0.9),
    "mom": (0.2, 0.7, 0.9),
}

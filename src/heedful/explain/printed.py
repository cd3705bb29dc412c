"""What document 004 (Zhang, *LLM: From Zero to Hero*) prints, as the steps that gave it."""

from __future__ import annotations

import dataclasses

import torch

from heedful.explain.attending import attend
from heedful.explain.pieces import placed
from heedful.explain.stages import Explanation, Section, held
from heedful.ops.positions import sinusoidal

TOKENS = (
    ".", " By", " mastering", " the", " art", " of", " identifying", " underlying", " motivations",
    " and", " desires", ",", " we", " equip", " ourselves", " with",
)  # fmt: skip
WIDTH = 64
# Its section 4.3: the first three columns of the first three rows of one head
SCORES = ((0.2712, 0.5608, -0.4975), (-0.0456, 0.3352, -0.2611), (-0.0627, 0.1498, -0.3736))


def document_004() -> Explanation:
    """Its table of positions, and its scores on their way to weights, in float64.

    Its embeddings and projections are drawn at random and printed in part: what follows from them
    alone cannot be computed again.

    >>> document_004().stage("weights").part([2], range(3))
    tensor([[0.3368, 0.4165, 0.2468]], dtype=torch.float64)
    """
    scores = torch.tensor(SCORES, dtype=torch.float64)
    unit = torch.eye(len(SCORES), dtype=torch.float64)
    printed = held(
        "scores", scores, "",
        "Document 004 prints these of one head, already divided by √16 = 4. They are the first "
        "three columns of its first three rows.", "tokens", columns="tokens",
    )  # fmt: skip
    vectors = held("value", unit, "", "", "tokens")
    _, masked, weights, _ = attend(printed, vectors, vectors, causal=True, scale=1.0)
    masked = dataclasses.replace(masked, sources=(printed,))
    weights = dataclasses.replace(weights, sources=(masked,))
    where = placed(sinusoidal(len(TOKENS), WIDTH).double(), "tokens")
    return Explanation(
        title="document 004: its printed numbers (Zhang, LLM: From Zero to Hero)",
        tokens=TOKENS,
        sections=(
            Section("Step 3: positions", (where,)),
            Section("Steps 4.3 to 4.6: from scores to weights", (printed, masked, weights)),
        ),
        notes=("The sentence and the scores are those that document 004 prints.",),
    )

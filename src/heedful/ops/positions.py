"""Where a token stands: sinusoidal tables, rotation of queries and keys, ALiBi's penalties.

(Learned positions are a table of parameters; the model holds it.)
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.rotary_scaling import RotaryScaling


def sinusoidal(tokens: int, width: int, base: float = 10_000.0) -> Float[Tensor, "tokens width"]:
    """The table of sines and cosines that is added to embeddings.

    PE(p, 2i) = sin(p / base^(2i/width)), PE(p, 2i+1) = cos of the same: section 3.5 of Vaswani
    et al. 2017, and step 3 of document 004 (W. Zhang, *LLM: From Zero to
    Hero*), whose printed table this is.

    Args:
        tokens: rows, positions from 0.
        width: columns; even.
        base: the longest wavelength is 2π · base.

    Returns:
        (tokens, width) in float32.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if tokens < 0:
        raise ArgumentError(f"{tokens} tokens", expected="0 or more")
    angles = _angles(torch.arange(tokens, device="cpu"), width, base)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def rotary(
    positions: Int[Tensor, " tokens"],
    width: int,
    base: float = 10_000.0,
    scaling: RotaryScaling | None = None,
) -> tuple[Float[Tensor, "tokens half"], Float[Tensor, "tokens half"]]:
    """Cosines and sines by which `rotate` turns queries and keys of a width.

    Source: Su et al. 2021, *RoFormer* (arXiv:2104.09864).

    Args:
        positions: positions of the tokens, (tokens,).
        width: the width of a head; even.
        base: the longest wavelength is 2π · base.
        scaling: which frequencies are slowed; default none.

    Returns:
        (cosines, sines), each (tokens, width / 2) in float32 on the CPU.
    """
    angles = _angles(positions, width, base, scaling)
    return angles.cos().float(), angles.sin().float()


def rotate(
    vectors: Float[Tensor, "*lead tokens width"],
    cosines: Float[Tensor, "*#lead tokens half"],
    sines: Float[Tensor, "*#lead tokens half"],
) -> Float[Tensor, "*lead tokens width"]:
    """Turn each pair (i, i + width/2) of a vector by its position's angle.

    The pairs are halves, as in Hugging Face's models. The dot product of two turned vectors
    depends on the distance of their positions alone.

    >>> cosines, sines = rotary(torch.tensor([0, 1]), width=2)
    >>> rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), cosines, sines)
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    cosines, sines = cosines.to(vectors.dtype), sines.to(vectors.dtype)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """How steeply each head's scores fall with distance, for `alibi`.

    For P heads, P a power of two, the slopes are 2^(−8/P), 2^(−16/P), …, 2^−8. Other numbers of
    heads take those of the next lower power, then every second one of the next higher: so the
    code of Press et al. 2022, *Train short, test long* (arXiv:2108.12409).

    Args:
        heads: H, at least 1.

    Returns:
        (H,) in float32.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    >>> alibi_slopes(6)[4:]
    tensor([0.5000, 0.1250])
    """
    if heads < 1:
        raise ArgumentError(f"{heads} heads", expected="at least 1")
    lower = 1 << heads.bit_length() - 1
    between = range(1, 2 * (heads - lower), 2)
    exponents = [8 * h / lower for h in range(1, lower + 1)] + [4 * h / lower for h in between]
    return 2.0 ** -torch.tensor(exponents, dtype=torch.float32)


def alibi(heads: int, queries: int, keys: int) -> Float[Tensor, "heads queries keys"]:
    """ALiBi: a penalty for distance, given to `heedful.attention` as its bias.

    It is minus the head's slope times the distance in tokens; the last query stands at the last
    key, as with `causal`. The paper masks keys ahead of the query; here they lose as much as those
    at the same distance behind.

    Args:
        heads: H.
        queries, keys: N and M.

    Returns:
        (H, N, M) in float32.

    >>> alibi(heads=8, queries=2, keys=4)[0]
    tensor([[-1.0000, -0.5000,  0.0000, -0.5000],
            [-1.5000, -1.0000, -0.5000,  0.0000]])
    """
    if min(queries, keys) < 0:
        raise ArgumentError(f"{queries} queries and {keys} keys", expected="numbers of tokens")
    position = torch.arange(queries)[:, None] + keys - queries
    return alibi_slopes(heads)[:, None, None] * -(position - torch.arange(keys)).abs()


def _angles(
    positions: Tensor, width: int, base: float, scaling: RotaryScaling | None = None
) -> Tensor:
    if width < 2 or width % 2:
        raise ArgumentError(
            f"width {width}",
            expected="an even width of at least 2",
            cause="sines and cosines come in pairs",
        )
    # in float64, since float32 angles are off by 0.004 at position 100,000; on the CPU, since
    # Apple's GPUs have no float64
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
    frequencies = base ** (-pairs / width)
    if scaling is not None:
        frequencies = scaling.scaled(frequencies)
    return positions.cpu().double()[:, None] * frequencies

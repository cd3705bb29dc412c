"""Position schemes: sinusoidal tables, rotary embeddings (RoPE) and ALiBi.

Learned positions need no function here: they are a table of parameters in the model.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.rotary_scaling import RotaryScaling


def sinusoidal(tokens: int, width: int, base: float = 10_000.0) -> Float[Tensor, "tokens width"]:
    """Return the table of sines and cosines that is added to embeddings.

    PE(p, 2i) = sin(p / base^(2i/width)), PE(p, 2i+1) = cos(p / base^(2i/width)).

    Sources: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5; document 004 (W. Zhang, *LLM: From
    Zero to Hero*), step 3, which prints this table.

    Args:
        tokens: number of rows, for positions 0 to tokens − 1.
        width: number of columns; even.
        base: the wavelengths go from 2π up to, but not including, 2π · base.

    Returns:
        (tokens, width) in float32.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    angles = _angles(torch.arange(tokens, device="cpu"), width, base)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def rotary(
    positions: Int[Tensor, " tokens"],
    width: int,
    base: float = 10_000.0,
    scaling: RotaryScaling | None = None,
) -> tuple[Float[Tensor, "tokens half"], Float[Tensor, "tokens half"]]:
    """Return the cosines and sines with which `rotate` rotates queries and keys.

    Source: Su et al. 2021, *RoFormer* (arXiv:2104.09864).

    Args:
        positions: positions of the tokens, (tokens,).
        width: the head width; even.
        base: as in `sinusoidal`.
        scaling: reduces frequencies for longer contexts; default none.

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
    """Rotate each pair (i, i + width/2) of a vector's numbers by an angle that grows with position.

    Hugging Face's `rotate_half` forms the same pairs. The dot product of a rotated query and a
    rotated key depends only on the difference of their positions.

    >>> cosines, sines = rotary(torch.tensor([0, 1]), width=2)
    >>> rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), cosines, sines)
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    cosines, sines = cosines.to(vectors.dtype), sines.to(vectors.dtype)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """Return each head's slope in ALiBi: how fast its scores fall with distance.

    For P heads, P a power of two, the slopes are 2^(−8/P), 2^(−16/P), …, 2^−8. Other numbers of
    heads use the slopes of the next lower power, then every second slope of the next higher power.

    Source: Press et al. 2022, *Train short, test long* (arXiv:2108.12409), and its code.

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
    """Return the bias of ALiBi, a penalty for distance; pass it to `heedful.attention` as `bias`.

    The bias is −slope · distance. The distance is in tokens; the last query is at the last key, as
    with `causal`. The paper masks keys after the query. Here a later key has the same penalty as an
    earlier key at the same distance.

    Source: Press et al. 2022 (arXiv:2108.12409).

    Args:
        heads: H.
        queries, keys: N and M.

    Returns:
        (H, N, M) in float32.

    >>> alibi(heads=8, queries=2, keys=4)[0]
    tensor([[-1.0000, -0.5000,  0.0000, -0.5000],
            [-1.5000, -1.0000, -0.5000,  0.0000]])
    """
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
    # In float64: float32 angles have an error of 0.004 at position 100,000. On the CPU: Apple's
    # GPUs have no float64
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
    frequencies = base ** (-pairs / width)
    if scaling is not None:
        frequencies = scaling.scale(frequencies)
    return positions.cpu().double()[:, None] * frequencies

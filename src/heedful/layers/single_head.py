"""Self-attention with one head: without learned weights, with learned weights, and causal.

The input of each layer is (N, width) or (B, N, width), a tensor or a NumPy array. The output is
a tensor or an array like the input. d is the head width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers.array_inputs import takes_arrays
from heedful.layers.checks import check_tokens
from heedful.layers.multi_head import Heads
from heedful.layers.option_names import check_heads
from heedful.ops import Steps, attention, steps
from heedful.ops.arguments import check_dropout
from heedful.ops.masks import Mask
from heedful.ops.numpy_arrays import Values, as_tensors


class SimpleSelfAttention(nn.Module):
    """Self-attention in which each token is its own query, key and value, without scaling.

    Source: document 002 (after Raschka), part 1.

    >>> import torch
    >>> words = torch.tensor([[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]])
    >>> SimpleSelfAttention()(words)
    tensor([[0.4886, 0.5019, 0.7776],
            [0.5058, 0.6050, 0.7447]])
    """

    scale: float | None = 1.0  # of the scores; None: 1/√d
    is_causal = False  # the default of `causal`

    @takes_arrays
    def forward(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool | None = None,
    ) -> Float[Tensor, "*batch tokens width"]:
        """Return for each token the mean of all tokens, weighted by their similarity."""
        return attention(*self.project(x), mask=mask, causal=bool(causal), scale=self.scale)

    @takes_arrays
    def project(self, x: Float[Tensor, "*batch tokens width"]) -> Heads:
        """Return the tokens as query, key and value."""
        return Heads(x, x, x)

    @takes_arrays
    def steps(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool | None = None,
    ) -> Steps:
        """Return every intermediate result of `forward`, up to the context."""
        causal = self.is_causal if causal is None else causal
        return steps(*self.project(x), mask=mask, causal=causal, scale=self.scale)


class SelfAttention(SimpleSelfAttention):
    """Self-attention with learned projections to query, key and value.

    Sources: documents 001 (Pahwa), section 5.2, and 002, part 2; Vaswani et al. 2017
    (arXiv:1706.03762), section 3.2.1.

    Args:
        width: of the tokens' vectors.
        head_width: d, the width of query, key and value; default `width`.
        bias: whether the projections have a bias.
        project_back: add a projection from d back to `width`, as in document 001.
        residual: add the input to the output.
        dropout: on the weights, in training mode.

    Raises:
        ArgumentError: a width below 1, a dropout outside [0, 1), or a residual of unequal width.

    >>> import torch
    >>> layer = SelfAttention(128, 16, project_back=True, residual=True)
    >>> sentence = torch.rand(7, 128)
    >>> layer.query(sentence).shape, layer.steps(sentence).weights.shape, layer(sentence).shape
    (torch.Size([7, 16]), torch.Size([7, 7]), torch.Size([7, 128]))
    """

    scale = None

    def __init__(
        self,
        width: int,
        head_width: int | None = None,
        *,
        bias: bool = False,
        project_back: bool = False,
        residual: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(width, 1, 1, head_width)
        check_dropout(dropout)
        inner = width if head_width is None else head_width
        _check_residual(residual, width, width if project_back else inner)
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, inner, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias) if project_back else nn.Identity()
        self.residual, self.dropout = residual, dropout

    @classmethod
    def from_matrices(
        cls,
        query: Values,
        key: Values,
        value: Values,
        output: Values | None = None,
        *,
        residual: bool = False,
    ) -> SelfAttention:
        """Return a layer with weight matrices W for x @ W, the convention of documents 001 to 003.

        Args:
            query, key: W_q and W_k, (width, d), tensors or NumPy arrays.
            value: W_v, (width, v); v may differ from d.
            output: W_o, (v, width), which projects the context back; default: no projection.
            residual: add the input to the output.

        Raises:
            ArgumentError: matrices that do not fit each other.

        >>> import numpy as np
        >>> W_q, W_k, W_v = np.random.default_rng(0).random((3, 128, 16))
        >>> SelfAttention.from_matrices(W_q, W_k, W_v)(np.ones((7, 128))).dtype
        dtype('float64')
        """
        matrices = _matrices(query, key, value, output)
        width, inner = matrices["query"].shape
        layer = cls(width, inner)
        layer.residual = residual
        for name, matrix in matrices.items():
            fan_in, fan_out = matrix.shape
            linear = nn.Linear(fan_in, fan_out, bias=False, device="meta")
            linear.weight = nn.Parameter(matrix.T.clone(memory_format=torch.contiguous_format))
            setattr(layer, name, linear)
        _check_residual(residual, width, matrices.get("output", matrices["value"]).shape[1])
        return layer

    @takes_arrays
    def forward(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool | None = None,
    ) -> Float[Tensor, "*batch tokens out"]:
        """Return the output, (…, N, width) if projected back, else as wide as the values."""
        causal = self.is_causal if causal is None else causal
        dropout = self.dropout if self.training else 0.0
        context = attention(*self.project(x), mask=mask, causal=causal, dropout=dropout)
        return x + self.output(context) if self.residual else self.output(context)

    @takes_arrays
    def project(self, x: Float[Tensor, "*batch tokens width"]) -> Heads:
        """Return query and key (…, N, d), and value (…, N, v), of each token."""
        check_tokens(x, self.query.in_features, axes=(2, 3))
        return Heads(self.query(x), self.key(x), self.value(x))


class CausalAttention(SelfAttention):
    """Self-attention in which no token may attend to later tokens, with dropout on the weights.

    Arguments are those of `SelfAttention`. `causal=False` in a call removes the causal mask, for
    comparison.

    Sources: documents 002 and 003, after the attention chapter of Raschka's *Build a Large
    Language Model (From Scratch)*; Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3.

    >>> import torch
    >>> CausalAttention(3, 2).steps(torch.rand(3, 3)).weights.count_nonzero(dim=-1)
    tensor([1, 2, 3])
    """

    is_causal = True


def _check_residual(residual: bool, width: int, out: int) -> None:
    if residual and out != width:
        raise ArgumentError(
            f"a residual sum of widths {width} and {out}",
            expected="equal widths",
            remedy="project back to the width of x: project_back=True, or an output matrix",
        )


def _matrices(
    query: Values, key: Values, value: Values, output: Values | None
) -> dict[str, Tensor]:
    """Check the shapes of the matrices, and return tensors; arrays get a common dtype."""
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value, "output": output}
    matrices = {name: matrix for name, matrix in arguments.items() if matrix is not None}
    if any(isinstance(matrix, np.ndarray) for matrix in matrices.values()):
        matrices = as_tensors(matrices, matrices)
    shapes = {name: tuple(matrix.shape) for name, matrix in matrices.items()}
    fits = all(len(shape) == 2 and min(shape) for shape in shapes.values()) and (
        shapes["query"] == shapes["key"]
        and shapes["value"][0] == shapes["query"][0]
        and shapes.get("output", shapes["value"][::-1]) == (shapes["value"][1], shapes["query"][0])
    )
    if not fits:
        raise ArgumentError(
            "matrices " + ", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            expected="query and key (width, d), value (width, v), output (v, width)",
            cause="transposed matrices, as in torch's layers",
            remedy="pass W of x @ W; nn.Linear stores its transpose",
        )
    return matrices

"""Attention as pure tensor functions, without modules.

To learn how attention works, begin with `reference.py`. The files of the fast path, from the public
functions downwards (a file imports only from its own line or from lower lines):

1. `attention.py` and `steps.py`: the public functions; `numpy_arrays.py` lets them accept arrays.
2. `dispatch.py`: chooses a fused kernel or `definition.py`, and notifies listeners.
3. `sdpa.py`: calls torch's fused kernels, once or in blocks of queries.
4. `definition.py`: attention without fused kernels, one function for each step.
5. `log_sum_exp.py`: captures the log-sum-exp that fused kernels compute.
6. `arguments.py`: checks the arguments.
7. `masks.py`, `mask_base.py`, `indexing.py`: which query may attend to which key.

Weight maps are computed in parts from `AttentionInputs` (`inputs.py`). `weight_blocks.py` computes
full rows for `statistics.py`, `top_k.py`, `segments.py` and `streaming.py`. `heatmap.py` computes
single cells from the log-sum-exp of their rows. Both modules use `score_blocks.py`. `map_region.py`
computes full rows or single cells, `single_weight.py` one weight step by step. `masked_cells.py`
finds the fully masked cells of a heat map. `exact_sums.py` adds up statistics over many texts.
"""

from heedful.ops import masks, positions, reference
from heedful.ops.attention import attention
from heedful.ops.steps import Steps, steps
from heedful.ops.streaming import Streamed, streaming_attention

__all__ = [
    "Steps", "Streamed", "attention", "masks", "positions", "reference", "steps",
    "streaming_attention",
]  # fmt: skip

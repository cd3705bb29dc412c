"""Floor 1: pure tensor functions, no modules.

The way of a query, file after file; each calls only those below it:

1. `attention.py` and `steps.py`: what people call. Arrays are read as tensors (`numpy_arrays.py`).
2. `dispatch.py`: who listens, and by which of two roads a call goes.
3. `sdpa.py`: torch's fused kernels, whole or by blocks.
4. `definition.py`: the definition, a function for each step; dropout on a CPU goes by it.
5. What listeners get beside the output: `log_sum_exp.py` of kernels.
6. `arguments.py`: what is checked first, and the form in which all of them take it.
7. `masks.py`, `mask_base.py`, `indexing.py`: what may attend to what.

A map of weights, in parts and without the rest, begins at `inputs.py`. By whole rows:
`weight_blocks.py`, `statistics.py`, `top_k.py`, `segments.py`, and `streaming.py`, which returns
the output too; `exact_sums.py` adds statistics up over many texts. Single cells, by the log-sum-exp
of their rows: `map_region.py`, `heatmap.py`. Both use `score_blocks.py`. `masked_cells.py` says
which cells of a picture a mask hides.
"""

from heedful.ops import masks, positions, reference
from heedful.ops.attention import attention
from heedful.ops.steps import Steps, steps
from heedful.ops.streaming import Streamed, streaming_attention

__all__ = [
    "Steps",
    "Streamed",
    "attention",
    "masks",
    "positions",
    "reference",
    "steps",
    "streaming_attention",
]

"""Floor 1: pure tensor functions, no modules.

The way of a query, file after file; each calls only those below it:

1. `attention.py` and `steps.py`: what people call. Arrays are read as tensors (`arrays.py`).
2. `dispatch.py`: who listens, and by which of two roads a call goes.
3. `kernels.py`: torch's fused kernels, whole or by blocks.
4. `by_definition.py`: the definition, a function for each step; dropout on a CPU goes by it.
5. What listeners get beside the output: `log_sum_exp.py` of kernels.
6. `arguments.py`: what is checked first, and the form in which all of them take it.
7. `masks.py`, `any_mask.py`, `score_tables.py`: what may attend to what.

A map of weights, in parts and without the rest, begins at `causes.py`. By whole rows: `blocks.py`,
`statistics.py`, `top.py`, `segments.py`, and `streaming.py`, which gives the output too; what is
found of rows is added up over many texts by `exact_sums.py`. By the log-sum-exp of rows, any cells
alone: `cells.py`, `heatmap.py`. Both fill `score_blocks.py`. What a mask hides of a picture is
`hidden.py`.
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

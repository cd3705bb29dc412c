"""The ways in which attention is seen while a model runs, each told as `observed` has it.

Three are doors, with a context `watch`: `heedful_attention`, `transformers_interface` and
`torch_operations`. What the last one sees is read by `sdpa`, `softmax_matmul` (with `score_causes`
and `dead_rows`) and `multihead_attention`; `flash_attention` reads a call of the second.
"""

"""The ways in which attention is seen while a model runs, each told as `observed` has it.

Three are entered as contexts: `heedful_attention` and `transformers_interface` know the axes of
what they see; `torch_operations` watches all operations, and reads them with `sdpa`,
`encoder_layers` and the tape (`steps`, `tape`, `cells`, `by_hand`).
"""

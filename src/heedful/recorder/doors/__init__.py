"""Doors: the places where a call of attention is intercepted. Each reports an `Observed`.

`heedful_attention` and `transformers_interface` wrap a function whose axes are documented.
`torch_operations` watches every operation of torch: fused kernels are read by `sdpa` and
`encoder_layers`, and attention by hand (products and a softmax) by the modules `tape*`.
"""

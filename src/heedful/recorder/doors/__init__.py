"""Doors: entry points where a call of attention is intercepted. Each reports an `Observed`.

`heedful_attention` and `transformers_interface` intercept functions with documented axes.
`torch_operations` watches every operation of torch: `sdpa` and `encoder_layers` describe the calls
of fused kernels; the modules `tape*` describe attention by hand (products and a softmax).
"""

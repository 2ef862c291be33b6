"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in JAX and Flax NNX.

One legend everywhere: B batch, S source length, T target length, D model width, H heads, V vocabulary.
"""

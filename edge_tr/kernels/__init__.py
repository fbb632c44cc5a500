"""Numba kernels: arrays in, arrays out.

Each file holds one call graph, since a cached kernel does not notice a change in another
file. No kernel reads a constant of another module, and none uses ``fastmath``.
"""

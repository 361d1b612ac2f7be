"""Tensor-parallel ranks and what they say to each other."""

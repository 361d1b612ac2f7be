"""Imports models: a quantized file, of a package or at hand, becomes a folder workers can load."""

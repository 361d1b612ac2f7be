"""Constraints on outputs: what a grammar allows next."""

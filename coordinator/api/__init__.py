"""The protocols clients speak: decode, call the engine, encode."""

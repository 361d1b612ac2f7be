"""Reading a checkpoint into a model's parameters."""

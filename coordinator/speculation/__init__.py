"""How many draft tokens sequences may have."""

"""Where workers come from, and one step to all of them."""

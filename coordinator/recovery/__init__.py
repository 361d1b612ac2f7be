"""Finding the rank that keeps its group waiting."""

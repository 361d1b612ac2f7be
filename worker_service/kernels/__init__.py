"""Device operations: formula and torch reference side by side, no knowledge of requests."""

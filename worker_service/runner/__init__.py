"""One rank's model runner: the stages of a step, and what must stand before the first step."""

"""How tensors get from one worker to the next: protocols, an in-memory version, ZMQ."""

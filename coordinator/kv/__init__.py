"""Which KV cache blocks each sequence holds; integers only, the bytes live on the workers."""

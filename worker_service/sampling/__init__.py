"""From logits to tokens: sampling parameters per slot, the draw, log-probabilities."""

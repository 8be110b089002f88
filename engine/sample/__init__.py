"""From logits to tokens: the processor chain, the noise, the draw."""

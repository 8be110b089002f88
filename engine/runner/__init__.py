"""Everything that happens on a device: memory, inputs, the forward pass, the draw."""

"""The parts of a decoder layer. They own weights and call `kernels.ops`; they do no tensor arithmetic of their own."""

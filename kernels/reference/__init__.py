"""Every op in plain torch: always there, on any device, and the oracle for the other backends."""

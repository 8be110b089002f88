"""The HTTP surface, one module per group of routes. Routes translate; the services they call decide."""

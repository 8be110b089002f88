"""The parts of `bench.gpu_check`, each a function of a `Task` in a process of its own. Nothing here needs msgspec."""

"""Benchmark: what speculation is worth by concurrency, measured in turns against the same server without it."""

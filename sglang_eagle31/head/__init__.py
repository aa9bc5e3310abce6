"""The drafter: what a head computes (spec), how its files are read (dialects), and the modules that run it."""

"""The guard's decisions: which of a prepared set of shapes to run, from what rounds cost and what they gave."""

"""What speculation is expected to gain: tokens of a round, cost of a round, and the shapes to choose from."""

"""Proof that speculation leaves the output alone: distribution of the samplers, identity of two servers' answers."""

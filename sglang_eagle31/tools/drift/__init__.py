"""The drift probe: what a draft head attends to and how large its states are, by draft depth."""

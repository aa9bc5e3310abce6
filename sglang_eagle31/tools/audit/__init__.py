"""What a draft head is, whether it can run as it was trained, and what other engines would do with it."""

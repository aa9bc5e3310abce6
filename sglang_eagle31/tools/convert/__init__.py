"""A head in another engine's or trainer's format, lossless or refused by name."""

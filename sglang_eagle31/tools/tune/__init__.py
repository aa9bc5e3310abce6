"""``tune --url``: measure a few shapes on a running server, predict all others, confirm the best."""

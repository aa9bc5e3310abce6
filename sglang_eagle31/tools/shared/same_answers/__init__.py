"""Are the answers of a server with speculation those of one without: compared, and token by token by the logits."""

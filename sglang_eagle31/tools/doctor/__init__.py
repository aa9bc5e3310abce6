"""Is this installation, head and server as they should be: facts gathered once, and small checks that judge them."""

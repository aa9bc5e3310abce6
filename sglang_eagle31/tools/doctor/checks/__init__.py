"""What is judged, one file a subject. A check is a function of facts to a line, or None where it does not apply."""

"""Training-time test (TTT) for EAGLE-3 and EAGLE 3.1 heads of small targets, in torch and transformers alone."""

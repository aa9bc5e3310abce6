"""Training-time test (TTT) for EAGLE-3 and EAGLE 3.1 heads of small targets. Imports torch and transformers, not SGLang."""

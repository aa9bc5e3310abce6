"""EAGLE-3 and EAGLE 3.1 draft heads on stock SGLang."""

__version__ = "0.1.0"

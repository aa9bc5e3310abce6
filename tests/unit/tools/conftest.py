"""Fixtures of several files."""

from verify_fakes import compare, serve  # noqa: F401

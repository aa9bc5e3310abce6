"""Acceptance by draft depth under template and context changes, on any SGLang server."""

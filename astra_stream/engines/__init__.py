"""Inference behind a protocol."""

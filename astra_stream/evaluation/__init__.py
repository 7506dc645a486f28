"""Scores versions on held-out prompts."""

"""Publishes, announces, follows and verifies weights."""

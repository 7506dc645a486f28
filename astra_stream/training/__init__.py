"""Trains on batches and publishes versions."""

"""Plays episodes: requests in, trajectories out."""

"""What judges a reply."""

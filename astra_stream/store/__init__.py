"""Object storage behind a protocol."""

"""Kafka behind a protocol, a memory log under the same contract, and the codec."""

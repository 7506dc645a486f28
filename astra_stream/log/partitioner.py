"""Which partition a key belongs to: Kafka's murmur2, so that every client agrees.

Keyless records have no home; who writes them picks.
"""

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """32-bit murmur2 hash as Kafka's Java client computes it, unsigned."""
    end = len(data) - len(data) % 4
    hashed = _SEED ^ len(data)
    for at in range(0, end, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        hashed = (hashed * _MULTIPLIER & _MASK) ^ word
    if end < len(data):
        hashed = (hashed ^ int.from_bytes(data[end:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _MULTIPLIER & _MASK
    return hashed ^ (hashed >> 15)


def partition_for(key: bytes, num_partitions: int) -> int:
    """Index of the partition that a keyed record goes to."""
    return (murmur2(key) & 0x7FFFFFFF) % num_partitions

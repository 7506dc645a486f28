import pytest

from astra_stream.log.partitioner import murmur2, partition_for

JAVA_CLIENT = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA_CLIENT.items())
def test_a_key_hashes_as_in_the_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32


def test_keys_spread_over_all_partitions() -> None:
    assert {partition_for(str(i).encode(), 8) for i in range(200)} == set(range(8))

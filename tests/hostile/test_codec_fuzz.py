"""Whatever bytes come in, the codec refuses them by name or makes a record that travels on."""

import struct
from pathlib import Path

import pytest

from astra_stream.declarations import declared
from astra_stream.log.codec import MARKER, Codec
from astra_stream.testing.fuzzing import fuzz

GOLDEN = sorted((Path(__file__).parents[1] / "data" / "golden").glob("*/*.bin"))
NUM_INPUTS = 100_000


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_hundred_thousand_mutations_of_every_record_are_refused_or_travel_on():
    samples = [path.read_bytes() for path in GOLDEN]
    report = fuzz(Codec(declared("schemas")), samples, num_inputs=NUM_INPUTS, seed=0)
    assert 0.5 * NUM_INPUTS < report.refused < 0.98 * NUM_INPUTS


class Trusting(Codec):
    """Takes what is no record for one."""

    def decode(self, data: bytes):
        return super().decode(data) if data[:2] == MARKER else len(data)


class Careless(Codec):
    """Lets through what the library beneath it raises."""

    def decode(self, data: bytes):
        if data[:2] != MARKER:
            raise struct.error("unpack requires a buffer of 2 bytes")
        return super().decode(data)


@pytest.mark.parametrize(
    ("made", "found"), [(Trusting, "a record must be one of"), (Careless, "unpack requires")]
)
def test_a_codec_that_does_anything_else_is_found_with_its_input(made, found):
    samples = [path.read_bytes() for path in GOLDEN]
    with pytest.raises(AssertionError, match=rf"{found}.*: [0-9a-f]*"):
        fuzz(made(declared("schemas")), samples, num_inputs=1000, seed=0)

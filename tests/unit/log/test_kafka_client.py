"""What a reader makes of a position that its client gives up; the contract has all else."""

from confluent_kafka import KafkaError

from astra_stream.errors import TransientError
from astra_stream.log.interface import Partition
from astra_stream.log.kafka_client import lost_place

SAID = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected at 2: ...")


def test_a_position_that_the_broker_refused_is_an_error_with_its_coordinates() -> None:
    error = lost_place(Partition("t", 3), 7, SAID)
    assert not isinstance(error, TransientError)
    assert str(error).startswith("t[3]@7 must still be in the log")


def test_a_position_that_only_the_client_doubts_is_looked_at_again_by_the_next_process() -> None:
    error = lost_place(Partition("t", 3), None, SAID)
    assert isinstance(error, TransientError)
    assert str(error).startswith("t[3] must hold what was read of it")
    assert "truncation detected at 2" in str(error)

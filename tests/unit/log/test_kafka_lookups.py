"""What the log does with answers of a broker that is not ready: here without a broker."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo

from astra_stream.errors import AstraStreamError, TransientError
from astra_stream.log import kafka
from astra_stream.log.interface import Partition

PLACE = Partition("t", 0)


class Admin:
    """Answers questions about offsets from a list: offsets, or codes of errors below zero."""

    def __init__(self, answers: list[int]) -> None:
        self.answers = answers
        self.refreshed: list[str] = []

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        future: Future = Future()
        if answer < 0:
            future.set_exception(KafkaException(KafkaError(answer)))
        else:
            future.set_result(ListOffsetsResultInfo(answer, 0, 0))
        return dict.fromkeys(asked, future)

    def list_topics(self, topic: str, timeout_s: float) -> None:
        self.refreshed.append(topic)

    def poll(self, timeout_s: float) -> None:
        pass


def log_with(answers: list[int], monkeypatch: pytest.MonkeyPatch) -> kafka.KafkaLog:
    monkeypatch.setattr(kafka, "AdminClient", lambda _: Admin(answers))
    return kafka.KafkaLog("127.0.0.1:1", deadline_s=0.3)


def test_a_broker_that_does_not_lead_its_partitions_yet_is_asked_again(monkeypatch):
    log = log_with([KafkaError._NOENT, KafkaError._NOENT, 7], monkeypatch)
    assert log.end_offsets([PLACE]) == {PLACE: 7}
    assert log._admin.refreshed == ["t", "t"]
    log.close()


def test_a_partition_that_never_gets_a_leader_is_an_error_after_the_deadline(monkeypatch):
    log = log_with([KafkaError._NOENT], monkeypatch)
    with pytest.raises(TransientError, match=r"within 0\.3 s"):
        log.end_offsets([PLACE])
    log.close()


def test_a_refusal_is_an_error_at_once(monkeypatch):
    log = log_with([KafkaError._INVALID_ARG], monkeypatch)
    with pytest.raises(AstraStreamError, match="offsets must be accepted by kafka: got _INVALID"):
        log.end_offsets([PLACE])
    log.close()

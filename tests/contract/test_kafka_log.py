"""Kafka keeps the contract."""

import pytest

from astra_stream.errors import TransientError
from astra_stream.log.interface import Log, LogAdmin
from astra_stream.log.kafka import KafkaLog
from astra_stream.log.kafka_admin import KafkaAdmin
from astra_stream.testing.log_contract import GroupContract, LogContract


@pytest.mark.broker
class TestKafkaLog(LogContract):
    @pytest.fixture(autouse=True)
    def _found(self, kafka_bootstrap: str) -> None:
        self.bootstrap = kafka_bootstrap

    def make_log(self) -> Log:
        return KafkaLog(self.bootstrap)

    def make_admin(self, log: Log) -> LogAdmin:
        del log
        return KafkaAdmin(self.bootstrap)

    def test_an_address_without_a_broker_is_one_error_and_nothing_on_stderr(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        log = KafkaLog("127.0.0.1:1", deadline_s=0.5)
        rule = 'kafka at 127.0.0.1:1 must answer within 0.5 s: got "Connection refused"'
        with pytest.raises(TransientError, match=rule):
            log.writer(self.name)
        with pytest.raises(TransientError, match=rule):
            log.subscribe(["t"], group=self.name)
        log.close()
        assert capfd.readouterr().err == ""


@pytest.mark.broker
class TestClassicGroups(GroupContract):
    @pytest.fixture(autouse=True)
    def _found(self, kafka_bootstrap: str) -> None:
        self.bootstrap = kafka_bootstrap

    def make_log(self) -> Log:
        return KafkaLog(self.bootstrap, group_protocol="classic")

    def make_admin(self, log: Log) -> LogAdmin:
        del log
        return KafkaAdmin(self.bootstrap)

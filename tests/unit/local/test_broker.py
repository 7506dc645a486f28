from pathlib import Path

from astra_stream.local.broker import kafka_server, prepare_broker

PORTS = {"kafka": 20001, "kafka_controller": 20002}


def settings_of_a_formatted_directory(directory):
    (directory / "kafka").mkdir()
    (directory / "kafka" / "meta.properties").write_text("version=1\n")
    prepare_broker(directory, java=Path("/none"), jars=[], ports=PORTS, timeout_s=1.0)
    lines = (directory / "kafka.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_formatted_storage_is_not_formatted_again(tmp_path):
    settings_of_a_formatted_directory(tmp_path)
    assert not (tmp_path / "logs").exists()


def test_every_address_of_the_broker_is_loopback(tmp_path):
    settings = settings_of_a_formatted_directory(tmp_path)
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"


def test_a_dead_member_is_replaced_within_six_seconds(tmp_path):
    settings = settings_of_a_formatted_directory(tmp_path)
    assert settings["group.consumer.session.timeout.ms"] == "6000"
    assert settings["group.consumer.min.session.timeout.ms"] == "6000"


def test_the_broker_is_told_nothing_about_its_own_path(tmp_path):
    directory = tmp_path / "a, b ü"
    server = kafka_server(directory, java=Path("/java"), jars=[Path("/a.jar")], ports=PORTS)
    assert server.service.directory == directory
    assert not any(directory.name in argument for argument in server.service.argv)

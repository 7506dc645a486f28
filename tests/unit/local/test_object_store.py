import json
import stat

from astra_stream.local.object_store import (
    PORT_NAMES,
    S3Credentials,
    endpoint_url,
    prepare_store,
    store_server,
)

PORTS = {name: 20_000 + number for number, name in enumerate(PORT_NAMES)}
CREDENTIALS = S3Credentials("an-access-key", "a-secret-key")


def test_only_the_owner_reads_the_credentials(tmp_path):
    prepare_store(tmp_path, credentials=CREDENTIALS)
    path = tmp_path / "seaweedfs-s3.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [identity] = json.loads(path.read_text())["identities"]
    assert identity["credentials"] == [{"accessKey": "an-access-key", "secretKey": "a-secret-key"}]


def test_no_secret_is_on_the_command_line(tmp_path):
    server = store_server(tmp_path, credentials=CREDENTIALS, ports=PORTS)
    assert not any("a-secret-key" in argument for argument in server.service.argv)


def test_every_port_is_named_and_nothing_is_reported_outside(tmp_path):
    argv = store_server(tmp_path, credentials=CREDENTIALS, ports=PORTS).service.argv
    for part in ("master", "volume", "filer", "s3"):
        assert f"-{part}.port={PORTS[f'store_{part}']}" in argv
        assert f"-{part}.port.grpc={PORTS[f'store_{part}_grpc']}" in argv
    assert {"-ip.bind=127.0.0.1", "-master.telemetry=false"} <= set(argv)


def test_clients_are_sent_to_the_s3_port():
    assert endpoint_url(PORTS) == f"http://127.0.0.1:{PORTS['store_s3']}"

import socket

import pytest

from astra_stream.errors import TransientError
from astra_stream.local.ports import LOOPBACK, PortReservation
from astra_stream.local.servers import ServerProcess
from astra_stream.local.supervisor import Service, Supervisor


@pytest.fixture
def supervisor(tmp_path):
    with Supervisor(tmp_path, grace_s=0.2) as supervisor:
        yield supervisor


@pytest.fixture
def free_port():
    with PortReservation(["server"], remembered={}) as ports:
        yield ports["server"]


def make_server(script, port, probe=lambda _: None):
    service = Service(name="server", argv=("/bin/sh", "-c", script))
    return ServerProcess(service=service, port=port, probe=probe, awaited="answer clients")


def test_a_server_that_ends_is_reported_at_once_with_the_end_of_its_log(supervisor, free_port):
    server = make_server("echo out of memory; exit 1", free_port)
    server.start(supervisor)
    with pytest.raises(TransientError) as failure:
        server.wait_ready(supervisor, timeout_s=60.0)
    assert "server must answer clients: got its process ended." in str(failure.value)
    assert str(failure.value).endswith("server.log, ends:\n    out of memory")


def test_a_server_that_does_not_listen_is_given_up_at_the_deadline(supervisor, free_port):
    server = make_server("exec sleep 60", free_port)
    server.start(supervisor)
    with pytest.raises(TransientError, match=rf"nothing listens on 127\.0\.0\.1:{free_port}"):
        server.wait_ready(supervisor, timeout_s=0.1)


def test_a_server_that_refuses_its_client_is_given_up_with_the_reason(supervisor):
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        server = make_server("exec sleep 60", port, lambda _: "access denied")
        server.start(supervisor)
        with pytest.raises(TransientError, match="got access denied after 0 s"):
            server.wait_ready(supervisor, timeout_s=0.1)


def test_a_server_is_ready_when_its_client_says_so(supervisor):
    answers = iter(["still loading", None])
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        server = make_server("exec sleep 60", port, lambda _: next(answers))
        server.start(supervisor)
        server.wait_ready(supervisor, timeout_s=5.0)
    assert list(answers) == []

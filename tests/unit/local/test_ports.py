import socket

from astra_stream.local.ports import LOOPBACK, PortReservation, is_free


def listen(port=0):
    server = socket.create_server((LOOPBACK, port))
    return server, server.getsockname()[1]


def test_a_remembered_port_is_taken_again():
    with PortReservation(["kafka"], remembered={}) as first:
        pass
    with PortReservation(["kafka"], remembered=first) as second:
        assert second == first


def test_a_port_in_use_gives_another_port():
    server, port = listen()
    with server, PortReservation(["kafka"], remembered={"kafka": port}) as ports:
        assert ports["kafka"] != port
        assert is_free(ports["kafka"])


def test_a_port_that_a_server_on_every_interface_has_is_not_free():
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_reserved_port_is_not_given_twice():
    with (
        PortReservation(["kafka"], remembered={}) as mine,
        PortReservation(["kafka"], remembered=mine) as other,
    ):
        assert mine["kafka"] != other["kafka"]
    with PortReservation(["kafka"], remembered=mine) as again:
        assert again == mine


def test_ports_lie_below_those_of_outgoing_connections():
    with PortReservation([str(n) for n in range(50)], remembered={}) as ports:
        assert len(set(ports.values())) == 50
        assert all(20_000 <= port < 32_000 for port in ports.values())

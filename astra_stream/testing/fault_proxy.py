"""A proxy before an S3 server that does to its clients what networks and busy servers do.

Requests pass with the client's own ``Host`` header, which their signatures cover.
"""

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

NOT_PASSED_ON = frozenset({"expect", "connection"})
"""Headers that are between two neighbours, and never signed."""
UPSTREAM_TIMEOUT_S = 60.0
RESET = struct.pack("ii", 1, 0)
"""Linger of a socket whose closing is a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a request; nothing, unless said."""

    status: int = 0
    """Answer this, without asking the server."""
    code: str = ""
    """S3's name of that error; empty answers without a body."""
    wait_s: float = 0.0
    """Do nothing for this long first."""
    keep_upload_bytes: int = -1
    """Reset the connection after this much of the request's body; the server gets none of it."""
    keep_download_bytes: int = -1
    """Close the connection after this much of the answer's body."""
    flipped_upload_byte: int = -1
    """Change this byte of the request's body."""
    lost_answer: bool = False
    """Let the server do it, and close without its answer."""
    then: Callable[[], object] = bool
    """Called between the server's answer and the client's."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)


class _Server(ThreadingHTTPServer):
    # pyrefly: ignore[missing-override-decorator]  # typing has it from Python 3.12 on
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up, or a server that is down: whoever asked has noticed."""


class FaultProxy:
    """Passes requests on to ``upstream``; leaving the ``with`` block closes it.

    Args:
        upstream: Address of the server, ``http://host:port``.
    """

    def __init__(self, upstream: str) -> None:
        self._address = urlsplit(upstream)
        self._lock = threading.Lock()
        self._open = 0
        self._ended = threading.Condition(self._lock)
        self._decide: Callable[[Request], Fault | None] = lambda _: None
        self._left = 0
        self.closed = threading.Event()
        self.requests: list[Request] = []
        """All that came, in order."""
        self.num_faults = 0
        """Requests that a fault befell."""
        self.struck = threading.Event()
        """Set by the first of them."""
        self._server = _Server(("127.0.0.1", 0), partial(_Exchange, self))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        """Begin to listen."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self, fault: Fault, *, method: str = "", part: str = "", times: int = 1) -> None:
        """Do this to the next requests, in place of what was asked for before.

        Args:
            fault: What happens to them.
            method: Only to those of this method; empty for all.
            part: Only to those with this in their path.
            times: To how many of them; -1 until ``heal``.
        """
        with self._lock:
            self._left = times
            self._decide = lambda r: fault if method in {"", r.method} and part in r.path else None

    def heal(self) -> None:
        """Pass everything on from now on."""
        with self._lock:
            self._left = 0

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is under way; one that its client gave up may still be."""
        with self._ended:
            return self._ended.wait_for(lambda: not self._open, timeout_s)

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Count a request while it is."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._ended:
                self._open -= 1
                self._ended.notify_all()

    def fault_of(self, request: Request) -> Fault:
        """What befalls a request; counts it."""
        with self._lock:
            self.requests.append(request)
            fault = self._decide(request) if self._left else None
            if fault is None:
                return Fault()
            self._left -= 1
            self.num_faults += 1
            self.struck.set()
            return fault

    def ask(self, request: Request, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Pass a request on: status, headers and body of the answer."""
        host, port = self._address.hostname or "", self._address.port
        connection = http.client.HTTPConnection(host, port, timeout=UPSTREAM_TIMEOUT_S)
        try:
            connection.putrequest(
                request.method, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                if name.lower() not in NOT_PASSED_ON:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: FaultProxy, *connection: Any) -> None:
        self._proxy = proxy
        super().__init__(*connection)

    def do_any(self) -> None:
        self.close_connection = True
        with self._proxy.under_way():
            self._exchange()

    def _exchange(self) -> None:
        request = Request(self.command, self.path, dict(self.headers.items()))
        fault = self._proxy.fault_of(request)
        self._proxy.closed.wait(fault.wait_s)
        body = self._body(fault)
        if body is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif fault.status:
            self._refuse(fault)
        else:
            status, headers, content = self._proxy.ask(request, body)
            fault.then()
            if not fault.lost_answer:
                self._answer(status, headers, content, keep=fault.keep_download_bytes)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do_any  # noqa: N815 - names it looks for

    def _body(self, fault: Fault) -> bytes | None:
        """The request's body; None where its connection is to be cut."""
        size_bytes = int(self.headers.get("Content-Length", 0))
        if fault.keep_upload_bytes >= 0:
            self.rfile.read(min(size_bytes, fault.keep_upload_bytes))
            return None
        body = bytearray(self.rfile.read(size_bytes))
        if 0 <= fault.flipped_upload_byte < size_bytes:
            body[fault.flipped_upload_byte] ^= 1
        return bytes(body)

    def _refuse(self, fault: Fault) -> None:
        content = f"<Error><Code>{fault.code}</Code><Message>by design</Message></Error>"
        body = content.encode() if fault.code and self.command != "HEAD" else b""
        self._answer(fault.status, [("Content-Length", str(len(body)))], body)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, keep: int = -1
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in NOT_PASSED_ON | {"transfer-encoding"}:
                self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if keep < 0 else content[:keep])

    # pyrefly: ignore[missing-override-decorator]  # typing has it from Python 3.12 on
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name above
        """Say nothing."""

import http.server
import os
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from astra_stream.errors import ConfigError, TransientError, WeightsError
from astra_stream.store.blobs import Store
from astra_stream.store.s3 import S3Store
from astra_stream.testing.store_contract import StoreContract


@pytest.fixture(scope="module")
def shared_store(
    s3_store_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Store]:
    """One client for the file: making one takes longer than most of its tests."""
    prefix = f"contract/{tmp_path_factory.mktemp('store').name}-{os.getpid()}"
    store = S3Store(
        f"s3://{s3_store_settings['bucket']}/{prefix}",
        endpoint=s3_store_settings["endpoint"],
        access_key=s3_store_settings["access_key"],
        secret_key=s3_store_settings["secret_key"],
    )
    yield store
    store.close()


@pytest.fixture
def s3_store(shared_store: S3Store) -> S3Store:
    for found in shared_store.list(""):
        shared_store.delete(found.key)
    return shared_store


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_store: S3Store) -> Store:
        return s3_store


def test_more_keys_than_one_page_are_listed():
    with FaultyServer([_page("k/0", "k/1", more=True), _page("k/2", more=False)]) as server:
        found = list(_store(server.endpoint).list("k/"))
    assert [one.key for one in found] == ["k/0", "k/1", "k/2"]
    assert {one.modified_s for one in found} == {1_800_000_000.0}


def test_a_wrong_key_is_refused_with_the_endpoint(s3_store_settings: dict[str, str]):
    endpoint = s3_store_settings["endpoint"]
    store = S3Store(
        f"s3://{s3_store_settings['bucket']}/x",
        endpoint=endpoint,
        access_key="nobody",
        secret_key="wrong",
    )
    with pytest.raises(ConfigError, match="must admit the access key: got InvalidAccessKeyId"):
        store.put("key", b"x")


def test_an_unreachable_store_is_named_after_the_deadline():
    store = _store("http://127.0.0.1:9", deadline_s=0.1)
    with pytest.raises(TransientError, match=r"s3://b/p at http://127.0.0.1:9 must answer within"):
        store.put("key", b"x")


def test_a_closed_store_does_not_go_on_trying():
    store = _store("http://127.0.0.1:9", deadline_s=60.0)
    store.close()
    with pytest.raises(TransientError, match="could not read 'key'"):
        store.get("key", max_bytes=1)


def test_a_url_without_a_bucket_is_refused():
    with pytest.raises(ConfigError, match=r"store\.url must be s3://bucket/prefix: got '/tmp/x'"):
        S3Store("/tmp/x", endpoint=None, access_key="a", secret_key="s")


class FaultyServer:
    """Answers from a list, one entry a request: what no real server can be asked to do."""

    def __init__(self, answers: list[tuple[int, dict[str, str], bytes]]) -> None:
        self.requests: list[Any] = []
        left = iter(answers)
        seen = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append((self.command, dict(self.headers)))
                status, headers, body = next(left)
                self.send_response(HTTPStatus(status))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "FaultyServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _store(endpoint: str, *, deadline_s: float = 5.0) -> S3Store:
    return S3Store(
        "s3://b/p", endpoint=endpoint, access_key="a", secret_key="s", deadline_s=deadline_s
    )


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    return status, {"Content-Length": str(len(body))}, body


def _page(*keys: str, more: bool) -> tuple[int, dict[str, str], bytes]:
    rest = "<Size>1</Size><LastModified>2027-01-15T08:00:00.000Z</LastModified>"
    entries = "".join(f"<Contents><Key>p/{k}</Key>{rest}</Contents>" for k in keys)
    token = "<NextContinuationToken>t</NextContinuationToken>" if more else ""
    body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}"
    body += "</ListBucketResult>"
    return 200, {"Content-Length": str(len(body))}, body.encode()


CUT_OFF = (200, {"ETag": '"t"', "Content-Length": "6"}, b"abc")


def test_an_interrupted_read_goes_on_where_it_stopped():
    rest = {"ETag": '"t"', "Content-Length": "3", "Content-Range": "bytes 3-5/6"}
    with FaultyServer([CUT_OFF, (206, rest, b"def")]) as server:
        assert _store(server.endpoint).get("key", max_bytes=6) == b"abcdef"
    assert server.requests[1][1]["Range"] == "bytes=3-"
    assert server.requests[1][1]["If-Match"] == '"t"'


def test_a_read_never_mixes_two_objects(tmp_path: Path):
    with (
        FaultyServer([CUT_OFF, _error(412, "PreconditionFailed")]) as server,
        pytest.raises(WeightsError, match=r"'key' in s3://b/p at .* must keep its bytes"),
    ):
        _store(server.endpoint).get_file("key", tmp_path / "x", max_bytes=6)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_ignores_ranges_is_refused():
    whole = (200, {"ETag": '"t"', "Content-Length": "6"}, b"abcdef")
    with (
        FaultyServer([CUT_OFF, whole]) as server,
        pytest.raises(WeightsError, match="must continue at byte 3: got None"),
    ):
        _store(server.endpoint).get("key", max_bytes=6)


def test_a_conflict_is_tried_again():
    conflict = _error(409, "ConditionalRequestConflict")
    with FaultyServer([conflict, (200, {"Content-Length": "0"}, b"")]) as server:
        _store(server.endpoint).put("key", b"x")
    assert len(server.requests) == 2


def test_a_full_disk_is_an_error_that_names_the_store():
    full = [_error(500, "InternalError")] * 20
    with (
        FaultyServer(full) as server,
        pytest.raises(TransientError, match=r"could not write 'key': got .*InternalError"),
    ):
        _store(server.endpoint, deadline_s=0.2).put("key", b"x")


def test_equal_bytes_are_recognised_without_the_stored_hash():
    head = (200, {"Content-Length": "1", "ETag": '"t"'}, b"")
    body = (200, {"Content-Length": "1", "ETag": '"t"'}, b"x")
    with FaultyServer([_error(412, "PreconditionFailed"), head, body]) as server:
        _store(server.endpoint).put("key", b"x")

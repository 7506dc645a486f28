"""A store in an S3 bucket, on any server that honours conditional writes.

A call is tried until its deadline, and ends by success or by an error that names the endpoint. An
object travels with its SHA-256, which the server compares before there is an object at all.
"""

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.exceptions import (
    ConnectionError as NoConnectionError,
)

from astra_stream.clock import Clock, SystemClock
from astra_stream.errors import ConfigError, WeightsError
from astra_stream.store.blobs import (
    CHUNK_BYTES,
    StoredObject,
    checked_key,
    file_sha256,
    other_bytes,
    too_large,
    whole_file,
)
from astra_stream.store.tries import Tries

T = TypeVar("T")

DEADLINE_S = 30.0
"""Seconds after which a failing call is not tried again, unless said."""
_UNREACHED = (NoConnectionError, HTTPClientError, IncompleteReadError)
"""What a client raises where there is no answer, or no whole one."""

_EXISTS = 412
_MISSING = 404
_CONFLICT = 409
_PARTIAL = 206
_RETRIED = frozenset({_CONFLICT, 408, 425, 429})
_RETRIED_CODES = frozenset(
    {"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"}
)
"""Answered with 400 to a request whose bytes were lost or changed on their way."""
_SERVER_ERROR = 500
_NOT_IMPLEMENTED = 501
_REFUSED = frozenset({401, 403})
_ANSWERS = frozenset({_EXISTS, _MISSING})
"""What a server says of an object, not of itself."""
_READS_IN_DEADLINE = 3
"""How often a connection that falls silent is left for another before the deadline."""


class S3Store:
    """Objects in a bucket below a prefix; safe to share between threads."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str | None,
        access_key: str,
        secret_key: str,
        region: str = "us-east-1",
        deadline_s: float = DEADLINE_S,
        checksums: Literal["when_required", "when_supported"] = "when_supported",
        clock: Clock | None = None,
    ) -> None:
        """Prepare a client; nothing is contacted.

        Args:
            url: ``s3://bucket/prefix``; the prefix may be empty.
            endpoint: Address of the server; None for Amazon's.
            access_key: Access key id.
            secret_key: Secret access key.
            region: Region to sign for.
            deadline_s: Seconds after which a call that failed is not tried again; the try that
                is under way then may take another third.
            checksums: ``when_required`` leaves the server's checksums of its answers aside, for
                servers whose answer to a range carries that of the whole object.
            clock: Measures the deadline.

        Raises:
            ConfigError: ``url`` names no bucket.
        """
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise ConfigError(
                f"store.url must be s3://bucket/prefix: got {url!r}. Name the bucket in it."
            )
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        self._where = f"{url} at {endpoint or 'AWS'}"
        self._deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._closed = threading.Event()
        settings = Config(
            connect_timeout=min(5.0, deadline_s),
            read_timeout=min(60.0, deadline_s / _READS_IN_DEADLINE),
            # Tried again here, with a deadline; the client only slows down when told to.
            retries={"mode": "adaptive", "total_max_attempts": 1},
            max_pool_connections=16,
            tcp_keepalive=True,
            s3={"addressing_style": "path" if endpoint else "auto"},
            request_checksum_calculation=checksums,
            response_checksum_validation=checksums,
        )
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            region_name=region,
            config=settings,
        )

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object that does not exist yet; see ``Store.put``."""
        body = bytes(data)
        self._put(key, lambda: nullcontext(body), len(body), hashlib.sha256(body).hexdigest())

    def put_file(self, key: str, path: Path) -> None:
        """The same for a file's bytes, streamed; at most 5 GiB."""
        self._put(key, lambda: path.open("rb"), path.stat().st_size, file_sha256(path))

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read an object of at most ``max_bytes``; see ``Store.get``."""
        return b"".join(self._chunks(key, max_bytes))

    def get_file(self, key: str, path: Path, *, max_bytes: int) -> None:
        """The same into a file, which appears whole or not at all."""
        with whole_file(path) as file:
            for chunk in self._chunks(key, max_bytes):
                file.write(chunk)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with a prefix, in the order of their keys."""
        token: dict[str, str] = {}
        while True:
            page = self._call(
                f"list {prefix!r}",
                self._client.list_objects_v2,
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                **token,
            )
            for entry in page.get("Contents", []):
                key = entry["Key"].removeprefix(self._prefix)
                yield StoredObject(key, entry["Size"], entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """Remove an object; none is no error."""
        self._call(f"delete {key!r}", self._client.delete_object, **self._name(key))

    def close(self) -> None:
        """End what still tries; calls after it fail at their first error."""
        self._closed.set()

    def _put(
        self, key: str, source: Callable[[], AbstractContextManager[Any]], size: int, sha256: str
    ) -> None:
        request = {
            **self._name(key),
            "ContentLength": size,
            "IfNoneMatch": "*",
            "ChecksumSHA256": base64.b64encode(bytes.fromhex(sha256)).decode(),
            "Metadata": {"sha256": sha256},
        }

        def create() -> bool:
            try:
                with source() as body:
                    self._client.put_object(**request, Body=body)
            except ClientError as error:
                if _status(error) == _EXISTS:
                    return False
                raise
            return True

        tries = self._tries(f"write {key!r}")
        while not self._call(f"write {key!r}", create) and not self._holds(key, size, sha256):
            tries.again("it is there when written and not when read")

    def _holds(self, key: str, size_bytes: int, sha256: str) -> bool:
        """Whether the object is there with these bytes; False where it is gone by now."""
        try:
            head = self._call(f"look at {key!r}", self._client.head_object, **self._name(key))
        except ClientError as error:
            if _status(error) == _MISSING:
                return False
            raise
        stored = head["Metadata"].get("sha256")
        if stored is None and head["ContentLength"] == size_bytes:
            digest = hashlib.sha256()
            for chunk in self._chunks(key, size_bytes):
                digest.update(chunk)
            stored = digest.hexdigest()
        if head["ContentLength"] != size_bytes or stored != sha256:
            raise other_bytes(key, self._where)
        return True

    def _chunks(self, key: str, max_bytes: int) -> Iterator[bytes]:
        """Read to the end; an interrupted body goes on where it stopped, of the same object."""
        what, name = f"read {key!r}", self._name(key)
        got, tag, total = 0, "", -1
        tries = self._tries(what)
        while got != total:
            same = {"IfMatch": tag} if tag else {}
            answer = self._object(key, {**name, **same, **_rest(got)})
            if total < 0:
                tag, total = answer["ETag"], answer["ContentLength"]
                if total > max_bytes:
                    raise too_large(key, total, max_bytes)
            self._require_resumed(key, got, answer)
            ended = f"the end of its body at byte {got} of {total}"
            try:
                for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                    got += len(chunk)
                    tries.succeeded()
                    tries = self._tries(what)
                    yield chunk
            except FlexibleChecksumError as error:
                raise WeightsError(
                    f"object {key!r} in {self._where} must match its checksum: got {error}. "
                    "Read it again; if it stays so, the stored bytes are damaged."
                ) from error
            except _UNREACHED as error:
                ended = str(error)
            if got != total:
                tries.again(ended)

    def _object(self, key: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._call(f"read {key!r}", self._client.get_object, **request)
        except ClientError as error:
            if _status(error) == _MISSING:
                raise KeyError(key) from None
            if _status(error) == _EXISTS:
                raise other_bytes(key, self._where) from error
            raise
        return answer

    def _require_resumed(self, key: str, got: int, answer: dict[str, Any]) -> None:
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        begins = answer.get("ContentRange", "").startswith(f"bytes {got}-")
        if got and (status != _PARTIAL or not begins):
            raise WeightsError(
                f"object {key!r} in {self._where} must continue at byte {got}: got "
                f"{answer.get('ContentRange')!r}. Use a server that honours ranges."
            )

    def _tries(self, what: str) -> Tries:
        return Tries(
            what,
            where=self._where,
            deadline_s=self._deadline_s,
            clock=self._clock,
            closed=self._closed,
        )

    def _call(self, what: str, call: Callable[..., T], **arguments: Any) -> T:
        """Ask until there is an answer; what ``_ANSWERS`` has are answers too, for the caller."""
        tries = self._tries(what)
        while True:
            try:
                answer = call(**arguments)
            except ClientError as error:
                if _status(error) in _ANSWERS and _code(error) != "NoSuchBucket":
                    tries.succeeded()
                    raise
                self._require_passing(what, error)
                tries.again(error)
            except _UNREACHED as error:
                tries.again(error)
            else:
                tries.succeeded()
                return answer

    def _require_passing(self, what: str, error: ClientError) -> None:
        """Refuse an error that another try would not change."""
        status, code = _status(error), _code(error)
        if status in _REFUSED:
            raise ConfigError(
                f"store {self._where} must admit the access key: got {code}. "
                "Correct the credentials or their rights."
            ) from error
        if code == "NoSuchBucket":
            raise ConfigError(
                f"store {self._where} must have the bucket {self._bucket!r}: got none. "
                "Make it, or correct store.url."
            ) from error
        is_servers = status >= _SERVER_ERROR and status != _NOT_IMPLEMENTED
        if not is_servers and status not in _RETRIED and code not in _RETRIED_CODES:
            raise ConfigError(
                f"store {self._where} must be able to {what}: got {error}. "
                "Use a server that can; docs/operate/external-kafka-and-s3.md says what is needed."
            ) from error

    def _name(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + checked_key(key)}


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


def _code(error: ClientError) -> str:
    return error.response["Error"]["Code"]


def _rest(got: int) -> dict[str, str]:
    return {"Range": f"bytes={got}-"} if got else {}

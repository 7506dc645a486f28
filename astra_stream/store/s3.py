"""A store in an S3 bucket, on any server that honours conditional writes.

Every call ends within its deadline, by success or by an error that names the endpoint.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError

from astra_stream.clock import Clock, SystemClock
from astra_stream.errors import ConfigError, TransientError, WeightsError
from astra_stream.store.blobs import (
    CHUNK_BYTES,
    checked_key,
    file_sha256,
    other_bytes,
    too_large,
    whole_file,
)

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
"""Seconds before the second try; each pause is twice the one before."""
MAX_PAUSE_S = 5.0
"""Longest pause, seconds."""
_EXISTS = 412
_MISSING = 404
_CONFLICT = 409
_PARTIAL = 206
_RETRIED = frozenset({_CONFLICT, 408, 425, 429})
_SERVER_ERROR = 500
_REFUSED = frozenset({401, 403})


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
        deadline_s: float = 30.0,
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
            deadline_s: Seconds that one call may go on trying.
            checksums: ``when_required`` for servers that store checksum trailers in the object.
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
            read_timeout=min(60.0, deadline_s),
            retries={"mode": "standard", "total_max_attempts": 1},
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

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Keys below a prefix with their size in bytes, in order."""
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
                yield entry["Key"].removeprefix(self._prefix), entry["Size"]
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
        name = self._name(key)

        def put() -> None:
            with source() as body:
                self._client.put_object(
                    **name,
                    Body=body,
                    ContentLength=size,
                    IfNoneMatch="*",
                    Metadata={"sha256": sha256},
                )

        try:
            self._call(f"write {key!r}", put)
        except ClientError as error:
            if _status(error) != _EXISTS:
                raise
            if not self._holds(key, size, sha256):
                raise other_bytes(key, self._where) from None

    def _holds(self, key: str, size_bytes: int, sha256: str) -> bool:
        head = self._call(f"look at {key!r}", self._client.head_object, **self._name(key))
        if head["ContentLength"] != size_bytes:
            return False
        stored = head["Metadata"].get("sha256")
        if stored is None:
            digest = hashlib.sha256()
            for chunk in self._chunks(key, size_bytes):
                digest.update(chunk)
            stored = digest.hexdigest()
        return bool(stored == sha256)

    def _chunks(self, key: str, max_bytes: int) -> Iterator[bytes]:
        """Read to the end; an interrupted body goes on where it stopped, of the same object."""
        name = self._name(key)
        got, tag, total = 0, "", -1
        tries = Tries(self._clock, self._deadline_s, self._closed)
        while got != total:
            resume = {"Range": f"bytes={got}-", "IfMatch": tag} if got else {}
            answer = self._object(key, {**name, **resume})
            if total < 0:
                tag, total = answer["ETag"], answer["ContentLength"]
                if total > max_bytes:
                    raise too_large(key, total, max_bytes)
            self._require_resumed(key, got, answer)
            try:
                for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                    got += len(chunk)
                    tries = Tries(self._clock, self._deadline_s, self._closed)
                    yield chunk
            except FlexibleChecksumError as error:
                raise WeightsError(
                    f"object {key!r} in {self._where} must match its checksum: got {error}. "
                    "Read it again; if it stays so, the stored bytes are damaged."
                ) from error
            except BotoCoreError as error:
                self._again(tries, f"read {key!r}", error)

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

    def _call(self, what: str, call: Callable[..., T], **arguments: Any) -> T:
        tries = Tries(self._clock, self._deadline_s, self._closed)
        while True:
            try:
                return call(**arguments)
            except ClientError as error:
                self._require_admitted(error)
                if _status(error) not in _RETRIED and _status(error) < _SERVER_ERROR:
                    raise
                self._again(tries, what, error)
            except BotoCoreError as error:
                self._again(tries, what, error)

    def _again(self, tries: "Tries", what: str, error: Exception) -> None:
        if not tries.wait():
            raise TransientError(
                f"store {self._where} must answer within {self._deadline_s:g} s: could not {what}: "
                f"got {error}. Check that it runs and has room, then start again."
            ) from error

    def _require_admitted(self, error: ClientError) -> None:
        if _status(error) in _REFUSED:
            raise ConfigError(
                f"store {self._where} must admit the access key: got "
                f"{error.response['Error']['Code']}. Correct the credentials or their rights."
            ) from error
        if error.response["Error"]["Code"] == "NoSuchBucket":
            raise ConfigError(
                f"store {self._where} must have the bucket {self._bucket!r}: got none. "
                "Make it, or correct store.url."
            ) from error

    def _name(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + checked_key(key)}


class Tries:
    """Pauses between the tries of one call, up to its deadline."""

    def __init__(self, clock: Clock, deadline_s: float, closed: threading.Event) -> None:
        """Begin to count now."""
        self._clock = clock
        self._give_up_s = clock.monotonic_s() + deadline_s
        self._closed = closed
        self._pause_s = FIRST_PAUSE_S

    def wait(self) -> bool:
        """Pause; False when the deadline is over or the store was closed."""
        left_s = self._give_up_s - self._clock.monotonic_s()
        pause_s = min(self._pause_s, left_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        return left_s > 0 and not self._closed.wait(pause_s)


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]

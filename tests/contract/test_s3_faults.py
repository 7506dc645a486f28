"""The S3 store against a real server behind a proxy that injects faults."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astra_stream.errors import ConfigError, TransientError, WeightsError
from astra_stream.store.s3 import S3Store
from astra_stream.testing.fault_proxy import Fault, FaultProxy

BODY = bytes(range(256)) * 2048
"""512 KiB: more than a socket takes at once."""
HASTY_S = 0.6

ANSWERS = {
    "500": Fault(status=500, code="InternalError"),
    "500 without a body": Fault(status=500),
    "503": Fault(status=503),
    "503 slow down": Fault(status=503, code="SlowDown"),
    "400 bytes lost": Fault(status=400, code="RequestTimeout"),
    "slow": Fault(wait_s=0.3),
    "no answer": Fault(lost_answer=True),
}
UPLOADS = ANSWERS | {
    "409": Fault(status=409, code="ConditionalRequestConflict"),
    "cut before the body": Fault(keep_upload_bytes=0),
    "cut in the body": Fault(keep_upload_bytes=70_000),
    "a changed byte": Fault(flipped_upload_byte=70_000),
}
DOWNLOADS = ANSWERS | {
    "cut before the body": Fault(keep_download_bytes=0),
    "cut at the first byte": Fault(keep_download_bytes=1),
    "cut in the body": Fault(keep_download_bytes=70_001),
}


@pytest.fixture(scope="module")
def all_faults(s3_store_settings: dict[str, str]) -> Iterator[FaultProxy]:
    with FaultProxy(s3_store_settings["endpoint"]) as proxy:
        yield proxy


@pytest.fixture
def faults(all_faults: FaultProxy) -> Iterator[FaultProxy]:
    all_faults.requests.clear()
    yield all_faults
    all_faults.heal()
    assert all_faults.wait_idle(10.0), "a request that was given up acts on the next test"


@pytest.fixture(scope="module")
def new_store(s3_store_settings: dict[str, str]) -> Iterator[Callable[[str, float], S3Store]]:
    opened: dict[tuple[str, float], S3Store] = {}

    def get(endpoint: str, deadline_s: float) -> S3Store:
        if (endpoint, deadline_s) not in opened:
            opened[endpoint, deadline_s] = S3Store(
                f"s3://{s3_store_settings['bucket']}/faults-{os.getpid()}",
                endpoint=endpoint,
                access_key=s3_store_settings["access_key"],
                secret_key=s3_store_settings["secret_key"],
                deadline_s=deadline_s,
            )
        return opened[endpoint, deadline_s]

    yield get
    for store in opened.values():
        store.close()


@pytest.fixture
def store(faults: FaultProxy, new_store: Callable[[str, float], S3Store]) -> S3Store:
    """Meets the faults, and is patient."""
    return new_store(faults.endpoint, 20.0)


@pytest.fixture
def hasty(faults: FaultProxy, new_store: Callable[[str, float], S3Store]) -> S3Store:
    """Meets the faults, and gives up soon."""
    return new_store(faults.endpoint, HASTY_S)


@pytest.fixture
def direct(
    s3_store_settings: dict[str, str], new_store: Callable[[str, float], S3Store]
) -> S3Store:
    """Meets no fault; empty at the start of each test."""
    store = new_store(s3_store_settings["endpoint"], 20.0)
    for found in store.list(""):
        store.delete(found.key)
    return store


@pytest.mark.parametrize("name", UPLOADS)
def test_an_upload_goes_on_after_a_fault(
    faults: FaultProxy, store: S3Store, direct: S3Store, name: str, tmp_path: Path
):
    (tmp_path / "in").write_bytes(BODY)
    faults.fail(UPLOADS[name], method="PUT")
    store.put("bytes", BODY)
    faults.fail(UPLOADS[name], method="PUT")
    store.put_file("file", tmp_path / "in")
    assert direct.get("bytes", max_bytes=len(BODY)) == BODY
    assert direct.get("file", max_bytes=len(BODY)) == BODY


@pytest.mark.parametrize("name", DOWNLOADS)
def test_a_download_goes_on_after_a_fault(
    faults: FaultProxy, store: S3Store, direct: S3Store, name: str, tmp_path: Path
):
    direct.put("key", BODY)
    faults.fail(DOWNLOADS[name], method="GET")
    assert store.get("key", max_bytes=len(BODY)) == BODY
    faults.fail(DOWNLOADS[name], method="GET", times=3)
    store.get_file("key", tmp_path / "out", max_bytes=len(BODY))
    assert (tmp_path / "out").read_bytes() == BODY
    assert faults.num_faults
    if "cut in" in name:
        ranges = [r.headers.get("Range") for r in faults.requests]
        assert ranges == [None, "bytes=70001-", None, *_ranges(70_001, 3)]


def _ranges(step: int, count: int) -> list[str]:
    return [f"bytes={step * number}-" for number in range(1, count + 1)]


def test_a_body_cut_again_and_again_is_put_together(
    faults: FaultProxy, hasty: S3Store, direct: S3Store
):
    direct.put("key", BODY)
    faults.fail(Fault(keep_download_bytes=30_000), method="GET", times=-1)
    assert hasty.get("key", max_bytes=len(BODY)) == BODY
    assert len(faults.requests) == -(-len(BODY) // 30_000)


CALLS: dict[str, Callable[[S3Store], object]] = {
    "write 'new'": lambda store: store.put("new", BODY),
    "read 'key'": lambda store: store.get("key", max_bytes=len(BODY)),
    "list 'k'": lambda store: list(store.list("k")),
    "delete 'key'": lambda store: store.delete("key"),
}


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("name", ["500", "503", "no answer", "silence"])
def test_a_fault_that_stays_is_one_error_that_names_the_endpoint_and_what_was_asked(
    faults: FaultProxy, hasty: S3Store, direct: S3Store, what: str, name: str
):
    direct.put("key", BODY)
    faults.fail({**ANSWERS, "silence": Fault(wait_s=HASTY_S)}[name], times=-1)
    began_s = time.monotonic()
    rule = rf"store s3://.* at {faults.endpoint} must answer within 0.6 s: could not {what}: got "
    with pytest.raises(TransientError, match=rule):
        CALLS[what](hasty)
    assert time.monotonic() - began_s < 10 * HASTY_S
    assert len(faults.requests) > 1


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize(
    "refusal",
    [
        Fault(status=501, code="NotImplemented"),
        Fault(status=400, code="InvalidArgument"),
        Fault(status=403, code="AccessDenied"),
        Fault(status=404, code="NoSuchBucket"),
    ],
    ids=lambda fault: fault.code,
)
def test_what_no_other_try_would_change_is_refused_at_once(
    faults: FaultProxy, store: S3Store, what: str, refusal: Fault
):
    faults.fail(refusal, times=-1)
    with pytest.raises(ConfigError, match=rf"store s3://.* at {faults.endpoint} must "):
        CALLS[what](store)
    assert len(faults.requests) == 1


def test_an_upload_whose_bytes_change_on_their_way_never_becomes_an_object(
    faults: FaultProxy, hasty: S3Store, direct: S3Store
):
    faults.fail(Fault(flipped_upload_byte=5), method="PUT", times=-1)
    with pytest.raises(TransientError, match="could not write 'key': got "):
        hasty.put("key", BODY)
    with pytest.raises(KeyError):
        direct.get("key", max_bytes=len(BODY))


def test_a_lost_answer_to_other_bytes_is_still_refused(
    faults: FaultProxy, store: S3Store, direct: S3Store
):
    direct.put("key", b"first")
    faults.fail(Fault(lost_answer=True), method="PUT")
    with pytest.raises(WeightsError, match=r"'key' .* must keep its bytes"):
        store.put("key", BODY)
    assert direct.get("key", max_bytes=9) == b"first"


def test_an_object_that_is_deleted_while_it_is_compared_is_written_again(
    faults: FaultProxy, store: S3Store, direct: S3Store
):
    faults.fail(Fault(status=412, code="PreconditionFailed"), method="PUT")
    store.put("key", BODY)
    assert direct.get("key", max_bytes=len(BODY)) == BODY
    assert [request.method for request in faults.requests] == ["PUT", "HEAD", "PUT"]


@pytest.mark.parametrize("after_bytes", [0, 70_001])
def test_a_download_that_goes_on_never_mixes_two_objects(
    faults: FaultProxy, store: S3Store, direct: S3Store, after_bytes: int, tmp_path: Path
):
    direct.put("key", BODY)

    def replaced() -> None:
        direct.delete("key")
        direct.put("key", BODY[::-1])

    faults.fail(Fault(keep_download_bytes=after_bytes, then=replaced), method="GET")
    with pytest.raises(WeightsError, match=r"'key' .* must keep its bytes"):
        store.get_file("key", tmp_path / "out", max_bytes=len(BODY))
    assert list(tmp_path.iterdir()) == []


def test_a_server_whose_checksums_of_ranges_are_wrong_can_be_used(
    faults: FaultProxy, s3_store_settings: dict[str, str], direct: S3Store
):
    direct.put("key", BODY)
    whole = S3Store(
        f"s3://{s3_store_settings['bucket']}/faults-{os.getpid()}",
        endpoint=faults.endpoint,
        access_key=s3_store_settings["access_key"],
        secret_key=s3_store_settings["secret_key"],
        checksums="when_required",
    )
    faults.fail(Fault(keep_download_bytes=70_001), method="GET")
    assert whole.get("key", max_bytes=len(BODY)) == BODY
    asked = [request.headers.get("x-amz-checksum-mode") for request in faults.requests]
    assert asked == [None, None]
    whole.put("other", BODY)
    assert faults.requests[-1].headers["x-amz-checksum-sha256"]
    whole.close()

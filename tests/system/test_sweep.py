"""``astra sweep`` on the real log and store."""

import json
from contextlib import closing

import pytest

from astra_stream.analysis.orphans import PENDING, YOUNG
from astra_stream.cli.connect import open_store
from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.records import PolicyVersion, WeightAnnouncement

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

PAST, AHEAD = (f"weights/main/0/0000000{number}/model-0123.safetensors" for number in (1, 2))


def announce(run, number: int) -> None:
    one = WeightAnnouncement(
        policy="main",
        version=PolicyVersion(0, number),
        kind="snapshot",
        root_hash="0" * 64,
        model_fingerprint="0" * 64,
        tensors=(),
        objects=(),
    )
    with closing(run.log.writer("test")) as writer, writer.transaction() as txn:
        value = Codec(declared("schemas")).encode(one)
        txn.write(run.names.weights("main"), b"main", value)


def test_a_sweep_lists_what_nothing_names_and_deletes_what_nothing_can_name(lab):
    run = lab.run()
    announce(run, 1)
    with closing(open_store(run.config, run.stack)) as store:
        store.put(PAST, b"past")
        store.put(AHEAD, b"ahead")

        def sweep(*words: str) -> dict[str, tuple[str, bool]]:
            done = lab.astra_here("sweep", run.directory, "--json", *words)
            assert done.returncode == 0, done.stderr
            return {one["key"]: (one["kept"], one["deleted"]) for one in json.loads(done.stdout)}

        assert sweep("--delete") == {PAST: (YOUNG, False), AHEAD: (PENDING, False)}
        assert sweep("--grace", "1ms") == {PAST: ("", False), AHEAD: (PENDING, False)}
        assert sweep("--grace", "1ms", "--delete") == {PAST: ("", True), AHEAD: (PENDING, False)}
        assert [found.key for found in store.list("")] == [AHEAD]
    shown = lab.astra_here("sweep", run.directory)
    assert PENDING in shown.stdout

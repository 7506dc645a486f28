"""Whole runs on a real broker and a real S3 server: they learn, go on, share work, and repeat."""

import json
import math
import os
import select
import signal
import subprocess
import time
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from astra_stream.declarations import declared
from astra_stream.local import read_stack
from astra_stream.log.codec import Codec
from astra_stream.log.kafka import KafkaLog

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

POLICY = "main"
CODEC = Codec(declared("schemas"))
WAIT_S = 400.0
KEYS = {
    "steps",
    "samples",
    "tokens",
    "reward_first",
    "reward_last",
    "accuracy_before",
    "accuracy_after",
    "staleness_p50",
    "staleness_max",
    "wall_s",
    "time_share",
}
SHUFFLE = """
import zlib
from dataclasses import replace

import numpy as np

from astra_stream.algorithms.interface import processor


@processor
def shuffle_rewards(group):
    rng = np.random.default_rng(zlib.crc32(group.group_id.encode()))
    rewards = [group.trajectories[i].reward for i in rng.permutation(len(group.trajectories))]
    yield replace(
        group,
        trajectories=tuple(
            replace(t, reward=reward, raw_outcome=reward)
            for t, reward in zip(group.trajectories, rewards, strict=True)
        ),
    )
"""


def test_the_demo_is_killed_leaves_no_orphan_goes_on_and_has_learned(lab):
    example = lab.example / "run.toml"
    changes = ["--set", "steps=30", "--set", "evaluate.every=30"]
    with subprocess.Popen(
        lab.command("run", example, *changes, "--runs", lab.directory),
        cwd=lab.directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Its own words, for lack of another way to know when there is a broker to ask.
        said = iter(process.stderr.readline, "")
        assert any("services" in line for line in said)
        (directory,) = lab.directory.glob("arithmetic-*")
        wait_for_version(directory, "arithmetic", 2)
        servers = read_stack(directory).servers
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert all(server.wait_gone(30) for server in servers.values())
    wait_until_gone(lab)

    done = lab.astra("run", "--resume", directory, "--json")
    assert done.returncode == 0, done.stderr
    assert lab.processes() == []
    summary = json.loads(done.stdout)
    assert summary == json.loads((directory / "summary.json").read_text())
    assert summary.keys() >= KEYS
    assert (summary["steps"], summary["version"]) == (30, "v30")
    assert summary["samples"] == 30 * 32 * 8
    assert summary["accuracy_before"] <= 0.8
    assert summary["accuracy_after"] >= 0.9
    assert summary["reward_last"] - summary["reward_first"] >= 0.15
    assert 0 <= summary["staleness_p50"] <= summary["staleness_max"] <= 2
    assert math.isclose(sum(summary["time_share"].values()), 1.0)
    assert (directory / "run.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_services_start_in_any_order_and_a_rate_of_zero_changes_nothing(lab):
    run = lab.run(steps=5, **{"policies.main.optimizer": {"lr": 0.0}})
    run.start("assembler", "rollout-0", "pipeline", "train")
    run.wait_for_version(0)
    run.start("scheduler")
    assert set(run.finish().values()) == {0}
    assert len(set(run.audit(steps=5))) == 1
    announced = run.records(run.names.weights(POLICY))[1:-1]
    assert len(announced) == 5
    assert max(a.train_metrics["ratio_max_abs_log"] for a in announced) <= 1e-4


def test_rewards_shuffled_within_their_groups_teach_nothing(lab):
    (lab.directory / "shuffle.py").write_text(SHUFFLE)
    pipeline = [{"use": "shuffle:shuffle_rewards"}, {"use": "drop_uniform"}]
    changes = {
        "prompts.source.held_out": 120,
        "rollout.group_size": 8,
        "policies.main.pipeline": pipeline,
        "policies.main.batch.groups": 12,
        "evaluate": {"every": 12},
    }
    run = lab.run(steps=12, **changes)
    run.start()
    assert set(run.finish().values()) == {0}
    run.audit(steps=12)
    before, after = run.records(run.names.evaluations)
    assert (before.requested_version.number, after.requested_version.number) == (0, 12)
    assert after.final
    assert after.mean_at_k <= before.mean_at_k + 0.08


def test_a_second_worker_takes_its_share_and_leaves_without_a_trace(lab):
    # Nothing is learned, so that there is something to learn for as long as the test takes.
    run = lab.run(steps=1000, **{"policies.main.optimizer": {"lr": 0.0}})
    run.start()
    run.wait_for_version(2)
    second = run.start_worker(1)
    group = run.names.group("rollout", "main")
    admin = AdminClient({"bootstrap.servers": run.stack.bootstrap})
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s and not run.supervisor.has_ended(second, within_s=0.2):
        if len(admin.describe_consumer_groups([group])[group].result(30).members) == 2:
            break
    joined_s = time.time()
    trajectories = run.names.trajectories(POLICY)
    first = run.wait_for(trajectories, lambda t: t.worker.endswith("/1"))
    assert first.timestamp_ms / 1000 - joined_s <= 10.0

    assert run.supervisor.stop([second]) == {second: 0}
    # Batches wait for every group that is still played, so none can be lost and these be made.
    newest = max(a.version.number for a in run.records(run.names.weights(POLICY)))
    run.wait_for_version(newest + 6)
    assert set(run.supervisor.stop().values()) == {0}
    played = run.records(trajectories)
    assert len({t.trajectory_id for t in played}) == len(played)
    assert {t.worker.rpartition("/")[2] for t in played} == {"0", "1"}


def wait_for_version(directory, run, number):
    log = KafkaLog(read_stack(directory).bootstrap)
    ends_s = time.monotonic() + WAIT_S
    with closing(log), closing(log.assign([f"{run}.weights.{POLICY}"])) as reader:
        while time.monotonic() < ends_s:
            announced = [CODEC.decode(m.value) for m in reader.poll(1.0)]
            if any(a.version.number >= number for a in announced):
                return
    pytest.fail(f"version {number} must be announced within {WAIT_S} s")


def wait_until_gone(lab):
    """The kernel ends children with their parent, and takes a moment to do so."""
    for pid in lab.pids():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(descriptor) as handle:
            assert select.select([handle], [], [], 30.0)[0], f"process {pid} must end"
    assert lab.processes() == []


def test_a_repeatable_run_writes_the_same_bytes_again(lab):
    changes = {
        "repeatable": True,
        "policies.main.max_staleness": 0,
        "policies.main.checkpoint.every": 2,
    }
    found = []
    for name in ("-a", "-b"):
        run = lab.run(name, steps=2, **changes)
        run.start()
        assert set(run.finish().values()) == {0}
        hashes = run.audit(steps=2)
        names = run.names
        topics = {
            "prompts": names.prompts,
            "requests": names.requests(),
            "trajectories": names.trajectories(POLICY),
            "groups": names.groups(POLICY),
            "batches": names.batches(POLICY),
            "weights": names.weights(POLICY),
            "outcomes": names.outcomes,
            "metrics": names.metrics,
        }
        written = {
            kind: [(m.partition, m.key, m.value) for m in run.messages(topic)]
            for kind, topic in topics.items()
        }
        found.append((hashes, written))
    (hashes, first), (hashes_again, again) = found
    assert hashes == hashes_again
    assert len(set(hashes)) == 3
    for kind, records in first.items():
        assert records
        assert records == again[kind], kind

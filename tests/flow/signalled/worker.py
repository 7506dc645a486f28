"""A rollout worker on a log in memory whose episodes end once it is stopped, or never."""

import asyncio
import sys
import threading
from pathlib import Path

import numpy as np

from astra_stream.cli.signals import stop_on_signal
from astra_stream.clock import SystemClock
from astra_stream.declarations import declared
from astra_stream.engines.interface import WeightUpdate
from astra_stream.engines.scripted import ScriptedEngine
from astra_stream.environments.verifiable import Verifiable
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import (
    PolicyNeed,
    PolicyVersion,
    RolloutRequest,
    Sampling,
    WeightAnnouncement,
)
from astra_stream.rollout.episode import Player
from astra_stream.rollout.service import RolloutWorker
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.testing.builders import make_prompt

TOPICS, CODEC = TopicNames("t"), Codec(declared("schemas"))
VERSION = PolicyVersion(0, 0)
ANNOUNCEMENT = WeightAnnouncement(
    policy="main",
    version=VERSION,
    kind="snapshot",
    root_hash="0" * 64,
    model_fingerprint="0" * 64,
    tensors=(),
    objects=(),
)
REQUEST = RolloutRequest(
    request_id="g/0/0",
    group_id="g",
    prompt=make_prompt(),
    policies=(PolicyNeed(policy="main", min_version=VERSION),),
    first_sample=0,
    num_samples=2,
    group_size=2,
    sampling=Sampling(max_new_tokens=4),
)
SETTINGS = WorkerSettings(
    policy="main",
    requests_topic=TOPICS.requests(),
    trajectories_topic=TOPICS.trajectories("main"),
    evaluation_trajectories_topic=TOPICS.evaluation_trajectories("main"),
    outcomes_topic=TOPICS.outcomes,
    dead_letters_topic=TOPICS.dead_letters,
    weights_topic=TOPICS.weights("main"),
    closes_on_topic=TOPICS.weights("main"),
    group=TOPICS.group("rollout", "main"),
    grace_s=600.0,
)


class Follower:
    """Has every version at once."""

    version = None

    def fetch(self, announcement):
        return WeightUpdate(version=announcement.version, tensors={}, dtypes={})

    def model_directory(self, announcement):
        return Path(str(announcement.version))


class Chat:
    """One token a message."""

    fingerprint = "one"
    eos_ids = (0,)

    def opening(self, messages):
        return np.ones(len(messages), dtype=np.int32)

    def continuation(self, messages, **_):
        return self.opening(messages)

    def decode(self, _tokens):
        return "2"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def player(stop: threading.Event, *, is_endless: bool) -> Player:
    async def before_reply() -> None:
        say("working")
        await asyncio.to_thread(stop.wait)
        if is_endless:
            await asyncio.get_running_loop().create_future()

    return Player(
        engine=ScriptedEngine([[0]], terminators=(0,), before_reply=before_reply),
        chat=Chat(),
        make_environment=Verifiable,
        policy="main",
        clock=SystemClock(),
        worker="here/0",
    )


def main() -> None:
    stop = stop_on_signal()
    threading.Thread(target=lambda: stop.wait() and say("draining"), daemon=True).start()
    names = [name for name in vars(SETTINGS) if name.endswith("_topic")]
    log = MemoryLog({getattr(SETTINGS, name): 1 for name in names})
    with log.writer("test").transaction() as txn:
        txn.write(SETTINGS.weights_topic, b"main", CODEC.encode(ANNOUNCEMENT))
        txn.write(SETTINGS.requests_topic, b"g/0/0", CODEC.encode(REQUEST))
    worker = RolloutWorker(
        log=log,
        codec=CODEC,
        follower=Follower(),
        make_player=lambda *_: player(stop, is_endless=sys.argv[1] == "endless"),
        settings=SETTINGS,
        stop=stop,
    )
    asyncio.run(worker.run())
    say(f"{len(log.records(SETTINGS.trajectories_topic))} samples")


main()

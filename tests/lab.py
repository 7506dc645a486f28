"""Small runs of the real services on the shared broker and store, and what must hold of each."""

import copy
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from astra_stream.cli import run_command
from astra_stream.cli.audit import audited
from astra_stream.cli.connect import open_admin, open_log
from astra_stream.cli.run import LocalRun
from astra_stream.cli.topics import apply_topics
from astra_stream.cli.validation import validate_run
from astra_stream.clock import SystemClock
from astra_stream.config import RunConfig, load_run
from astra_stream.connectors.loading import load_into
from astra_stream.declarations import declared
from astra_stream.local import Stack, StackInfo, Supervisor
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log, Message
from astra_stream.log.names import TopicNames
from astra_stream.log.reading import read_to_end

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "arithmetic"
POLICY = "main"
WAIT_S = 400.0
"""How long a test waits for one thing; generous, since the cores may be shared."""
NUM_PROMPTS = 400
NUM_HELD_OUT = 60
CODEC = Codec(declared("schemas"))

SMALL = {
    "steps": 4,
    "prompts": {"source": {"use": "jsonl", "path": "sums.jsonl", "held_out": NUM_HELD_OUT}},
    "rollout": {
        "engine": {"use": "transformers", "slots": 32},
        "environment": {"use": "verifiable", "match": "exact"},
        "sampling": {"temperature": 1.0, "max_new_tokens": 6},
        "group_size": 4,
    },
    "policies": {
        POLICY: {
            "model": str(EXAMPLE / "model"),
            "max_staleness": 2,
            "pipeline": [{"use": "drop_uniform"}],
            "batch": {"groups": 4, "row_tokens": 128},
            "optimizer": {"lr": 1e-4},
            "checkpoint": {"every": 3},
        }
    },
}
"""A run of seconds; tests say what differs."""


@dataclass(kw_only=True)
class SharedRun:
    """A run whose services are children of the test and whose servers are those of all tests."""

    config: RunConfig
    directory: Path
    stack: StackInfo
    supervisor: Supervisor
    log: Log
    names: TopicNames = field(init=False)

    def __post_init__(self) -> None:
        self.names = TopicNames(self.config.run)

    @property
    def services(self) -> dict[str, Any]:
        return {service.name: service for service in self.local.services()}

    @property
    def local(self) -> LocalRun:
        return LocalRun(self.config, self.directory)

    def prepare(self) -> None:
        """Make the topics and load the prompts, as ``astra run`` does."""
        _, prompts = validate_run(self.config, file="run.json")
        with closing(open_admin(self.config, self.stack)) as admin:
            apply_topics(self.config, admin)
        writer_id = self.names.group("prompts")
        load_into(self.log, CODEC, self.names.prompts, prompts, writer_id=writer_id)

    def start(self, *names: str) -> None:
        """Start these services, or all."""
        services = self.services
        for name in names or services:
            self.supervisor.start(services[name])

    def start_worker(self, slot: int) -> str:
        """Start a further rollout worker and return its name."""
        first = self.services["rollout-0"]
        argv = tuple(str(slot) if word == "0" else word for word in first.argv)
        name = f"rollout-{slot}"
        self.supervisor.start(type(first)(name=name, argv=argv, env=first.env))
        return name

    def finish(self) -> dict[str, int]:
        """Wait until all services have ended; their exit codes."""
        ends_s = time.monotonic() + WAIT_S
        for name in self.supervisor.pids():
            left_s = max(0.0, ends_s - time.monotonic())
            if not self.supervisor.has_ended(name, within_s=left_s):
                tails = {n: self.supervisor.log_tail(n) for n in self.supervisor.pids()}
                pytest.fail(f"{name} must end within {WAIT_S} s: got {tails}")
        return self.supervisor.wait()

    def messages(self, topic: str) -> list[Message]:
        """Every committed record of a topic, by partition and offset."""
        found = read_to_end(self.log, topic, clock=SystemClock())
        return sorted(found, key=lambda message: (message.partition, message.offset))

    def records(self, topic: str) -> list[Any]:
        return [CODEC.decode(message.value) for message in self.messages(topic)]

    def wait_for(self, topic: str, is_it: Callable[[Any], bool]) -> Message:
        """Follow a topic from its beginning until a record is the one that is waited for."""
        ends_s = time.monotonic() + WAIT_S
        with closing(self.log.assign([topic])) as reader:
            while time.monotonic() < ends_s:
                for message in reader.poll(1.0):
                    if is_it(CODEC.decode(message.value)):
                        return message
        tails = {n: self.supervisor.log_tail(n) for n in self.supervisor.pids()}
        pytest.fail(f"{topic} must have the record within {WAIT_S} s: got {tails}")

    def wait_for_version(self, number: int) -> Message:
        topic = self.names.weights(POLICY)
        return self.wait_for(topic, lambda record: record.version.number >= number)

    def audit(self, *, steps: int, retrain: bool = False) -> list[str]:
        """Assert that the run has ended as promised; the root hash of each version, from 0."""
        report = audited(self.config, self.stack, retrain=retrain)
        assert report.violations == ()
        assert report.finished
        assert report.dead_letters == 0
        announced = [a for a in self.records(self.names.weights(POLICY)) if a.kind != "final"]
        assert [tuple(a.version) for a in announced] == [(0, n) for n in range(steps + 1)]
        return [a.root_hash for a in announced]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Makes runs in a directory of the test."""

    directory: Path
    name: str
    """Start of the names of its runs, so that tests share a broker and no topic."""
    get_stack: Callable[[], Stack]
    closers: list[Callable[[], Any]]
    example: Path = EXAMPLE

    @property
    def stack(self) -> Stack:
        return self.get_stack()

    def file(self, name: str = "", **changes: Any) -> Path:
        """Write a run file: ``SMALL``, and what differs from it, by dotted keys."""
        document = copy.deepcopy(SMALL) | {"run": f"{self.name}{name}"}
        for key, value in changes.items():
            *tables, last = key.split(".")
            table = document
            for part in tables:
                table = table.setdefault(part, {})
            table[last] = value
        directory = self.directory / document["run"]
        directory.mkdir()
        document["directory"] = str(self.directory)
        path = directory / "run.json"
        path.write_text(json.dumps(document))
        if not (self.directory / "sums.jsonl").exists():
            self.write_sums(NUM_PROMPTS)
        return path

    def write_sums(self, num_prompts: int) -> None:
        rng = random.Random(7)
        sums: dict[str, str] = {}
        while len(sums) < num_prompts:
            left, right, sign = rng.randint(1, 99), rng.randint(1, 99), rng.choice("+-")
            result = left + right if sign == "+" else left - right
            sums[f"{left} {sign} {right}="] = str(result)
        lines = (json.dumps({"prompt": text, "answer": answer}) for text, answer in sums.items())
        (self.directory / "sums.jsonl").write_text("\n".join(lines) + "\n")

    def run(self, name: str = "", **changes: Any) -> SharedRun:
        """A prepared run on the shared servers, of which nothing is started yet."""
        path = self.file(name, **changes)
        config = load_run(path)
        shutil.copy(self.stack.directory / "stack.json", path.parent / "stack.json")
        supervisor = Supervisor(path.parent / "logs", grace_s=45.0)
        log = open_log(config, self.stack.info)
        self.closers.extend([log.close, supervisor.stop])
        run = SharedRun(
            config=config,
            directory=path.parent,
            stack=self.stack.info,
            supervisor=supervisor,
            log=log,
        )
        run.prepare()
        return run

    def shared_servers(self) -> list[str]:
        """Arguments that make ``astra run`` use the shared servers."""
        stack = self.stack
        return [
            *("--set", f"kafka.bootstrap={stack.bootstrap}"),
            *("--set", f"store.url={stack.store_url}"),
            *("--set", f"store.endpoint={stack.s3_endpoint}"),
        ]

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "astra_stream.cli", *map(str, words)]

    def astra_here(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in this process, which has imported all that it needs."""
        secrets = {
            "AWS_ACCESS_KEY_ID": self.stack.s3_access_key,
            "AWS_SECRET_ACCESS_KEY": self.stack.s3_secret_key,
        }
        arguments = [*map(str, words)]
        stdout, stderr = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**secrets, "NO_COLOR": "1", "COLUMNS": "160"}.items():
                patch.setenv(name, value)
            patch.chdir(self.directory)
            with redirect_stdout(stdout), redirect_stderr(stderr):
                code = run_command(arguments)
        return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())

    def astra(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*words),
            check=False,
            cwd=self.directory,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=500,
        )

    def pids(self) -> dict[int, str]:
        """Processes that work in this test's directory, with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_text(errors="replace")
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if words and (str(self.directory) in words or where.startswith(str(self.directory))):
                found[int(entry.name)] = words.replace("\0", " ")
        return found

    def processes(self) -> list[str]:
        return list(self.pids().values())

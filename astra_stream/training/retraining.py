"""Trains the batches of a run once more, to compare what comes of them with what was announced."""

from collections.abc import Iterator

from astra_stream.algorithms.packing import join_slices
from astra_stream.clock import Clock
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log
from astra_stream.log.reading import read_to_end
from astra_stream.records import BatchSlice
from astra_stream.training.interface import Backend
from astra_stream.weights.hashing import root_hash, tensor_table


def train_again(
    log: Log, codec: Codec, backend: Backend, *, batches_topic: str, clock: Clock
) -> Iterator[tuple[int, str]]:
    """Train every batch of a topic, from the first on, and write nothing.

    Args:
        log: Where the batches are.
        codec: Reads them.
        backend: Holds the weights that the run began with.
        batches_topic: One partition, in order.
        clock: For the deadline of reading.

    Yields:
        Number of each version from 0 on, and its root hash.

    Raises:
        TransientError: The topic cannot be read to its end in time.
    """
    yield 0, hash_of(backend)
    slices: list[BatchSlice] = []
    for message in list(read_to_end(log, batches_topic, clock=clock)):
        slices.append(codec.read(BatchSlice, message))
        if len(slices) == slices[0].count:
            batch = join_slices(slices)
            slices = []
            if batch.samples:
                backend.step(batch)
                yield batch.trains_version + 1, hash_of(backend)


def hash_of(backend: Backend) -> str:
    """Root hash of what a backend would publish."""
    weights = backend.export()
    return root_hash(tensor_table(weights.tensors, weights.dtypes))

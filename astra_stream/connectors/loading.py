"""Prompts into the log: only those that are not there yet.

The topic is compacted by prompt id, so keys alone say what is there. A crash between two
transactions leaves whole prompts, and the next load writes the rest.
"""

from collections.abc import Collection, Sequence

from astra_stream.clock import Clock, SystemClock
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log
from astra_stream.log.reading import read_to_end
from astra_stream.records import Prompt

PROMPTS_PER_TRANSACTION = 2000


def missing_prompts(prompts: Sequence[Prompt], existing_ids: Collection[str]) -> list[Prompt]:
    """The prompts whose id is not among ``existing_ids``, in order, each once."""
    known = set(existing_ids)
    wanted = {prompt.prompt_id: prompt for prompt in prompts if prompt.prompt_id not in known}
    return list(wanted.values())


def existing_ids(log: Log, topic: str, *, clock: Clock) -> set[str]:
    """Ids of the prompts that stand in a topic.

    Raises:
        ConfigError: The topic is missing.
        TransientError: The topic cannot be read to its end in time.
    """
    ids: set[str] = set()
    for message in read_to_end(log, topic, clock=clock):
        prompt_id = (message.key or b"").decode()
        if message.value is None:
            ids.discard(prompt_id)
        else:
            ids.add(prompt_id)
    return ids


def load_into(
    log: Log,
    codec: Codec,
    topic: str,
    prompts: Sequence[Prompt],
    *,
    writer_id: str,
    clock: Clock | None = None,
) -> int:
    """Write the prompts that a topic lacks.

    Args:
        log: Where the topic is.
        codec: Encodes prompts.
        topic: ``<run>.prompts``.
        prompts: All that the source has.
        writer_id: Transactional id, which also keeps two loads from interleaving.
        clock: For the deadline of reading what is there.

    Returns:
        How many were written.

    Raises:
        ConfigError: The topic is missing.
        FencedError: Another load of the same run began after this one.
        TransientError: The log cannot be reached in time.
    """
    writer = log.writer(writer_id)
    try:
        missing = missing_prompts(prompts, existing_ids(log, topic, clock=clock or SystemClock()))
        for start in range(0, len(missing), PROMPTS_PER_TRANSACTION):
            with writer.transaction() as txn:
                for prompt in missing[start : start + PROMPTS_PER_TRANSACTION]:
                    txn.write(topic, prompt.prompt_id.encode(), codec.encode(prompt))
    finally:
        writer.close()
    return len(missing)

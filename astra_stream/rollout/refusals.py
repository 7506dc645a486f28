"""Requests that are not played, and what is written of them so that their groups end."""

from collections.abc import Iterator

from astra_stream.errors import DeadlineError, DeliveryLimitError, RecordError
from astra_stream.log.dead_letters import make_dead_letter
from astra_stream.log.interface import Message
from astra_stream.log.processor import Write
from astra_stream.records import Outcome, Trajectory
from astra_stream.rollout.backlog import is_late
from astra_stream.rollout.episode import Player, given_up_episode
from astra_stream.rollout.requests import TakenRequest
from astra_stream.rollout.settings import WorkerSettings


def unreadable(
    message: Message, error: RecordError, settings: WorkerSettings, *, now_s: float
) -> Iterator[Write]:
    """A dead letter, and the end of the group where the record's key still names it."""
    letter = make_dead_letter(message, error, service=settings.group, stage="requests", now_s=now_s)
    yield Write(settings.dead_letters_topic, message.coordinates, letter)
    if group_id := group_named(message):
        outcome = Outcome(
            group_id=group_id,
            prompt_id="",
            policy=settings.policy,
            event="dropped",
            stage="rollout",
            reason="dead_letter",
            at_s=now_s,
        )
        yield Write(settings.outcomes_topic, group_id, outcome)


def group_named(message: Message) -> str:
    """The group of a request that cannot be read; empty where its key names none."""
    # The key is the request's id, which starts with its group's.
    return (message.key or b"").decode(errors="replace").rsplit("/", 2)[0]


def given_up(taken: TakenRequest, player: Player, *, max_deliveries: int) -> Iterator[Trajectory]:
    """A failed sample for each that was asked for, of a request that is not played again."""
    request = taken.request
    now_s = player.clock.now_s()
    error = _too_late(taken, now_s) if is_late(taken, now_s) else _too_often(taken, max_deliveries)
    for index in range(request.first_sample, request.first_sample + request.num_samples):
        yield given_up_episode(request, index, player, error)


def _too_late(taken: TakenRequest, now_s: float) -> DeadlineError:
    request, first_s = taken.request, taken.delivery.first_start_s or 0
    return DeadlineError(
        f"request {request.request_id!r} must end within its deadline of {request.deadline_s:g} s: "
        f"got {now_s - first_s:.0f} s since its first start, which a process did not survive. "
        "Raise rollout.episode_timeout, or look at what ends the processes."
    )


def _too_often(taken: TakenRequest, max_deliveries: int) -> DeliveryLimitError:
    return DeliveryLimitError(
        f"request {taken.request.request_id!r} must not end the processes that play it: got "
        f"{taken.delivery.num_starts} starts without an end, {max_deliveries} of them alone. "
        "Look at its prompt and environment."
    )

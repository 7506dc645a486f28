"""What an episode leaves, whatever happens in it."""

import asyncio
import functools
import math

import numpy as np
import pytest

from astra_stream.environments.interface import Step
from astra_stream.environments.verifiable import Verifiable
from astra_stream.errors import TransientError
from astra_stream.records import ChatMessage, VersionSpan
from astra_stream.rollout.episode import TURNS_PER_STREAM, play_episode


def play(request, player, *, sample_index=0, **options):
    return asyncio.run(play_episode(request, sample_index, player, **options))


def text(tokens):
    return "".join(chr(token) for token in tokens if token)


def test_a_right_reply_is_a_trajectory_whose_sampled_tokens_train(make_player, make_request):
    trajectory = play(make_request(), make_player("2"))
    (segment,) = trajectory.segments
    assert text(segment.tokens) == "1+1=2"
    assert segment.loss_mask.tolist() == [0, 0, 0, 0, 1, 1]
    assert segment.behavior_logprobs.tolist() == [0, 0, 0, 0, -1, -1]
    assert segment.spans == (VersionSpan(4, 0, 3),)
    assert (trajectory.reward, trajectory.raw_outcome, trajectory.reward_valid) == (1.0, 1.0, True)
    assert (trajectory.status, segment.finish_reason) == ("done", "stop")
    assert trajectory.trajectory_id == "g/0/main"
    assert (trajectory.started_at_s, trajectory.finished_at_s) == (5.0, 5.0)


def test_a_wrong_reply_is_a_valid_reward_of_zero(make_player, make_request):
    trajectory = play(make_request(), make_player("3"))
    assert (trajectory.reward, trajectory.reward_valid) == (0.0, True)


def test_a_reply_at_the_limit_is_truncated_and_still_judged(make_player, make_request):
    trajectory = play(make_request(), make_player("123456789"))
    assert trajectory.status == "truncated"
    assert trajectory.reward_valid
    assert trajectory.trained_tokens == 8


def test_samples_of_a_group_take_different_streams(make_player, make_request):
    asked = []

    def reply(_tokens, stream):
        asked.append(stream)
        return [ord("2"), 0]

    player = make_player(script=reply)
    for index in (0, 3):
        play(make_request(num_samples=4), player, sample_index=index)
    assert asked == [0, 3 * TURNS_PER_STREAM]


def raises(_reply, _prompt):
    raise ZeroDivisionError("by design")


def test_a_reward_function_that_raises_is_an_invalid_trajectory_that_names_it(
    make_player, make_request
):
    environment = functools.partial(Verifiable, reward=raises)
    trajectory = play(make_request(), make_player("2", environment=environment), max_attempts=3)
    assert (trajectory.status, trajectory.reward_valid) == ("error", False)
    assert (trajectory.reward, trajectory.raw_outcome) == (0.0, 0.0)
    assert trajectory.error_kind == "ZeroDivisionError"
    assert trajectory.error.startswith("by design, raised by raises at test_episode.py:")
    assert not trajectory.retryable
    assert trajectory.attempt == 0


def test_earlier_starts_count_as_attempts(make_player, make_request):
    assert play(make_request(), make_player("2"), num_starts=3).attempt == 3


def nan(_reply, _prompt):
    return math.nan


def test_a_reward_that_is_not_a_number_is_invalid_and_names_the_function(make_player, make_request):
    environment = functools.partial(Verifiable, reward=nan)
    trajectory = play(make_request(), make_player("2", environment=environment))
    assert not trajectory.reward_valid
    assert ":nan must return a finite number: got nan" in trajectory.error


def test_an_episode_past_its_deadline_is_aborted_with_what_it_has(make_player, make_request):
    player = make_player("2", before_reply=asyncio.Event().wait)
    trajectory = play(make_request(deadline_s=0.01), player)
    assert (trajectory.status, trajectory.error_kind) == ("aborted", "TimeoutError")
    assert not trajectory.reward_valid
    assert text(trajectory.segments[0].tokens) == "1+1="


def test_what_may_pass_is_tried_again_and_the_last_failure_stands(make_player, make_request):
    async def fails():
        raise TransientError("engine must answer: got nothing. Try again.")

    trajectory = play(make_request(), make_player("2", before_reply=fails), max_attempts=3)
    assert trajectory.retryable
    assert trajectory.attempt == 2
    assert trajectory.trajectory_id == "g/0/main"


def test_a_second_attempt_that_works_leaves_no_trace_of_the_first(make_player, make_request):
    attempts = iter([TransientError("engine must answer: got nothing. Try again.")])

    async def fails_once():
        if error := next(attempts, None):
            raise error

    trajectory = play(make_request(), make_player("2", before_reply=fails_once), max_attempts=3)
    assert (trajectory.status, trajectory.attempt, trajectory.error) == ("done", 1, "")


class Dialogue:
    """Asks twice more, rewards each reply by its length, and says when it is closed."""

    closed = 0

    def __init__(self, prompt):
        self._questions = ["b?", "c?"]
        self._prompt = prompt

    async def start(self):
        return self._prompt.messages

    async def step(self, reply):
        done = not self._questions
        more = () if done else (ChatMessage(role="user", content=self._questions.pop(0)),)
        reward = float(len(reply.content))
        return Step(messages=more, reward=reward, done=done, reward_parts={"length": reward})

    async def close(self):
        type(self).closed += 1


def test_turns_are_one_segment_whose_rewards_add_up(make_player, make_request):
    Dialogue.closed = 0
    player = make_player("x", "yy", "zzz", environment=Dialogue)
    trajectory = play(make_request(), player)
    (segment,) = trajectory.segments
    assert text(segment.tokens) == "1+1=xb?yyc?zzz"
    sampled = segment.tokens[segment.loss_mask == 1]
    assert text(sampled) == "xyyzzz"
    assert [turn.reward for turn in segment.turns] == [1.0, 2.0, 3.0]
    assert [turn.start for turn in segment.turns] == [4, 8, 13]
    assert trajectory.reward == 6.0
    assert trajectory.reward_parts == {"length": 6.0}
    assert segment.spans == (VersionSpan(4, 0, 3),)
    assert np.array_equal(segment.behavior_logprobs != 0, segment.loss_mask == 1)
    assert Dialogue.closed == 1


def test_a_turn_that_a_stop_text_ended_is_closed_before_the_next_one(make_player, make_request):
    replies = {0: [ord("x")], 1: [ord("y"), 0], 2: [ord("z"), 0]}
    player = make_player(script=lambda _, stream: replies[stream], environment=Dialogue)
    trajectory = play(make_request(), player)
    assert text(trajectory.segments[0].tokens) == "1+1=x|b?yc?z"


@pytest.mark.parametrize("where", ["start", "step"])
def test_an_environment_is_closed_after_an_error(make_player, make_request, where):
    class Broken(Dialogue):
        pass

    async def fails(*_):
        raise KeyError("missing")

    setattr(Broken, where, fails)
    Broken.closed = 0
    trajectory = play(make_request(), make_player("x", environment=Broken))
    assert (trajectory.status, trajectory.error_kind) == ("error", "KeyError")
    assert Broken.closed == 1

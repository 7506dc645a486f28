"""Keys and values at their slots' own positions."""

import torch

from astra_stream.engines.kv_cache import FIRST_TOKENS, SlotCache

HEADS, WIDTH = 2, 3


def states(batch: int, num_tokens: int, value: float) -> torch.Tensor:
    return torch.full((batch, HEADS, num_tokens, WIDTH), value)


def decode(cache: SlotCache, positions: list[int], value: float) -> torch.Tensor:
    places = torch.tensor(positions)
    cache.plan_decode(places, max(positions) + 1)
    fed = states(len(positions), 1, value)
    keys, values = cache.update(fed, fed, 0)
    assert torch.equal(keys, values)
    return keys[:, 0, :, 0]


def test_rows_write_at_their_own_positions_and_hidden_places_are_zero() -> None:
    cache = SlotCache(num_slots=3, max_tokens=8)
    assert decode(cache, [0, 2], 1.0).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert decode(cache, [1, 3], 2.0).tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]


def test_a_prefill_writes_one_row_to_every_slot_that_shares_it() -> None:
    cache = SlotCache(num_slots=4, max_tokens=8)
    cache.plan_prefill(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]), 2)
    fed = torch.cat([states(1, 2, 5.0), states(1, 2, 6.0)])
    keys, _ = cache.update(fed, fed, 0)
    assert keys is fed
    assert decode(cache, [2, 2, 2], 9.0).tolist() == [[5, 5, 9], [6, 6, 9], [5, 5, 9]]


def test_growing_keeps_what_live_slots_hold() -> None:
    cache = SlotCache(num_slots=2, max_tokens=4 * FIRST_TOKENS)
    decode(cache, [0, 1], 1.0)
    cache.reserve(3 * FIRST_TOKENS, 2)
    seen = decode(cache, [3 * FIRST_TOKENS - 1, 0], 2.0)
    assert seen.shape == (2, 3 * FIRST_TOKENS)
    assert seen[0, [0, -1]].tolist() == [1, 2]
    assert seen[1, [0, 1]].tolist() == [2, 1]


def test_a_moved_slot_takes_its_tokens_along() -> None:
    cache = SlotCache(num_slots=2, max_tokens=8)
    decode(cache, [0, 0], 1.0)
    decode(cache, [2, 1], 2.0)
    cache.move(source=1, target=0, num_tokens=2)
    assert decode(cache, [2], 3.0).tolist() == [[1, 2, 3]]

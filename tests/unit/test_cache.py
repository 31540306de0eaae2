"""Pools of places, and what one stream holds of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasr_backend.cache.pool import Pool
from oasr_backend.cache.stream import CachePools, StreamCache
from oasr_backend.runtime.base import CacheShape, ChunkOutput
from oasr_backend.runtime.host_caches import HostCaches


def pools(num_blocks=6, num_streams=3, max_blocks=2):
    caches = HostCaches(CacheShape(num_blocks, (1, 2, 3), num_streams, (1, 2, 2)), run_chunks=None)
    return CachePools(Pool(num_blocks), Pool(num_streams), max_blocks, caches)


def run(cache, shared, number):
    """Have a stream's chunk run, which gives a block full of `number` and a context full of its negative."""
    new = np.full((1, 1, 2, 3), number, np.float32), np.full((1, 1, 2, 2), -number, np.float32)
    kept = (0, *cache.append(shared.max_blocks))
    shared.caches.keep(ChunkOutput(np.zeros((1, 2, 5), np.float32), new), [kept])


def seen(cache, shared):
    """The numbers of the chunks that a stream's table names, and that of its convolution context."""
    return (
        [int(shared.caches.blocks[place].flat[0]) for place in cache.blocks],
        int(shared.caches.contexts[cache.context].flat[0]),
    )


def test_a_pool_gives_each_place_to_one_owner():
    pool = Pool(3)
    first = pool.take(2)
    assert sorted(first) == [0, 1]
    assert pool.take(2) is None
    assert (pool.num_used, pool.num_free) == (2, 1)
    pool.free(first)
    assert pool.num_free == 3


def test_freeing_a_place_twice_is_our_bug():
    pool = Pool(3)
    places = pool.take(1)
    pool.free(places)
    with pytest.raises(AssertionError, match="free already"):
        pool.free(places)


def test_a_stream_keeps_its_last_chunks_in_order_and_reuses_the_oldest_place():
    shared, cache = pools(), StreamCache()
    for number in range(1, 6):
        assert cache.reserve(shared)
        run(cache, shared, number)
        assert seen(cache, shared) == ([n for n in (number - 1, number) if n > 0], -number)
    assert shared.blocks.num_used == 2
    cache.free(shared)
    assert (shared.blocks.num_used, shared.contexts.num_used) == (0, 0)


def test_without_left_chunks_a_stream_holds_its_convolution_context_alone():
    shared, cache = pools(num_blocks=0, max_blocks=0), StreamCache()
    assert cache.reserve(shared)
    run(cache, shared, 1)
    assert (cache.blocks, shared.contexts.num_used) == ([], 1)


def test_reserving_twice_holds_no_more():
    shared, cache = pools(), StreamCache()
    assert cache.reserve(shared)
    assert cache.reserve(shared)
    assert shared.blocks.num_used == 1


def test_where_there_is_no_room_nothing_is_held():
    shared = pools(num_blocks=2)
    first, second = StreamCache(), StreamCache()
    for number in (1, 2):
        assert first.reserve(shared)
        run(first, shared, number)
    assert not second.reserve(shared)
    assert shared.contexts.num_used == 1


def test_swapped_out_and_back_a_stream_finds_what_it_had():
    shared, cache, other = pools(num_blocks=2), StreamCache(), StreamCache()
    for number in (1, 2):
        cache.reserve(shared)
        run(cache, shared, number)
    cache.swap_out(shared)
    assert (shared.blocks.num_used, shared.contexts.num_used) == (0, 0)
    for number in (8, 9):
        assert other.reserve(shared)
        run(other, shared, number)
    assert not cache.reserve(shared)
    other.free(shared)
    assert cache.reserve(shared)
    assert seen(cache, shared) == ([1, 2], -2)
    run(cache, shared, 3)
    assert seen(cache, shared) == ([2, 3], -3)


STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "run", "run", "swap", "free"]), st.integers(0, 3)),
    max_size=80,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_no_stream_ever_sees_anothers_chunks_and_no_place_is_lost(steps):
    shared = pools(num_blocks=5, num_streams=3, max_blocks=3)
    caches = [StreamCache() for _ in range(4)]
    kept = [[] for _ in range(4)]
    numbers = iter(range(1, 1000))
    for step, who in steps:
        cache = caches[who]
        if step == "run" and cache.reserve(shared):
            number = next(numbers)
            run(cache, shared, number)
            kept[who] = [*kept[who], number][-3:]
            assert seen(cache, shared) == (kept[who], -number)
        elif step == "swap":
            cache.swap_out(shared)
        elif step == "free":
            cache.free(shared)
            caches[who], kept[who] = StreamCache(), []
        for name, other in enumerate(caches):
            if other.context is not None and kept[name]:
                assert seen(other, shared) == (kept[name], -kept[name][-1])
        held = sum(len(c.blocks) + (c.spare is not None) for c in caches)
        assert shared.blocks.num_used == held
        assert shared.contexts.num_used == sum(c.context is not None for c in caches)

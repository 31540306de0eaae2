"""Which utterances an epoch hears together: a plan drawn from a seed, before any sound is touched.

It knows durations and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Item = tuple[int, ...]
"""Utterances heard one after another as one: mostly a single one."""

Batch = list[Item]

SHARE_JOINED = 0.12
MAX_JOINED = 6
MAX_JOINED_SECONDS = 16.0
"""Some utterances are joined: short ones alone would leave the model deaf beyond the first seconds of a stream."""

POOL = 600
"""Items are sorted by length within so many, so that a batch holds like lengths and the order stays random."""


SIZES = (64, 48, 40, 32, 24, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1)
"""Batches have these sizes only: oneDNN compiles its kernels anew for every shape of a tensor."""


def plan_epoch(
    indices: Sequence[int],
    durations_s: Sequence[float],
    batch_seconds: float,
    seed: Sequence[int],
) -> list[Batch]:
    """Plan an epoch in which each of some utterances is heard once.

    Args:
        indices: these utterances.
        durations_s: the length of every utterance by its index.
        batch_seconds: what a batch may last with its padding, items times the longest. A longer
            item makes a batch of its own.
        seed: the same seed gives the same plan.

    Returns:
        Batches in random order.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(indices).tolist()
    items = _join(order, durations_s, random)
    batches: list[Batch] = []
    for start in range(0, len(items), POOL):
        batches += _pack(items[start : start + POOL], durations_s, batch_seconds)
    return [batches[index] for index in random.permutation(len(batches))]


def _join(
    order: list[int], durations_s: Sequence[float], random: np.random.Generator
) -> list[Item]:
    items = []
    while order:
        item = [order.pop()]
        if random.random() < SHARE_JOINED:
            wanted = int(random.integers(2, MAX_JOINED + 1))
            length_s = durations_s[item[0]]
            while order and len(item) < wanted:
                length_s += durations_s[order[-1]]
                if length_s > MAX_JOINED_SECONDS:
                    break
                item.append(order.pop())
        items.append(tuple(item))
    return items


def _pack(items: list[Item], durations_s: Sequence[float], batch_seconds: float) -> list[Batch]:
    def seconds(item: Item) -> float:
        return sum(durations_s[index] for index in item)

    batches = []
    waiting = sorted(items, key=seconds)
    while waiting:
        longest_s = seconds(waiting[-1])
        size = next(
            n for n in SIZES if n == 1 or (n <= len(waiting) and n * longest_s <= batch_seconds)
        )
        batches.append(waiting[-size:])
        del waiting[-size:]
    return batches

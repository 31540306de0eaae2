"""The shapes that a plan is built for: a profile for each rung of the ladder, over all durations.

It knows nothing of TensorRT: a profile is, for each input, the least shape, the one to be fastest at, and the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oasr_backend.bundle import CHUNK_FILE, ENCODER_FILE, FEATURES_FILE, Bundle
from oasr_backend.contract import CONTRACTS, FREE_AXES, model_sizes
from oasr_backend.errors import ConfigError
from oasr_backend.features import fbank
from oasr_backend.request import FRAMES_PER_SECOND

Shape = tuple[int, ...]

DEFAULT_RUNGS = (1, 2, 4, 8, 16, 32)
DEFAULT_BUCKETS_S = (2.5, 5.0, 10.0, 20.0, 40.0)
"""A batch is padded to the next of them: where they double, its frames are at most twice the longest row's."""

MAX_RUNG = 4096
MAX_BUCKET_S = 7200
MAX_CHUNK = 1024

MAX_BLOCKS = 1 << 16
"""Of the key/value cache: 65,536 chunks of 0.64 s are eleven hours."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Shapes of one input."""

    least: Shape
    best: Shape
    most: Shape


Profile = Mapping[str, ShapeRange]


@dataclass(frozen=True, slots=True)
class Sizing:
    """What plans are built for.

    rungs: batch sizes, ascending: the ladder.
    buckets_s: lengths of whole utterances in seconds, ascending, to which a batch is padded.
    chunk_size: encoder frames of a chunk of a stream.
    max_entries: blocks of the past that a chunk sees at most.
    """

    rungs: tuple[int, ...] = DEFAULT_RUNGS
    buckets_s: tuple[float, ...] = DEFAULT_BUCKETS_S
    chunk_size: int = 16
    max_entries: int = 4

    def __post_init__(self) -> None:
        for name, low, high in (("chunk_size", 1, MAX_CHUNK), ("max_entries", -1, MAX_BLOCKS)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be from {low} to {high}: correct it"
                )
        for name, values in (("rungs", self.rungs), ("buckets_s", self.buckets_s)):
            if not values or list(values) != sorted(set(values)) or values[0] <= 0:
                raise ConfigError(
                    f"{name} is {list(values)}; it must be numbers above 0, each larger than the one before: correct it"
                )
        for name, values, most in (
            ("rungs", self.rungs, MAX_RUNG),
            ("buckets_s", self.buckets_s, MAX_BUCKET_S),
        ):
            if not all(0 < value <= most for value in values):
                raise ConfigError(
                    f"{name} is {list(values)}; its numbers must be from above 0 to {most}: correct it"
                )

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Sizing:
        """Build it of what `asdict` gave and a file has kept."""
        return cls(
            tuple(options["rungs"]),
            tuple(options["buckets_s"]),
            options["chunk_size"],
            options["max_entries"],
        )

    @property
    def buckets_frames(self) -> tuple[int, ...]:
        """The buckets in feature frames."""
        return tuple(round(seconds * FRAMES_PER_SECOND) for seconds in self.buckets_s)


def profiles(name: str, bundle: Bundle, sizing: Sizing) -> list[Profile]:
    """Return a profile for each rung of the graph in the file `name` of a bundle."""
    ranges = {
        FEATURES_FILE: _feature_ranges,
        ENCODER_FILE: _encoder_ranges,
        CHUNK_FILE: _chunk_ranges,
    }[name](bundle, sizing)
    return [
        dict(_shapes(name, bundle, {**ranges, "batch": (rung, rung, rung)}))
        for rung in sizing.rungs
    ]


Ranges = Mapping[str, tuple[int, int, int]]


def _feature_ranges(bundle: Bundle, sizing: Sizing) -> Ranges:
    _check_shortest(bundle, sizing)
    most = fbank.num_samples(max(*sizing.buckets_frames, bundle.context_frames))
    best = fbank.num_samples(sizing.buckets_frames[len(sizing.buckets_frames) // 2])
    return {"samples": (fbank.FRAME_SAMPLES, best, most)}


def _encoder_ranges(bundle: Bundle, sizing: Sizing) -> Ranges:
    _check_shortest(bundle, sizing)
    buckets = sizing.buckets_frames
    return {"frames": (buckets[0], buckets[len(buckets) // 2], buckets[-1])}


def _check_shortest(bundle: Bundle, sizing: Sizing) -> None:
    if sizing.buckets_frames[0] < bundle.context_frames:
        raise ConfigError(
            f"buckets_s begins with {sizing.buckets_s[0]}; an encoder frame needs {bundle.context_frames / 100} s: "
            "raise it"
        )


def _chunk_ranges(bundle: Bundle, sizing: Sizing) -> Ranges:
    frames, entries = bundle.chunk_frames(sizing.chunk_size), max(1, sizing.max_entries)
    return {
        "frames": (frames, frames, frames),
        "entries": (1, entries, entries),
        "block": (sizing.chunk_size,) * 3,
        "blocks": (1, max(sizing.rungs) * entries, MAX_BLOCKS),
    }


def _shapes(name: str, bundle: Bundle, ranges: Ranges) -> Iterator[tuple[str, ShapeRange]]:
    """Yield the range of each input that has a free axis."""
    sizes: Mapping[str, Sequence[int]] = {
        **{axis: (size,) * 3 for axis, size in model_sizes(bundle).items()},
        **ranges,
    }
    for tensor, contract in CONTRACTS[name].inputs.items():
        if FREE_AXES.intersection(contract.axes):
            least, best, most = (
                tuple(sizes[axis][end] for axis in contract.axes) for end in range(3)
            )
            yield tensor, ShapeRange(least, best, most)

"""The training loop: epochs of CTC on augmented batches, a checkpoint after each.

It knows nothing of how speech was made; stopped at any moment, it goes on from the last epoch's end.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own convention)
from torch.utils.data import DataLoader, Dataset

from oasr_backend.allocator import prepare_heap
from oasr_backend.export.conformer import ConformerCtc
from oasr_backend.training.batches import Batch, plan_epoch
from oasr_backend.training.examples import Recordings, make_example

Padded = tuple[Tensor, Tensor, Tensor, Tensor]
"""Features (batch, frames, mels), their lengths, tokens (batch, tokens), their lengths; padded with 0."""


SERVED_CHUNK, SHARE_SERVED = 16, 0.7
"""WeNet draws the full context for half of the steps; of these so many get the chunk that asr_streaming serves."""

HALFWAY_WEIGHT = 0.3
"""Share of the loss of the middle layer's frames, read by the same CTC layer (Lee and Watanabe 2021): the lower layers
learn letters sooner. Serving never sees it."""

FRAME_MULTIPLE = 64
"""Batches are padded to such lengths: new shapes cost oneDNN more than the padding (see batches.SIZES)."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast to learn.

    num_averaged: the last epochs whose weights the final model is the mean of.
    reduced_precision: run the encoder in bfloat16 where torch deems it safe. On CPUs with AMX a
        step is four times as fast; on CPUs without bfloat16 it is slower.
    """

    num_epochs: int = 30
    num_averaged: int = 4
    batch_seconds: float = 30.0
    peak_rate: float = 2e-3
    warm_up_epochs: float = 0.5
    weight_decay: float = 0.01
    max_gradient: float = 5.0
    reduced_precision: bool = True

    def rate(self, epoch: float) -> float:
        """Return the learning rate after `epoch` epochs, a fraction included: linear up, half a cosine down."""
        if epoch < self.warm_up_epochs:
            return self.peak_rate * epoch / self.warm_up_epochs
        done = (epoch - self.warm_up_epochs) / (self.num_epochs - self.warm_up_epochs)
        return self.peak_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class _Batches(Dataset[Padded]):
    """An epoch's batches by number; made in the loader's process."""

    def __init__(self, recordings: Recordings, plan: list[Batch], epoch: int) -> None:
        self._recordings, self._plan, self._epoch = recordings, plan, epoch

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, number: int) -> Padded:
        examples = [
            make_example(self._recordings, item, self._epoch) for item in self._plan[number]
        ]
        features, tokens = zip(*examples, strict=True)
        padded = _pad([torch.from_numpy(x) for x in features])
        return (
            F.pad(padded, (0, 0, 0, -padded.shape[1] % FRAME_MULTIPLE)),
            torch.tensor([len(x) for x in features]),
            _pad([torch.tensor(x) for x in tokens]),
            torch.tensor([len(x) for x in tokens]),
        )


def train(
    model: ConformerCtc,
    recordings: Recordings,
    schedule: Schedule,
    folder: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Train `model` in place, on from the newest `epoch-N.pt` in `folder`.

    Args:
        model: with its CMVN set.
        recordings: what it hears.
        schedule: for how long.
        folder: where a checkpoint goes after every epoch.
        say: told of the progress, a line at a time.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), schedule.peak_rate, (0.9, 0.98), weight_decay=schedule.weight_decay
    )
    folder.mkdir(parents=True, exist_ok=True)
    # Three settings that spare a third of a step: kernels compiled once for every shape (oneDNN reads this at its first
    # use and keeps 1024 otherwise), no new pages for every large tensor, no change of layout between convolutions.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
    prepare_heap()
    model.encoder.embed.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first = _resume(model, optimizer, folder)
    for epoch in range(first, schedule.num_epochs):
        start = time.monotonic()
        losses = _run_epoch(model, optimizer, recordings, schedule, epoch)
        minutes = (time.monotonic() - start) / 60
        say(
            f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, {len(losses)} steps, {minutes:.1f} minutes"
        )
        _save(model, optimizer, folder / f"epoch-{epoch + 1}.pt")
    _average(model, folder, range(schedule.num_epochs, 0, -1)[: schedule.num_averaged])


def _run_epoch(
    model: ConformerCtc,
    optimizer: torch.optim.Optimizer,
    recordings: Recordings,
    schedule: Schedule,
    epoch: int,
) -> list[float]:
    # Every epoch has seeds of its own, so that a resumed run is the run that was never stopped.
    seed = (recordings.seed, epoch)
    torch.manual_seed(hash(seed) % 2**31)
    speech = recordings.corpus
    durations_s = speech.durations_s().tolist()
    plan = plan_epoch(speech.spellable(), durations_s, schedule.batch_seconds, seed)
    batches = _Batches(recordings, plan, epoch)
    loader = DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=8)
    model.train()
    losses = []
    for number, batch in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(epoch + (number + 1) / len(plan))
        losses.append(_step(model, optimizer, batch, schedule))
    return losses


def _step(
    model: ConformerCtc, optimizer: torch.optim.Optimizer, batch: Padded, schedule: Schedule
) -> float:
    features, lengths, tokens, num_tokens = batch
    chunk_size, num_left_chunks = model.draw_chunk(features.shape[1])
    if chunk_size <= 0 and torch.rand(()) < SHARE_SERVED:
        chunk_size = SERVED_CHUNK
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=schedule.reduced_precision),
        _halfway(model) as halfway,
    ):
        encoded, encoded_lengths = model.encoder(features, lengths, chunk_size, num_left_chunks)
        halfway_encoded = model.encoder.after_norm(halfway.pop())

    def loss_of(frames: Tensor) -> Tensor:
        logs = model.ctc(frames.float()).transpose(0, 1)
        # zero_infinity: a text with more letters than frames has no path; it teaches nothing.
        return F.ctc_loss(logs, tokens, encoded_lengths, num_tokens, zero_infinity=True)

    last = loss_of(encoded)
    loss = (1 - HALFWAY_WEIGHT) * last + HALFWAY_WEIGHT * loss_of(halfway_encoded)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.max_gradient)
    optimizer.step()
    return float(last.detach())


@contextmanager
def _halfway(model: ConformerCtc) -> Iterator[list[Tensor]]:
    """Collect what the middle layer puts out while the encoder runs."""
    layers, outputs = model.encoder.encoders, list[Tensor]()
    hook = layers[len(layers) // 2].register_forward_hook(lambda _, __, out: outputs.append(out[0]))
    try:
        yield outputs
    finally:
        hook.remove()


def _pad(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("epoch-*.pt"):
        yield int(path.stem.removeprefix("epoch-")), path


def _resume(model: ConformerCtc, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    epoch, path = max(_checkpoints(folder), default=(0, None))
    if path is not None:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    return epoch


def _save(model: ConformerCtc, optimizer: torch.optim.Optimizer, path: Path) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.rename(
        path
    )  # a killed run leaves no half checkpoint under the name that resuming looks for


def _average(model: ConformerCtc, folder: Path, epochs: range) -> None:
    states = [
        torch.load(folder / f"epoch-{epoch}.pt", weights_only=True)["model"] for epoch in epochs
    ]
    model.load_state_dict(
        {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}
    )

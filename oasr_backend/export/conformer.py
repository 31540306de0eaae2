"""The Conformer CTC model of U2 and U2++, trainable, under WeNet's parameter names.

A `final.pt` loads into it as it is. It knows nothing of files or of ONNX.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from oasr_backend.export.conformer_config import SUBSAMPLING as SUBSAMPLING
from oasr_backend.export.conformer_config import ConformerConfig as ConformerConfig
from oasr_backend.export.conformer_layers import ConformerLayer, chunk_mask, mask_bias, sinusoids

MAX_DYNAMIC_CHUNK = 25
"""The longest chunk that WeNet draws in training, besides full context."""


class GlobalCmvn(nn.Module):
    """Normalizes features by the mean and the inverse standard deviation of the training data."""

    mean: Tensor
    istd: Tensor

    def __init__(self, num_mels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_mels))
        self.register_buffer("istd", torch.ones(num_mels))

    def forward(self, features: Tensor) -> Tensor:
        """Return the features normalized, in their shape."""
        return (features - self.mean) * self.istd


class Subsampling(nn.Module):
    """Two convolutions of stride 2 over time and frequency, then a linear layer."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size = config.output_size
        num_bins = encoder_frames(config.input_size)
        self.conv = nn.Sequential(
            nn.Conv2d(1, size, 3, 2), nn.ReLU(), nn.Conv2d(size, size, 3, 2), nn.ReLU()
        )
        self.out = nn.Sequential(nn.Linear(size * num_bins, size))
        self.scale = math.sqrt(size)

    def forward(self, features: Tensor) -> Tensor:
        """Return (batch, frames', size) of features (batch, frames, mels), scaled as the layers expect it."""
        maps = self.conv(features.unsqueeze(1))
        embedded: Tensor = self.out(maps.transpose(1, 2).flatten(2))
        return embedded * self.scale


class Encoder(nn.Module):
    """Features to encoder frames, every fourth of them."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.global_cmvn = GlobalCmvn(config.input_size)
        self.embed = Subsampling(config)
        self.encoders = nn.ModuleList(ConformerLayer(config) for _ in range(config.num_blocks))
        self.after_norm = nn.LayerNorm(config.output_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.positional_dropout_rate)

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        chunk_size: int | Tensor = 0,
        num_left_chunks: int | Tensor = -1,
    ) -> tuple[Tensor, Tensor]:
        """Return (batch, frames', size) and the valid frames' of each row; arguments as of `ConformerCtc`."""
        x = self.dropout(self.embed(self.global_cmvn(features)))
        num_frames, lengths = x.shape[1], encoder_lengths(lengths)
        indices = torch.arange(num_frames, device=x.device)
        frame_mask = indices < lengths.unsqueeze(1)
        seen = chunk_mask(num_frames, chunk_size, num_left_chunks, x.device)
        visible = seen & frame_mask[:, None, None, :]
        bias = mask_bias(visible)
        positions = self.dropout(sinusoids(indices.unsqueeze(0), x.shape[2]))
        for layer in self.encoders:
            assert isinstance(layer, ConformerLayer)
            past = layer.conv_module.before_start(x.shape[0])
            x, _, _ = layer(x, positions, bias, frame_mask.unsqueeze(2), None, past)
        return self.after_norm(x), lengths


class Ctc(nn.Module):
    """The CTC output layer."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.ctc_lo = nn.Linear(config.output_size, config.vocabulary_size)

    def forward(self, encoded: Tensor) -> Tensor:
        """Return log-probabilities (batch, frames, vocabulary) of encoder frames."""
        return torch.log_softmax(self.ctc_lo(encoded), dim=-1)


class ConformerCtc(nn.Module):
    """Encoder and CTC layer: what this product uses of a U2 or U2++ model."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.ctc = Ctc(config)

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        chunk_size: int | Tensor = 0,
        num_left_chunks: int | Tensor = -1,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of whole utterances, each as if alone.

        features: (batch, frames, mels) float32 before CMVN, right-padded with anything finite; frames of 10 ms, at
            least CONTEXT_FRAMES.
        lengths: (batch,) int64, the valid frames.
        chunk_size: the attention of an encoder frame ends with its chunk of so many; 0 or less for full context.
        num_left_chunks: chunks that it sees before its own; negative for all.
        Returns (batch, frames', vocabulary) float32 and (batch,) int64, the valid frames'.
        """
        encoded, encoded_lengths = self.encoder(features, lengths, chunk_size, num_left_chunks)
        return self.ctc(encoded), encoded_lengths

    def draw_chunk(self, num_frames: int) -> tuple[int, int]:
        """Return the chunk size and left chunks that a training step should use, for batches of `num_frames` features.

        As WeNet draws them: without `use_dynamic_chunk`, `static_chunk_size`. With it, half of the steps see the full
        context, the others chunks of 1 to MAX_DYNAMIC_CHUNK frames, with all of the past or, with
        `use_dynamic_left_chunk`, a random part of it.
        """
        config, longest = self.config, max(encoder_frames(num_frames), 1)
        if not config.use_dynamic_chunk:
            return config.static_chunk_size, -1
        drawn = _random_below(longest - 1) + 1
        if drawn > longest // 2:
            return 0, -1
        size = drawn % MAX_DYNAMIC_CHUNK + 1
        if not config.use_dynamic_left_chunk:
            return size, -1
        return size, _random_below((longest - 1) // size + 1)


def encoder_frames(num_frames: int) -> int:
    """Return how many encoder frames so many feature frames make."""
    return max((((num_frames - 1) // 2) - 1) // 2, 0)


def encoder_lengths(lengths: Tensor) -> Tensor:
    """Return `encoder_frames` of each length: (batch,) int64 of the same."""
    return (((lengths - 1) // 2 - 1) // 2).clamp(min=0)


def _random_below(bound: int) -> int:
    return int(torch.randint(0, max(bound, 1), (1,)))

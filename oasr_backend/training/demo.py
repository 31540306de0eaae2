"""The demo model before it has learnt: its shape, its tokens, the features it hears.

It knows nothing of training or of files.
"""

from __future__ import annotations

import torch

from oasr_backend.bundle import FeatureSettings
from oasr_backend.export.conformer import ConformerConfig, ConformerCtc
from oasr_backend.features.fbank import NUM_MELS
from oasr_backend.training.examples import UNITS, Recordings, feature_statistics

CONFIG = ConformerConfig(
    vocabulary_size=len(UNITS),
    input_size=NUM_MELS,
    output_size=96,
    attention_heads=4,
    linear_units=384,
    num_blocks=5,
    # The distortion regularizes enough: so small a model underfits in the epochs that two hours hold.
    dropout_rate=0.0,
    positional_dropout_rate=0.0,
    cnn_module_kernel=15,
    cnn_module_norm="layer_norm",
    causal=True,
    use_dynamic_chunk=True,  # with all of the past: 4 chunks of 16 are more than most commands last
)
"""1.4 million parameters."""

FEATURES = FeatureSettings(num_mels=NUM_MELS)

NUM_NORMALIZING = 500
"""Recordings whose mean and deviation normalize the features: about 90,000 frames."""


def new_model(recordings: Recordings) -> ConformerCtc:
    """Make a model with random weights, normalized to what it will hear."""
    torch.manual_seed(recordings.seed)
    model = ConformerCtc(CONFIG)
    mean, deviation = feature_statistics(recordings, NUM_NORMALIZING)
    model.encoder.global_cmvn.mean.copy_(torch.from_numpy(mean))
    model.encoder.global_cmvn.istd.copy_(torch.from_numpy(1 / deviation))
    return model

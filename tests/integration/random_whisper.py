"""A multilingual Whisper model of random weights: small and without sense, but a real CTranslate2 folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ctranslate2.specs.whisper_spec import WhisperSpec

from oasr_backend.models.whisper_folder import find_model
from oasr_backend.models.whisper_vocabulary import LANGUAGE_TOKEN

DEPTH = 16
NUM_HEADS = 2
NUM_MELS = 80


def save_random_model(folder: Path) -> None:
    """Write a model of one layer with the vocabulary of the multilingual Whisper models."""
    rng = np.random.default_rng(0)

    def random(*shape):
        return rng.normal(0, 0.1, shape).astype(np.float32)

    def fill(layer, num_outputs, *shape):
        layer.weight = random(num_outputs, *shape)
        layer.bias = np.zeros(num_outputs, np.float32)

    def fill_norm(norm):
        norm.gamma = np.ones(DEPTH, np.float32)
        norm.beta = np.zeros(DEPTH, np.float32)

    def fill_attention(attention, widths):
        fill_norm(attention.layer_norm)
        for linear, width in zip(attention.linear, widths, strict=True):
            fill(linear, width * DEPTH, DEPTH)

    def fill_layers(part, positions):
        part.position_encodings.encodings = random(positions, DEPTH)
        fill_norm(part.layer_norm)
        fill_attention(part.layer[0].self_attention, (3, 1))
        fill_norm(part.layer[0].ffn.layer_norm)
        fill(part.layer[0].ffn.linear_0, 2 * DEPTH, DEPTH)
        fill(part.layer[0].ffn.linear_1, DEPTH, 2 * DEPTH)

    tokens = multilingual_tokens()
    spec = WhisperSpec(1, NUM_HEADS, 1, NUM_HEADS)
    fill(spec.encoder.conv1, DEPTH, NUM_MELS, 3)
    fill(spec.encoder.conv2, DEPTH, DEPTH, 3)
    fill_layers(spec.encoder, 1500)
    spec.decoder.embeddings.weight = random(len(tokens), DEPTH)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    fill_layers(spec.decoder, 448)
    fill_attention(spec.decoder.layer[0].attention, (1, 2, 1))
    spec.config.suppress_ids = []
    spec.config.suppress_ids_begin = []
    spec.config.lang_ids = [
        index for index, token in enumerate(tokens) if LANGUAGE_TOKEN.fullmatch(token)
    ]
    spec.config.alignment_heads = [[0, 0]]
    spec.register_vocabulary(tokens)
    spec.validate()
    spec.save(str(folder))


def multilingual_tokens() -> list[str]:
    """Return the vocabulary of tiny.en with the empty token that only multilingual models have before the end."""
    text = (find_model("") / "vocabulary.txt").read_text("utf-8")
    tokens = text.removesuffix("\n").split("\n")
    tokens.insert(tokens.index("<|endoftext|>"), "")
    return tokens

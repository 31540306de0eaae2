"""Our Conformer against one written by hand, in every variant that checkpoints come in."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from oasr_backend.bundle import FeatureSettings
from oasr_backend.errors import ConfigError
from oasr_backend.export.bundle import export_bundle, export_offline, streaming_settings
from oasr_backend.export.conformer import MAX_DYNAMIC_CHUNK, ConformerCtc
from oasr_backend.export.conformer_config import ConformerConfig
from oasr_backend.export.graphs import ChunkGraph
from oasr_backend.export.wenet import Checkpoint
from tests.integration.conformer_by_hand import ByHand
from tests.integration.paged_streams import PagedStreams

TOLERANCE = 1e-4
VARIANTS = [
    {"causal": causal, "cnn_module_norm": norm, "activation_type": activation}
    for causal, norm, activation in itertools.product(
        (True, False), ("layer_norm", "batch_norm"), ("swish", "relu")
    )
] + [{"causal": True, "activation_type": "gelu", "cnn_module_kernel": 4}]


def random_model(**options):
    """Return a small model in which every parameter matters, those that usually start at 0 or 1 included."""
    shape = {"vocabulary_size": 11, "input_size": 20, "output_size": 16, "attention_heads": 2}
    sizes = {"linear_units": 24, "num_blocks": 2, "cnn_module_kernel": 5}
    config = ConformerConfig(**{**shape, **sizes, **options})
    model = ConformerCtc(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                noise = torch.randn(value.shape, generator=generator)
                positive = name.endswith(("running_var", "istd"))
                value.copy_(noise.abs() + 0.3 if positive else 0.3 * noise)
    return model


def features(num_frames, seed=0):
    return np.random.default_rng(seed).normal(0, 1, (num_frames, 20)).astype(np.float32)


def run(model, rows, *chunks, padding=0.0):
    longest = max(len(row) for row in rows)
    batch = np.full((len(rows), longest, 20), padding, np.float32)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    lengths = torch.tensor([len(row) for row in rows])
    with torch.no_grad():
        log_probs, lengths = model(torch.from_numpy(batch), lengths, *chunks)
    return [row[:length].numpy() for row, length in zip(log_probs, lengths, strict=True)]


@pytest.mark.parametrize("chunks", [(0, -1), (3, 1), (2, -1)])
@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_every_variant_computes_what_the_papers_say(options, chunks):
    model = random_model(**options)
    ours = run(model, [features(43)], *chunks)[0]
    by_hand = ByHand(model.state_dict(), model.config).log_probs(features(43), *chunks)
    assert len(ours) == len(by_hand) == 10
    np.testing.assert_allclose(ours, by_hand, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_a_row_is_as_if_alone_whatever_pads_the_batch(options):
    model = random_model(**options)
    rows = [features(43), features(19, seed=1), features(80, seed=2), features(7, seed=3)]
    for together, row in zip(run(model, rows, padding=50.0), rows, strict=True):
        np.testing.assert_allclose(together, run(model, [row])[0], rtol=0, atol=TOLERANCE)


def test_rows_too_short_for_a_frame_have_none():
    rows = run(random_model(), [features(0), features(6), features(7), features(43)])
    assert [len(row) for row in rows] == [0, 0, 1, 10]


@pytest.mark.parametrize("chunks", [(3, 1), (2, -1)])
@pytest.mark.parametrize(
    "options",
    [one for one in VARIANTS if one["causal"]],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_every_causal_variant_streams_as_the_papers_chunk_mask_says(options, chunks):
    model = random_model(**options)
    graph = ChunkGraph(model)

    def run_graph(inputs):
        with torch.no_grad():
            outputs = graph(*(torch.from_numpy(inputs[name]) for name in graph.inputs))
        return [output.numpy() for output in outputs]

    streams = PagedStreams(run_graph, settings_of(model.config, *chunks), *chunks, block=4)
    rows = [streams.open(features(43)), streams.open(features(59, seed=1))]
    streams.step(rows[:1])
    while not all(stream.done for stream in rows):
        streams.step([stream for stream in rows if not stream.done])
    for stream in rows:
        by_hand = ByHand(model.state_dict(), model.config).log_probs(stream.features, *chunks)
        log_probs = np.concatenate(stream.log_probs)
        np.testing.assert_allclose(log_probs, by_hand, rtol=0, atol=TOLERANCE)


def settings_of(config, chunk_size, num_left_chunks):
    trained = replace(config, use_dynamic_chunk=True)
    return streaming_settings(trained, chunk_size, num_left_chunks)


def test_a_stream_goes_on_beyond_the_5000_positions_of_wenets_table():
    model = random_model(causal=True, cnn_module_norm="layer_norm")
    config, chunk = model.config, features(4 * 6 + 3)
    with torch.no_grad():
        before_start = [layer.conv_module.before_start(1) for layer in model.encoder.encoders]
        log_probs, _, _ = ChunkGraph(model)(
            torch.from_numpy(chunk[None]),
            torch.tensor([6]),
            torch.tensor([6000]),
            torch.tensor([0]),
            torch.tensor([[0]]),
            torch.zeros(1, config.num_planes, 4, config.plane_width),
            torch.stack(before_start, dim=1),
        )
    by_hand = ByHand(model.state_dict(), config).log_probs(chunk, first_position=6000)
    np.testing.assert_allclose(log_probs[0], by_hand, rtol=0, atol=5 * TOLERANCE)


def test_the_model_learns_with_dropout_and_chunks():
    torch.manual_seed(0)
    model = random_model(causal=True, use_dynamic_chunk=True, dropout_rate=0.05).train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    batch, lengths = (
        torch.from_numpy(np.stack([features(60), features(60, 1)])),
        torch.tensor([60, 50]),
    )
    losses = []
    for _ in range(60):
        log_probs, frames = model(batch, lengths, *model.draw_chunk(60))
        targets = torch.tensor([[3, 4, 5], [6, 7, 7]])
        loss = torch.nn.functional.ctc_loss(
            log_probs.transpose(0, 1), targets, frames, torch.tensor([3, 3])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(value.grad is not None for value in model.parameters())
    assert np.mean(losses[-5:]) < 0.3 * np.mean(losses[:5])


def test_training_draws_chunks_as_wenet_does():
    torch.manual_seed(0)
    dynamic = random_model(causal=True, use_dynamic_chunk=True)
    draws = [dynamic.draw_chunk(403) for _ in range(2000)]
    sizes = [size for size, _ in draws]
    assert 0.45 < sizes.count(0) / len(sizes) < 0.55
    assert set(sizes) == set(range(MAX_DYNAMIC_CHUNK + 1))
    assert {left for _, left in draws} == {-1}
    left = random_model(causal=True, use_dynamic_chunk=True, use_dynamic_left_chunk=True)
    drawn = [left.draw_chunk(403) for _ in range(2000)]
    assert all(0 <= num_left <= 99 // size for size, num_left in drawn if size)
    assert random_model(static_chunk_size=7).draw_chunk(403) == (7, -1)
    assert random_model().draw_chunk(403) == (0, -1)


def checkpoint_of(model):
    tokens = tuple(f"t{index}" for index in range(model.config.vocabulary_size))
    return Checkpoint(model, tokens, FeatureSettings(num_mels=20))


def test_a_symmetric_convolution_is_exported_for_whole_utterances(tmp_path):
    model = random_model(causal=False, cnn_module_norm="batch_norm")
    assert export_offline(checkpoint_of(model), tmp_path / "encoder.onnx", 4) < TOLERANCE


def test_a_symmetric_convolution_is_refused_for_streams(tmp_path):
    with pytest.raises(ConfigError) as error:
        export_bundle(checkpoint_of(random_model(causal=False, use_dynamic_chunk=True)), tmp_path)
    assert str(error.value) == (
        "train.yaml: encoder_conf.causal is False, and a symmetric convolution needs frames that a stream has not "
        "heard yet: export with --offline-only"
    )
    assert not list(tmp_path.iterdir())


def test_a_model_trained_on_whole_utterances_is_refused_for_streams(tmp_path):
    with pytest.raises(ConfigError) as error:
        export_bundle(checkpoint_of(random_model(causal=True)), tmp_path)
    assert str(error.value) == (
        "train.yaml: encoder_conf.use_dynamic_chunk is False and there is no static_chunk_size, so the model was "
        "trained on whole utterances only: export with --offline-only"
    )

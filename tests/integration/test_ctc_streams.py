"""Streams through real graphs: mixed offsets, swapping, chunking and capacity change no text."""

from __future__ import annotations

import numpy as np
import pytest

from oasr_backend.errors import ClientError, ConfigError
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.models.ctc import CtcConfig
from oasr_backend.models.ctc_offline import CtcRecognizer
from oasr_backend.models.ctc_streams import CtcStreams
from oasr_backend.models.streams import run
from tests.e2e.asr import clips

PLAIN = TranscribeOptions()


@pytest.fixture(scope="module")
def spoken():
    return list((clips("cards") | clips("commands")).values())


def make(max_streams=16, **options):
    return CtcStreams(
        CtcConfig(decoding_chunk_size=16, **{"num_left_chunks": 4, **options}), max_streams
    )


def text(stream):
    return stream.partial(words=False).transcript.text


def alone(model, samples, piece=2560):
    stream = model.open(PLAIN, 16000)
    for start in range(0, len(samples), piece):
        stream.accept(samples[start : start + piece])
    stream.finish()
    while stream.num_chunks_run < stream.num_chunks_due:
        assert model.reserve(stream)
        run(model, [stream], 1)
    model.close(stream)
    return text(stream)


def offline(samples, **options):
    recognizer = CtcRecognizer(CtcConfig(**options))
    prepared = [recognizer.prepare(one, PLAIN) for one in samples]
    return [transcript.text for transcript in recognizer.transcribe(prepared)]


@pytest.mark.parametrize(
    "options", [{}, {"num_left_chunks": -1}, {"num_left_chunks": 0}, {"beam_size": 4}]
)
def test_a_stream_says_what_the_whole_utterance_says_under_the_same_mask(spoken, options):
    model = make(**options)
    heard = [alone(model, samples) for samples in spoken]
    mask = {"num_left_chunks": 4, **options}
    assert heard == offline(spoken, decoding_chunk_size=16, **mask)
    assert any(heard)


def test_whole_utterances_do_not_depend_on_their_neighbours(spoken):
    assert offline(spoken) == [offline([samples])[0] for samples in spoken]


@pytest.mark.parametrize("piece", [7, 160, 5000, 1_000_000])
def test_pieces_of_any_size_give_the_same_text(spoken, piece):
    model = make()
    samples = spoken[0]
    assert alone(model, samples, piece) == alone(model, samples)


def test_streams_that_join_leave_and_swap_at_random_say_what_each_says_alone(spoken):
    model, rng = make(max_streams=8, num_cache_blocks=20), np.random.default_rng(0)
    expected = [alone(model, samples) for samples in spoken]
    waiting = [(who, spoken[who]) for who in rng.integers(0, len(spoken), 24)]
    running, num_swapped = [], 0
    while waiting or running:
        while waiting and len(running) < 6:
            who, samples = waiting.pop()
            stream = model.open(PLAIN, 16000)
            stream.accept(samples)
            stream.finish()
            running.append((who, stream))
        for _, stream in running:
            if rng.random() < 0.2:
                model.swap_out(stream)
                num_swapped += 1
        chosen = [stream for _, stream in running if rng.random() < 0.7]
        chosen = [stream for stream in chosen if model.reserve(stream)]
        if chosen:
            run(model, chosen, len(chosen) + int(rng.integers(0, 3)))
        for who, stream in list(running):
            if stream.num_chunks_run == stream.num_chunks_due:
                assert text(stream) == expected[who]
                model.close(stream)
                running.remove((who, stream))
    assert num_swapped > 10
    assert model.num_blocks_used == 0


def test_beyond_its_capacity_a_stream_forgets_the_oldest_or_ends():
    noise = np.random.default_rng(1).normal(size=16000 * 8).astype(np.float32) * np.float32(0.1)
    recycling = make(num_left_chunks=-1, max_cache_s=2.0)
    bounded = make(num_left_chunks=3)
    assert alone(recycling, noise) == alone(bounded, noise)
    ending = make(num_left_chunks=-1, max_cache_s=2.0, at_capacity="finish")
    stream = ending.open(PLAIN, 16000)
    stream.accept(noise)
    while not stream.is_full:
        assert ending.reserve(stream)
        run(ending, [stream], 1)
    assert stream.num_chunks_run == 4


def test_words_have_times_in_the_stream(spoken):
    model = make()
    stream = model.open(PLAIN, 16000)
    stream.accept(spoken[0])
    stream.finish()
    while stream.num_chunks_run < stream.num_chunks_due:
        model.reserve(stream)
        run(model, [stream], 1)
    transcript = stream.partial(words=True).transcript
    assert " ".join(word.text for word in transcript.words) == transcript.text
    duration_s = len(spoken[0]) / 16000
    for word in transcript.words:
        assert 0 <= word.start_s < word.end_s <= duration_s


def test_what_a_ctc_model_cannot_do_is_refused():
    model = make()
    with pytest.raises(ClientError, match="language is 'fr'; this model has one language"):
        model.open(TranscribeOptions("fr"), 16000)
    with pytest.raises(ClientError, match="task is 'translate'; this model can only transcribe"):
        model.open(TranscribeOptions(task="translate"), 16000)
    with pytest.raises(ConfigError, match="num_cache_blocks is 3; one stream fills 4"):
        make(num_cache_blocks=3)

"""An hour in one request: whole, in order, and in memory that does not grow with it beyond the samples themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oasr_backend.wer import word_error_rate
from tests.e2e.asr import Client, clips, copy_model, references, serve, stub_pid

HOUR_S = 3600
PART_S = 300


def an_hour() -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Return read speech joined to an hour, half a second between the clips, and (start in s, text) of each clip."""
    pause = np.zeros(8000, np.float32)
    spoken, words = clips(), references()
    names = list(words)
    parts, texts, num_samples = [], [], 0
    rng = np.random.default_rng(0)
    while num_samples < HOUR_S * 16000:
        name = names[rng.integers(len(names))]
        parts += [spoken[name], pause]
        texts.append((num_samples / 16000, words[name]))
        num_samples += len(spoken[name]) + len(pause)
    return np.concatenate(parts)[: HOUR_S * 16000], texts


def by_part(timed_texts: list[tuple[float, str]]) -> list[str]:
    """Return what is said in each part of five minutes."""
    parts = [""] * (HOUR_S // PART_S)
    for start_s, text in timed_texts:
        parts[min(int(start_s // PART_S), len(parts) - 1)] += f" {text}"
    return parts


def peak_memory_mb(pid: int) -> float:
    """Return the most resident memory that a process ever had."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(status["VmHWM"].split()[0]) / 1024


@pytest.mark.timeout(900)
def test_an_hour_comes_back_whole_and_in_order_in_bounded_memory(tmp_path):
    samples, expected = an_hour()
    samples_mb = samples.nbytes / 2**20
    copy_model(tmp_path, beam_size="1")
    with (tmp_path / "server.log").open("wb") as log, serve(tmp_path, log) as server:
        client = Client(server)
        # Full batches, the most that runs at once.
        client.transcribe(*np.split(samples[: 8 * 30 * 16000], 8), details=True)
        pid = stub_pid(server, "asr_offline")
        before_mb = peak_memory_mb(pid)
        answer = client.transcribe(samples, details=True)
        growth_mb = peak_memory_mb(pid) - before_mb
    [details] = answer.details
    heard = [(word["start_s"], word["word"]) for word in details["words"]]
    error_rate = word_error_rate(by_part(expected), by_part(heard))
    print(
        f"an hour: word error rate {error_rate:.1%}, memory {before_mb:.0f} MB and {growth_mb:.0f} MB more"
    )
    # Each part holds its own words: what is lost, doubled or moved shows here.
    assert error_rate <= 0.10
    assert answer.text == " ".join(text for _, text in heard)
    starts = [start_s for start_s, _ in heard]
    assert starts == sorted(starts)
    assert starts[-1] > HOUR_S - 20
    assert details["duration_s"] == HOUR_S
    # The samples once in the shared memory of the request and once in the engine, then a few pieces at a time.
    assert growth_mb <= 2 * samples_mb + 100

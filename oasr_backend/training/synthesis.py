"""A sentence and a voice in, samples at 16 kHz out: espeak-ng, flite and hibari behind one function.

It knows nothing of where texts come from or what becomes of the samples.
"""

from __future__ import annotations

import io
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from oasr_backend.training.voices import Delivery, Voice

SAMPLE_RATE_HZ = 16000
Samples = NDArray[np.float32]


def synthesize(text: str, voice: Voice, how: Delivery, seed: int) -> Samples:
    """Speak `text`.

    Args:
        text: words with single spaces.
        voice: who speaks.
        how: how.
        seed: where pauses fall, and hibari's noise. The same arguments give the same samples with
            the same versions of the synthesizers.

    Returns:
        (samples,) float32 at 16 kHz, its largest value 0.5, its silence trimmed to 0.1 s at each end.

    Raises:
        RuntimeError: the synthesizer is missing or fails; its own message is carried.
    """
    spoken = _punctuate(text, how.pauses, Random(seed))
    samples, rate_hz = _SYNTHESIZERS[voice.engine](spoken, voice.name, how, seed)
    if rate_hz != SAMPLE_RATE_HZ:
        samples = soxr.resample(samples, rate_hz, SAMPLE_RATE_HZ)
    peak = float(np.abs(samples).max(initial=0.0))
    if peak == 0.0:
        raise RuntimeError(f"{voice} spoke no sound for {text!r}")
    return _trim((samples * (0.5 / peak)).astype(np.float32))


def _trim(samples: Samples) -> Samples:
    """Cut silence, which would be up to half of a short line: what is 34 dB below the peak of 0.5."""
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    margin = SAMPLE_RATE_HZ // 10
    return samples[max(loud[0] - margin, 0) : loud[-1] + margin]


def _punctuate(text: str, pauses: float, random: Random) -> str:
    words = text.split()
    spoken = [f"{word}," if random.random() < pauses else word for word in words[:-1]]
    return " ".join([*spoken, words[-1] + random.choice((".", ".", "", "!"))])


def _espeak(text: str, name: str, how: Delivery, _seed: int) -> tuple[Samples, int]:
    command = ["espeak-ng", "--stdout", "-v", name, "-s", str(round(160 * how.pace))]
    return _read_wave(_run([*command, "-p", str(min(99, round(50 * how.pitch))), text]))


def _flite(text: str, name: str, how: Delivery, _seed: int) -> tuple[Samples, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        stretch = f"duration_stretch={1 / how.pace:.3f}"
        _run(["flite", "-voice", name, "--setf", stretch, "-t", text, "-o", str(path)])
        return _read_wave(path.read_bytes())


def _hibari(text: str, _name: str, how: Delivery, seed: int) -> tuple[Samples, int]:
    """Speak with the network's own source and filter, so that pitch and formants move apart.

    hibari 0.2.1 predicts log magnitudes of a harmonic and a noise branch, (bins, frames), and the
    fundamental; a third, residual branch carries traces of the original pitch and is left out
    where the pitch changes much.
    """
    import hibari.dsp

    model = _hibari_model()
    generator = np.random.default_rng(seed)
    parts = []
    for phonemes in model.phonemize(text):
        inputs = {
            "ids": np.asarray([model.ids(phonemes)], np.int64),
            "speed": np.asarray([how.pace], np.float32),
        }
        harmonic, theta, noise, residual, phase, pitch = (
            o[0] for o in model.sess.run(None, inputs)
        )
        harmonic, theta, noise, residual, phase = (
            _warp(branch, how.tract) for branch in (harmonic, theta, noise, residual, phase)
        )
        if not 0.85 < how.pitch < 1.15:
            residual = np.full_like(residual, -20.0)
        moved = _move_pitch(pitch, how)
        parts.append(hibari.dsp.synth(harmonic, theta, noise, residual, phase, moved, generator))
    return np.concatenate(parts).astype(np.float32), hibari.dsp.SR


def _warp(branch: NDArray[np.float32], tract: float) -> NDArray[np.float32]:
    """Stretch the frequency axis of (bins, frames): what was at bin f is heard at f * tract."""
    num_bins = branch.shape[0]
    source = np.minimum(np.arange(num_bins) / tract, num_bins - 1.001)
    low = source.astype(np.int64)
    share = (source - low).astype(np.float32)[:, None]
    warped: NDArray[np.float32] = branch[low] * (1 - share) + branch[low + 1] * share
    return warped


def _move_pitch(pitch_hz: NDArray[np.float32], how: Delivery) -> NDArray[np.float32]:
    voiced = pitch_hz > 40.0  # hibari's own threshold; below it a frame is unvoiced
    if not voiced.any():
        return pitch_hz
    logs = np.log(np.maximum(pitch_hz, 40.0))
    centre = logs[voiced].mean()
    moved = np.exp(centre + (logs - centre) * how.intonation + np.log(how.pitch))
    return np.asarray(np.where(voiced, np.maximum(moved, 55.0), 0.0), np.float32)


@cache
def _hibari_model() -> Any:
    try:
        from hibari import Hibari
    except ImportError as error:
        raise RuntimeError("hibari is not installed. Run: pip install hibari-tts==0.2.1") from error
    return Hibari()


def _run(command: Sequence[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{command[0]} is not installed. Run: sudo apt-get install {command[0]}"
        ) from error
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip()
        raise RuntimeError(
            f"{' '.join(command)}: exit status {error.returncode}: {message}"
        ) from error


def _read_wave(data: bytes) -> tuple[Samples, int]:
    with wave.open(io.BytesIO(data)) as sound:
        rate_hz = sound.getframerate()
        # espeak-ng writes to a pipe, so its header cannot say how long the sound is: read it all.
        pcm = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    return pcm.astype(np.float32) / 32768.0, rate_hz


_SYNTHESIZERS = {"espeak": _espeak, "flite": _flite, "hibari": _hibari}

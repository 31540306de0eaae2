"""How big a job is, for the orders that go by size. Padding is another matter: see limits.py.

It knows nothing of queues. A size is a whole number, at least 1; only sizes of one estimator are compared.
"""

from __future__ import annotations

from typing import Protocol

from oasr_backend.config import EngineConfig
from oasr_backend.request import FRAMES_PER_SECOND, Request

LEARNING_RATE = 0.05
"""What one observed output moves a language's kappa by."""


class Estimator(Protocol):
    """Estimates sizes, and may learn from outputs."""

    def size(self, request: Request) -> int:
        """Return the estimated size of a request."""

    def learn(self, language: str | None, duration_s: float, num_tokens: int) -> None:
        """Take what an utterance of that length gave."""


class Frames:
    """The length of the audio in frames."""

    def size(self, request: Request) -> int:
        return max(1, request.num_frames)

    def learn(self, language: str | None, duration_s: float, num_tokens: int) -> None:
        pass


class SpeechFrames(Frames):
    """The speech-active frames where the request says them, else all: silence gives no tokens to decode."""

    def size(self, request: Request) -> int:
        if request.speech_frames is None:
            return super().size(request)
        return max(1, request.speech_frames)


class Tokens:
    """The tokens that will be decoded: max(1, int(duration_s * kappa)).

    kappa is tokens a second, of the request's language where it was learnt; where none is known the estimate is the
    model's maximum, as for a request that says nothing of its length.
    """

    def __init__(self, kappa: float | None, max_tokens: int, learns: bool) -> None:
        self._kappa = kappa
        self._max_tokens = max_tokens
        self._learns = learns
        self._learnt: dict[str | None, float] = {}

    def size(self, request: Request) -> int:
        kappa = self._learnt.get(request.language, self._kappa)
        if kappa is None:
            return self._max_tokens
        return max(1, int(request.num_frames / FRAMES_PER_SECOND * kappa))

    def learn(self, language: str | None, duration_s: float, num_tokens: int) -> None:
        """Move the language's kappa towards this output's, from the configured one or else from the first seen."""
        if not self._learns or duration_s <= 0:
            return
        seen = num_tokens / duration_s
        start = seen if self._kappa is None else self._kappa
        known = self._learnt.get(language, start)
        self._learnt[language] = known + LEARNING_RATE * (seen - known)


def make_estimator(config: EngineConfig) -> Estimator:
    """Return the estimator that `job_size` names."""
    if config.job_size == "tokens":
        return Tokens(config.kappa, config.max_tokens, config.adaptive_kappa)
    return SpeechFrames() if config.job_size == "vad" else Frames()

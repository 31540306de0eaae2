"""`asr_offline` behind Triton's Python backend: requests in, replies out; the work is the engine's.

Handed Triton's `pb_utils`, since only a model.py may import it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from oasr_backend.allocator import freeze_loaded_objects, prepare_heap
from oasr_backend.blas import use_one_blas_thread
from oasr_backend.engine.job import Utterance
from oasr_backend.engine.offline import OfflineEngine
from oasr_backend.errors import AsrError, ClientError, ServerError
from oasr_backend.spans import span
from oasr_backend.triton.logs import log_to_triton
from oasr_backend.triton.metrics import TritonMetrics
from oasr_backend.triton.orphan import end_with_parent
from oasr_backend.triton.replies import UtterancesReply
from oasr_backend.triton.requests import read_options, read_rows
from oasr_backend.triton.senders import Senders
from oasr_backend.triton.settings import read_settings

log = logging.getLogger(__name__)


class OfflineModel:
    """What a model.py of whole utterances delegates to."""

    def __init__(self, pb_utils: Any, args: dict[str, str]) -> None:
        """Load the model, run and measure the batch sizes, and start the engine; ConfigError where it cannot."""
        self._pb_utils = pb_utils
        log_to_triton(pb_utils)
        end_with_parent()
        prepare_heap()
        use_one_blas_thread()
        settings = read_settings(json.loads(args["model_config"]))
        recognizer = settings.family.load(settings.family_options)
        config = settings.engine_config(recognizer.fixed_window_frames)
        if config.nvtx:
            span.switch_on()
        self._metrics = TritonMetrics(pb_utils, settings.model_name)
        self._numbers = count()
        self._engine = OfflineEngine(config, recognizer, self._metrics)
        self._engine.warm_up()
        self._engine.start()
        held = settings.bounds_triton_queue
        self._see_to_room = self._engine.wait_for_room if held else self._engine.check_room
        self._senders = Senders()
        freeze_loaded_objects()

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand requests to the engine, which replies later.

        While its backlog is full, it blocks where Triton's queue is bounded, which then fills, and refuses what
        exceeds it; where it is not, requests are refused here.
        """
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        """Answer what was accepted and stop."""
        self._engine.close()
        self._senders.close()
        self._metrics.close()

    def _accept(self, request: Any) -> None:
        """Take one request; nothing may leave here, since Triton would fail its neighbours too."""
        reply = UtterancesReply(self._pb_utils, self._senders, request)
        try:
            self._add(self._read(request, reply), reply)
        except AsrError as error:
            self._refuse(reply, error)
        except UnicodeDecodeError as error:
            self._refuse(
                reply, ClientError(f"id or parameters are no UTF-8 ({error}): encode them so")
            )
        except Exception as error:
            log.exception("a request could not be read")
            self._refuse(reply, ServerError(f"reading the request failed: {error!r}"))

    def _refuse(self, reply: UtterancesReply, error: AsrError) -> None:
        """Answer a request that never reached the engine; it counts as one utterance."""
        reply.fail(error)
        self._metrics.add("oasr_requests_total", 1, outcome=error.outcome)

    def _read(self, request: Any, reply: UtterancesReply) -> list[Utterance]:
        """Return a request's utterances, each of them acceptable."""
        options = read_options(request.parameters())
        utterances = [
            Utterance(
                f"{request.request_id()}#{next(self._numbers)}",
                samples,
                options.sample_rate_hz,
                options.transcribe_options(words=reply.wants_details),
                options.priority,
                options.tenant,
                options.deadline_s,
                reply.is_unwanted,
            )
            for samples in read_rows(request)
        ]
        for utterance in utterances:
            self._engine.check(utterance)
        return utterances

    def _add(self, utterances: Sequence[Utterance], reply: UtterancesReply) -> None:
        reply.expect(len(utterances))
        self._see_to_room()
        for row, utterance in enumerate(utterances):
            self._engine.add_request(utterance, partial(reply.set_result, row))

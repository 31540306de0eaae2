"""`asr_streaming` behind Triton's Python backend: chunks of sequences in, replies out; the work is the engine's.

Handed Triton's `pb_utils`, since only a model.py may import it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from math import inf
from typing import Any

from oasr_backend.allocator import freeze_loaded_objects, prepare_heap
from oasr_backend.blas import use_one_blas_thread
from oasr_backend.engine.stream import Chunk, ChunkResult, StreamRequest
from oasr_backend.engine.streaming import StreamingEngine, idle_text
from oasr_backend.errors import AsrError, ClientError, ServerError, shown
from oasr_backend.spans import span
from oasr_backend.triton.logs import log_to_triton
from oasr_backend.triton.metrics import TritonMetrics
from oasr_backend.triton.orphan import end_with_parent
from oasr_backend.triton.replies import ChunkReply, KeptTexts
from oasr_backend.triton.requests import (
    DEFAULT_OPTIONS,
    RequestOptions,
    read_options,
    read_rows,
)
from oasr_backend.triton.senders import Senders
from oasr_backend.triton.settings import check_streaming, read_settings

log = logging.getLogger(__name__)

START, END = 1, 2
"""Bits of a request's flags: it begins a sequence, it ends one."""


class StreamModel:
    """What a model.py of streams delegates to."""

    def __init__(self, pb_utils: Any, args: dict[str, str]) -> None:
        """Load the model, run every batch size once, and start the engine; ConfigError where it cannot."""
        self._pb_utils = pb_utils
        log_to_triton(pb_utils)
        end_with_parent()
        prepare_heap()
        use_one_blas_thread()
        model_config = json.loads(args["model_config"])
        settings = read_settings(model_config)
        self._config = settings.engine_config(fixed_window_frames=None)
        check_streaming(model_config, self._config)
        load = settings.family.load_streams
        assert load is not None, "read_settings refuses a family without streams"
        model = load(
            settings.family_options, self._config.max_streams or self._config.max_batch_size
        )
        if self._config.nvtx:
            span.switch_on()
        self._metrics = TritonMetrics(pb_utils, settings.model_name)
        self._engine = StreamingEngine(self._config, model, self._metrics)
        self._engine.warm_up()
        self._engine.start()
        self._senders = Senders()
        self._texts = KeptTexts(pb_utils)
        freeze_loaded_objects()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Hand chunks to the engine; return what it answers at once, and None for each that it answers later.

        It never blocks: that would hold live streams up.
        """
        replies = [ChunkReply(self._pb_utils, self._senders, request) for request in requests]
        for request, reply in zip(requests, replies, strict=True):
            self._accept(request, reply)
        return [
            reply.end_of_execute(request, self._texts)
            for request, reply in zip(requests, replies, strict=True)
        ]

    def finalize(self) -> None:
        """Answer what was accepted and stop."""
        self._engine.close()
        self._senders.close()
        self._metrics.close()

    def _accept(self, request: Any, reply: ChunkReply) -> None:
        """Take one request; nothing may leave here, since Triton would fail its neighbours too."""
        try:
            self._feed(request, reply)
        except AsrError as error:
            self._refuse(reply, error)
        except UnicodeDecodeError as error:
            self._refuse(
                reply, ClientError(f"id or parameters are no UTF-8 ({error}): encode them so")
            )
        except Exception as error:
            log.exception("a request could not be read")
            self._refuse(reply, ServerError(f"reading the request failed: {error!r}"))

    def _refuse(self, reply: ChunkReply, error: AsrError) -> None:
        reply.set_result(ChunkResult("", None, error))
        self._metrics.add("oasr_chunks_total", 1, outcome=error.outcome)

    def _feed(self, request: Any, reply: ChunkReply) -> None:
        """Hand a chunk to the engine; what Triton takes for begun or ended is so, though the chunk is refused."""
        stream_id, flags = stream_id_of(request.correlation_id()), request.flags()
        try:
            self._take(request, reply, stream_id, flags)
        except Exception:
            with contextlib.suppress(KeyError):
                if flags & START:
                    self._engine.abort(stream_id)
                elif flags & END:
                    self._engine.give_up(stream_id)
            raise

    def _take(self, request: Any, reply: ChunkReply, stream_id: str, flags: int) -> None:
        rows = read_rows(request)
        if len(rows) != 1:
            raise ClientError(f"WAV has {len(rows)} rows; a chunk is of one stream: send one row")
        options = read_options(request.parameters())
        chunk = Chunk(rows[0], bool(flags & END), reply.wants_details, reply.is_unwanted)
        try:
            if flags & START:
                self._engine.add_request(_stream_request(stream_id, options))
            elif options != DEFAULT_OPTIONS:
                self._check_same(stream_id, options)
            self._engine.feed_chunk(stream_id, chunk, reply.set_result)
        except KeyError:
            raise ClientError(
                f"stream {shown(request.correlation_id())} {idle_text(self._config.max_idle_s)}"
            ) from None

    def _check_same(self, stream_id: str, options: RequestOptions) -> None:
        if _stream_request(stream_id, options) != self._engine.asked(stream_id):
            raise ClientError(
                "the parameters differ from those of the stream's START, which hold for all of it: send the same, "
                "or none"
            )


def _stream_request(stream_id: str, options: RequestOptions) -> StreamRequest:
    if options.deadline_s < inf:
        raise ClientError(
            "parameter 'deadline_ms' is for whole utterances; a stream has none: leave it out"
        )
    return StreamRequest(
        stream_id,
        options.sample_rate_hz,
        options.transcribe_options(words=False),
        options.priority,
        options.tenant,
    )


def stream_id_of(correlation_id: int | str) -> str:
    """Return a name of its own for each of Triton's ids, of which 7 and "7" are two."""
    return str(correlation_id) if isinstance(correlation_id, int) else ascii(correlation_id)

"""What Triton repositories for speech recognition do: each delivered batch is padded and run as it came.

The peer of scripts/load_test.py: the model, the features, the decoder and the runtime are those of asr_offline;
Triton's dynamic batcher is the scheduler.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from oasr_backend.allocator import prepare_heap
from oasr_backend.blas import use_one_blas_thread
from oasr_backend.models.base import TranscribeOptions
from oasr_backend.triton.requests import read_rows
from oasr_backend.triton.settings import read_settings


class TritonPythonModel:
    def initialize(self, args):
        prepare_heap()
        use_one_blas_thread()
        settings = read_settings(json.loads(args["model_config"]))
        self._recognizer = settings.family.load(settings.family_options)
        for num_rows in range(1, settings.max_batch_size + 1):
            self._recognizer.rehearse(num_rows, 1000)

    def execute(self, requests):
        pieces = []
        for request in requests:
            [samples] = read_rows(request)
            pieces.append(self._recognizer.prepare(samples, TranscribeOptions()))
        spoken = [piece for piece in pieces if piece.has_speech]
        transcripts = iter(self._recognizer.transcribe(spoken) if spoken else [])
        texts = [next(transcripts).text if piece.has_speech else "" for piece in pieces]
        return [_response(text) for text in texts]


def _response(text):
    rows = np.array([[text.encode()]], dtype=np.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", rows)])

"""Live streams: Triton's entry point. Everything it does is in `oasr_backend.triton.streaming`."""

import triton_python_backend_utils as pb_utils

from oasr_backend.triton.streaming import StreamModel


class TritonPythonModel:
    """Hands Triton's calls on."""

    def initialize(self, args):
        self._model = StreamModel(pb_utils, args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.finalize()

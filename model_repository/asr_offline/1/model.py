"""Whole utterances: Triton's entry point. Everything it does is in `oasr_backend.triton.offline`."""

import triton_python_backend_utils as pb_utils

from oasr_backend.triton.offline import OfflineModel


class TritonPythonModel:
    """Hands Triton's calls on."""

    def initialize(self, args):
        self._model = OfflineModel(pb_utils, args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.finalize()

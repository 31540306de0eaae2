"""No recognizer: every piece of a stream is answered at once, with no text."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [_response(request) for request in requests]


def _response(request):
    for tensor in request.inputs():
        tensor.as_numpy()
    rows = np.array([[b""]], dtype=np.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", rows)])

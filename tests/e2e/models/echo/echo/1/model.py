"""Answers what it is asked, and says in its log where it found our package."""

import triton_python_backend_utils as pb_utils

import oasr_backend


class TritonPythonModel:
    def initialize(self, args):
        print(f"oasr_backend is {oasr_backend.__file__}", flush=True)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        samples = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", samples)])

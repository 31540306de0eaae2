"""Accepts at once and answers one request every 0.4 s from a thread of its own, as a speech engine does."""

import queue
import threading
import time

import triton_python_backend_utils as pb_utils

ANSWER_TIME_S = 0.4


class TritonPythonModel:
    def initialize(self, args):
        self._accepted = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._answer_all)
        self._thread.start()

    def execute(self, requests):
        for request in requests:
            samples = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().copy()
            self._accepted.put((request.get_response_sender(), samples))

    def finalize(self):
        self._accepted.put(None)
        self._thread.join()

    def _answer_all(self):
        while (accepted := self._accepted.get()) is not None:
            sender, samples = accepted
            time.sleep(ANSWER_TIME_S)
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", samples)])
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

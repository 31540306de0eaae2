"""What a chunk's request gets back: from `execute()` where the answer is there by its end, else sent."""

from types import SimpleNamespace

import pytest

from oasr_backend.engine.stream import ChunkResult
from oasr_backend.errors import ClientError
from oasr_backend.models.base import Transcript
from oasr_backend.models.streams import Partial
from oasr_backend.triton.replies import MAX_KEPT_LENGTH, ChunkReply, KeptTexts

TEXT, DETAILS = "TRANSCRIPTS", "DETAILS"


def tensor(name, rows):
    return SimpleNamespace(name=name, text=rows[0, 0].decode())


def response(output_tensors=(), error=None):
    return SimpleNamespace(tensors={t.name: t for t in output_tensors}, error=error)


def no_tensor(name, rows):
    raise MemoryError("no shared memory")


class PbUtils:
    """Triton's module, as far as replies need it: tensors and responses that can be looked at."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    class TritonError(SimpleNamespace):
        INVALID_ARG = 3

        def __init__(self, message, code):
            super().__init__(message=message, code=code)

    Tensor = staticmethod(tensor)
    InferenceResponse = staticmethod(response)


class Request:
    def __init__(self, *names):
        self.names, self.sent = names, []

    def requested_output_names(self):
        return self.names

    def get_response_sender(self):
        return SimpleNamespace(
            send=lambda response, flags: self.sent.append(response), is_cancelled=lambda: True
        )


class Now:
    """Senders that send at once."""

    def send(self, send):
        send()


def heard(text):
    return ChunkResult("a", Partial(Transcript(text), ""))


@pytest.fixture
def texts():
    return KeptTexts(PbUtils)


def reply_to(request):
    return ChunkReply(PbUtils, Now(), request)


def test_an_answer_before_the_end_is_returned_and_none_is_sent(texts):
    request = Request(TEXT, DETAILS)
    reply = reply_to(request)
    reply.set_result(heard("go"))
    response = reply.end_of_execute(request, texts)
    assert (response.tensors[TEXT].text, response.error) == ("go", None)
    assert '"text": "go"' in response.tensors[DETAILS].text
    reply.set_result(heard("too late"))
    assert request.sent == []
    assert reply.is_unwanted()


def test_a_later_one_is_sent_once(texts):
    request = Request(TEXT)
    reply = reply_to(request)
    assert not reply.is_unwanted(), "it is not known yet"
    assert reply.end_of_execute(request, texts) is None
    assert reply.is_unwanted(), "as its sender says"
    reply.set_result(heard("go"))
    reply.set_result(heard("again"))
    assert [response.tensors[TEXT].text for response in request.sent] == ["go"]


def test_the_first_answer_counts_be_it_an_error(texts):
    request = Request(TEXT)
    reply = reply_to(request)
    reply.set_result(ChunkResult("", None, ClientError("no audio: send some")))
    reply.set_result(heard("go"))
    response = reply.end_of_execute(request, texts)
    assert (response.error.message, response.error.code) == ("no audio: send some", 3)
    assert response.tensors == {}


def test_only_what_was_asked_for_is_in_it(texts):
    request = Request()
    reply = reply_to(request)
    reply.set_result(heard("go"))
    assert reply.end_of_execute(request, texts).tensors == {}


def test_a_text_is_made_a_tensor_once_unless_it_is_long(texts):
    assert texts.tensor("go") is texts.tensor("go")
    assert texts.tensor("go").text == "go"
    assert texts.tensor("stop").text == "stop"
    long = "a" * (MAX_KEPT_LENGTH + 1)
    assert texts.tensor(long) is not texts.tensor(long)


def test_a_reply_that_cannot_be_made_is_an_error_of_the_server(texts):
    class Broken(PbUtils):
        class TritonError(PbUtils.TritonError):
            INTERNAL = 2

        Tensor = staticmethod(no_tensor)

    request = Request(TEXT)
    reply = ChunkReply(Broken, Now(), request)
    reply.set_result(heard("go"))
    response = reply.end_of_execute(request, KeptTexts(Broken))
    assert "making the reply failed: MemoryError" in response.error.message

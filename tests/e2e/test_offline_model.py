"""asr_offline on a real tritonserver, as clients see it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from oasr_backend.engine.costs import read_cost_table
from oasr_backend.scheduler import CostTable
from oasr_backend.triton.server import TritonServer
from oasr_backend.wer import word_error_rate
from tests.e2e.asr import (
    FAULTY_MODEL,
    Client,
    batch_sizes,
    clips,
    copy_model,
    metrics,
    references,
    serve,
    stub_pid,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with (tmp_path_factory.mktemp("log") / "server.log").open("wb") as file:
        yield file


@pytest.fixture(scope="module")
def server(asr_server):
    return asr_server


@pytest.fixture(scope="module")
def client(server):
    return Client(server)


@pytest.fixture(scope="module")
def alone(client):
    """The text of every clip at hand, each sent alone."""
    everything = clips("librivox") | clips("cards") | clips("commands")
    return {
        name: (samples, client.transcribe(samples).text) for name, samples in everything.items()
    }


def test_read_speech_is_understood(alone):
    expected = references("librivox")
    heard = [alone[name][1] for name in expected]
    assert word_error_rate(list(expected.values()), heard) <= 0.10, heard


def test_the_text_is_the_same_over_http(server, alone):
    http = Client(server, protocol="http")
    assert {name: http.transcribe(samples).text for name, (samples, _) in alone.items()} == {
        name: text for name, (_, text) in alone.items()
    }


def test_the_text_is_the_same_all_at_once(client, alone):
    answers = client.transcribe_at_once([samples for samples, _ in alone.values()])
    assert [answer.text for answer in answers] == [text for _, text in alone.values()]


def test_the_text_is_the_same_in_one_padded_request(client, alone):
    answer = client.transcribe(*[samples for samples, _ in alone.values()])
    assert answer.texts == [text for _, text in alone.values()]


def test_details_hold_words_in_order_and_what_it_took(client, alone):
    samples, text = alone["sense_and_sensibility_01_austen_64kb-0870.wav"]
    [details] = client.transcribe(samples, details=True).details
    assert details["text"] == text
    assert " ".join(word["word"] for word in details["words"]) == text
    edges = [edge for word in details["words"] for edge in (word["start_s"], word["end_s"])]
    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= details["duration_s"] == pytest.approx(7.1, abs=0.01)
    assert all(0 <= word["confidence"] <= 1 for word in details["words"])
    assert details["batch_sizes"] == [1]
    assert details["compute_s"] > 0
    assert details["tokens"]


def test_two_hundred_requests_at_once_all_come_back_right_in_preferred_sizes(server, client, alone):
    before = batch_sizes(server)
    rng = np.random.default_rng(0)
    names = [str(name) for name in rng.choice(sorted(alone), 200)]
    answers = client.transcribe_at_once([alone[name][0] for name in names])
    assert [answer.text for answer in answers] == [alone[name][1] for name in names]

    def new_batches():
        return {size: n - before.get(size, 0) for size, n in batch_sizes(server).items()}

    # Which sizes: what the batch times that were measured say, which on a CPU is often one.
    wait_until(lambda: sum(size * n for size, n in new_batches().items()) >= 200)
    assert {size for size, n in new_batches().items() if n} <= {1, 2, 4}


LIMIT_S = 7200
TEN_MS = np.full(160, 0.1, np.float32)
KNOWN = "sample_rate, language, task, priority, scheduling_priority, tenant, deadline_ms (this one not with streams)"

BAD = [
    (
        "nan",
        [np.array([0.1, np.nan], np.float32)],
        {},
        "audio is nan at sample 1; samples must be finite numbers: mend what computes them, or replace them with 0",
    ),
    (
        "infinite",
        [np.array([np.inf], np.float32)],
        {},
        "audio is inf at sample 0; samples must be finite numbers: mend what computes them, or replace them with 0",
    ),
    (
        "int16 as float",
        [np.array([12000.0, -9000.0], np.float32)],
        {},
        "audio is 12000 at sample 0; limit is ±8 and full scale is ±1: divide 16-bit samples by 32768",
    ),
    (
        "negative length",
        [TEN_MS],
        {"lengths": [-1]},
        (
            "WAV_LENS is -1 in row 0; it must be from 0 to 160, the samples in WAV's row: "
            "send the number of samples that are not padding"
        ),
    ),
    (
        "length beyond the row",
        [TEN_MS, TEN_MS],
        {"lengths": [160, 161]},
        (
            "WAV_LENS is 161 in row 1; it must be from 0 to 160, the samples in WAV's row: "
            "send the number of samples that are not padding"
        ),
    ),
    (
        "too long",
        [np.zeros(8000 * LIMIT_S + 4000, np.float32)],
        {"sample_rate": 8000},
        "audio is 7200.5 s; limit is 7200.0 s (max_audio_s): split it or raise the limit",
    ),
    (
        "rate too low",
        [TEN_MS],
        {"sample_rate": 7999},
        (
            "sample_rate is 7999 Hz; allowed are 8000 to 192000 Hz: "
            "send the rate at which the samples were recorded, or resample them"
        ),
    ),
    (
        "rate no number",
        [TEN_MS],
        {"sample_rate": "fast"},
        "parameter 'sample_rate' is 'fast'; it must be a whole number: send an integer",
    ),
    (
        "unknown parameter",
        [TEN_MS],
        {"lang": "en"},
        f"parameter 'lang' (value 'en') is unknown; known are {KNOWN}: correct or remove it",
    ),
    (
        "unknown task",
        [TEN_MS],
        {"task": "summarize"},
        "task is 'summarize'; allowed are transcribe and translate: choose one of them",
    ),
    (
        "language of another model",
        [TEN_MS],
        {"language": "fr"},
        (
            "language is 'fr', but the model is English-only: leave language out or set it to 'en', or "
            "serve a multilingual model (model_dir)"
        ),
    ),
    (
        "no deadline",
        [TEN_MS],
        {"deadline_ms": 0},
        "parameter 'deadline_ms' is 0; it must be at least 1: raise it",
    ),
]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    ("rows", "options", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD]
)
def test_bad_input_is_refused_in_words(server, rows, options, text, protocol):
    with pytest.raises(InferenceServerException) as caught:
        Client(server, protocol=protocol).transcribe(*rows, **options)
    assert caught.value.message() == text
    assert caught.value.status() == {"grpc": "StatusCode.INVALID_ARGUMENT", "http": "400"}[protocol]


def test_an_error_in_one_row_of_several_names_the_row(client):
    with pytest.raises(InferenceServerException) as caught:
        client.transcribe(TEN_MS, np.array([0.1, np.nan], np.float32))
    assert caught.value.message().startswith("row 1: audio is nan at sample 1; ")


def test_wrong_shapes_are_refused(client):
    request = client.request([TEN_MS])
    request["inputs"][0].set_shape([1, 2, 80])
    with pytest.raises(InferenceServerException) as caught:
        client.triton.infer(**request)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    two_rows = client.request([TEN_MS, TEN_MS])
    two_rows["inputs"][1] = client.request([TEN_MS])["inputs"][1]
    with pytest.raises(InferenceServerException) as caught:
        client.triton.infer(**two_rows)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_bad_requests_never_disturb_their_neighbours(client, alone):
    good = [samples for samples, _ in alone.values()]
    bad = [np.full(1000, np.nan, np.float32), np.full(1000, 20000, np.float32)] * len(good)
    answers = client.transcribe_at_once([x for pair in zip(good, bad, strict=False) for x in pair])
    assert [answer.text for answer in answers[::2]] == [text for _, text in alone.values()]
    assert all(isinstance(answer, InferenceServerException) for answer in answers[1::2])


@pytest.mark.parametrize("num_samples", [0, 1, 160, 399, 16000])
def test_clips_without_speech_give_an_empty_text(client, num_samples):
    assert client.transcribe(np.zeros(num_samples, np.float32)).text == ""


@pytest.mark.parametrize("num_samples", [1, 160, 399])
def test_clips_too_short_for_a_word_give_an_empty_text(client, num_samples):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, num_samples).astype(np.float32)
    assert client.transcribe(noise).text == ""


def test_clips_of_118784_and_132456_samples_run_together(client, alone):
    samples, _ = alone["sense_and_sensibility_01_austen_64kb-0870.wav"]
    pair = [np.resize(samples, 118784), np.resize(samples, 132456)]
    single = [client.transcribe(each).text for each in pair]
    assert [answer.text for answer in client.transcribe_at_once(pair)] == single
    assert client.transcribe(*pair).texts == single


def test_a_row_of_padding_alone_gives_an_empty_text(client, alone):
    samples, text = alone["001.wav"]
    assert client.transcribe(samples, samples, lengths=[len(samples), 0]).texts == [text, ""]


def test_metrics_tell_outcomes_and_audio(server, client, alone):
    before = settled_metrics(server)
    samples, _ = alone["001.wav"]
    client.transcribe(samples)
    client.try_transcribe(np.full(10, np.nan, np.float32))
    client.try_transcribe(np.zeros(10, np.float32), language="fr")
    name = 'oasr_requests_total{model="asr_offline",outcome="%s"}'
    deadline = time.monotonic() + 10
    while True:
        after = metrics(server)
        grown = {
            o: after[name % o] - before.get(name % o, 0)
            for o in ("ok", "client_error")
            if name % o in after
        }
        if grown == {"ok": 1, "client_error": 2} or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert grown == {"ok": 1, "client_error": 2}
    seconds = 'oasr_audio_seconds_total{model="asr_offline"}'
    assert after[seconds] - before[seconds] == pytest.approx(len(samples) / 16000, abs=0.01)
    assert after['oasr_backlog_requests{model="asr_offline"}'] == 0


def test_metrics_tell_what_batches_cost(server, client, alone):
    name = 'oasr_batch_cost_seconds{frames="1000",model="asr_offline",rows="%d"}'
    found = metrics(server)
    costs_s = [found[name % rows] for rows in (1, 2, 4)]
    assert 0.01 < costs_s[0] < 30
    # However noisy the machine: more rows take longer.
    assert costs_s[0] < costs_s[2]


class Held:
    """A model that can be held before a batch, so that a test can look at what waits meanwhile."""

    def __init__(self, folder: Path, server: TritonServer) -> None:
        self.hold_file = folder / "1" / "hold"
        self.model = folder.name
        self.server = server
        self.client = Client(server, folder.name)

    def hold(self):
        """Hold batches from now on, none of which is left of what came before."""
        self.wait_for_backlog(0)
        self.hold_file.touch()

    def wait_for_backlog(self, num_requests):
        """Return once so many are in the model; its metric is up to half a second late."""
        name = f'oasr_backlog_requests{{model="{self.model}"}}'
        wait_until(lambda: metrics(self.server).get(name, 0) == num_requests)

    def release(self):
        self.hold_file.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def held(tmp_path_factory, log):
    repository = tmp_path_factory.mktemp("held")
    # One batch at a time: what comes later waits.
    options = {"max_waiting": "20", "max_queue_size": "8", "parallel_batches": "1"}
    folder = copy_model(repository, model_py=FAULTY_MODEL, **options)
    copy_model(repository, "second_name")
    copy_model(repository, "refusing", model_py=FAULTY_MODEL, max_waiting="20")
    with serve(repository, log) as running:
        yield Held(folder, running)


@pytest.fixture
def holding(held):
    held.hold()
    yield held
    held.release()


@pytest.fixture
def refusing(held):
    refusing = Held(held.hold_file.parents[2] / "refusing", held.server)
    refusing.hold()
    yield refusing
    refusing.release()


def test_a_model_copied_under_another_name_serves_beside_the_first(held, alone):
    samples, text = alone["001.wav"]
    assert Client(held.server, "second_name").transcribe(samples).text == text
    wait_until(lambda: 'oasr_batch_size_count{model="second_name"}' in metrics(held.server))


def test_a_request_that_makes_the_runtime_raise_fails_alone(holding, alone):
    names = ["001.wav", "002.wav", "003.wav", "004.wav"]
    speech = alone["005.wav"][0]
    utterances = [alone[name][0] for name in names] + [speech[: 123 * 160]]
    results = {}

    def send():
        results["answers"] = holding.client.transcribe_at_once(utterances)

    sender = threading.Thread(target=send)
    sender.start()
    holding.wait_for_backlog(5)
    holding.release()
    sender.join(120)
    *good, bad = results["answers"]
    assert [answer.text for answer in good] == [alone[name][1] for name in names]
    assert isinstance(bad, InferenceServerException)
    assert "transcribing failed: RuntimeError('123 frames are too many')" in bad.message()
    assert bad.status() == "StatusCode.INTERNAL"


class Flood:
    """Takes the answers to many requests at once."""

    def __init__(self):
        self.answered, self.refused = [], []
        self.done = threading.Semaphore(0)

    def take(self, result, error):
        if error is None:
            self.answered.append(result)
        else:
            self.refused.append(error)
        self.done.release()


def test_beyond_the_backlog_requests_are_refused_at_once_and_the_accepted_ones_come_back_right(
    holding, alone
):
    samples, text = alone["001.wav"]
    # 20 in the backlog, up to 16 in the call that is held, 8 in Triton's queue.
    flood = Flood()
    for _ in range(200):
        holding.client.triton.async_infer(callback=flood.take, **holding.client.request([samples]))
    for _ in range(200 - 20 - 16 - 8):
        assert flood.done.acquire(timeout=30), (
            "the refused were not refused while the model was held"
        )
    assert flood.answered == []
    holding.release()
    for _ in range(20 + 16 + 8):
        assert flood.done.acquire(timeout=120)
    # How many got in before Triton's queue of 8 was full depends on the machine.
    assert len(flood.answered) >= 8
    assert len(flood.answered) + len(flood.refused) == 200
    assert {result.as_numpy("TRANSCRIPTS")[0][0].decode() for result in flood.answered} == {text}
    assert {error.status() for error in flood.refused} == {"StatusCode.UNAVAILABLE"}


def test_without_a_queue_in_triton_the_model_refuses_at_once_and_says_which_limit(refusing, alone):
    samples, text = alone["001.wav"]
    flood = Flood()
    for _ in range(50):
        refusing.client.triton.async_infer(
            callback=flood.take, **refusing.client.request([samples])
        )
    for _ in range(30):
        assert flood.done.acquire(timeout=30), (
            "the refused were not refused while the model was held"
        )
    assert flood.answered == []
    refusing.release()
    for _ in range(20):
        assert flood.done.acquire(timeout=120)
    assert {result.as_numpy("TRANSCRIPTS")[0][0].decode() for result in flood.answered} == {text}
    assert len(flood.answered) == 20
    assert {(error.status(), error.message()) for error in flood.refused} == {
        (
            "StatusCode.UNAVAILABLE",
            "20 utterances are waiting; limit is 20 (max_waiting): try again later, or raise the limit",
        )
    }


def test_an_id_that_is_no_text_is_refused_and_harms_no_neighbour(holding, alone):
    samples, text = alone["001.wav"]
    header = {
        "id": "PLACEHOLDER",
        "inputs": [
            {"name": "WAV", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 4},
            {"name": "WAV_LENS", "datatype": "INT32", "shape": [1, 1], "data": [4]},
        ],
    }
    body = json.dumps(header).encode().replace(b"PLACEHOLDER", b"\xff\xfe")
    url = f"http://{holding.server.http_url}/v2/models/asr_offline/infer"
    good = {}
    sender = threading.Thread(
        target=lambda: good.update(answers=holding.client.transcribe_at_once([samples] * 6))
    )
    sender.start()
    holding.wait_for_backlog(6)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30)
    assert caught.value.code == 400
    assert "no UTF-8" in caught.value.read().decode()
    holding.release()
    sender.join(120)
    assert [answer.text for answer in good["answers"]] == [text] * 6


def test_a_cancelled_request_does_not_run(holding, alone):
    samples, _ = alone["002.wav"]
    cancelled = threading.Event()
    name = 'oasr_requests_total{model="asr_offline",outcome="cancelled"}'
    first = threading.Thread(target=holding.client.transcribe, args=(alone["001.wav"][0],))
    first.start()
    holding.wait_for_backlog(1)
    call = holding.client.triton.async_infer(
        callback=lambda result, error: cancelled.set(), **holding.client.request([samples])
    )
    holding.wait_for_backlog(2)
    call.cancel()
    assert cancelled.wait(30)
    time.sleep(1.0)  # nothing tells when the server has heard of it
    holding.release()
    first.join(60)
    wait_until(lambda: metrics(holding.server).get(name) == 1)


def test_a_request_past_its_deadline_is_unavailable(holding, alone):
    samples, text = alone["001.wav"]
    first = threading.Thread(target=holding.client.transcribe, args=(samples,))
    first.start()
    results = []
    late = threading.Thread(
        target=lambda: results.append(holding.client.try_transcribe(samples, deadline_ms=50))
    )
    holding.wait_for_backlog(1)
    late.start()
    holding.wait_for_backlog(2)
    time.sleep(0.5)
    holding.release()
    late.join(60)
    first.join(60)
    [error] = results
    assert error.status() == "StatusCode.UNAVAILABLE"
    assert error.message().endswith("limit is 50 ms (deadline_ms): raise it or send less load")
    assert holding.client.transcribe(samples, deadline_ms=60000).text == text


def test_stopping_under_load_answers_what_was_accepted_and_leaves_the_learnt_costs_and_no_process(
    tmp_path, log, alone
):
    repository, cost_table = tmp_path / "models", tmp_path / "costs.json"
    folder = copy_model(repository, model_py=FAULTY_MODEL, cost_table_path=str(cost_table))
    samples, text = alone["001.wav"]
    server = serve(repository, log)
    server.start()
    server.wait_ready()
    assert read_cost_table(cost_table).as_dict() == CostTable().as_dict()  # nothing was measured
    holding = Held(folder, server)
    holding.hold()
    stub = stub_pid(server, "asr_offline")
    results = []
    sender = threading.Thread(
        target=lambda: results.extend(holding.client.transcribe_at_once([samples] * 12))
    )
    sender.start()
    holding.wait_for_backlog(12)
    server.terminate()
    time.sleep(0.5)
    holding.release()
    code = server.wait(120)
    sender.join(30)
    assert [result.text for result in results] == [text] * 12
    assert code == 0
    assert not Path(f"/proc/{stub}").exists()
    assert read_cost_table(cost_table).batch_time_s(4, 3000) > CostTable().batch_time_s(4, 3000)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"max_wating": "3"}, "parameters hold max_wating = '3', which is no option"),
        ({"model_dir": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_a_wrong_configuration_refuses_to_load_and_says_why(tmp_path, edits, reason):
    copy_model(tmp_path, **edits)
    path = tmp_path / "server.log"
    with path.open("wb") as file, pytest.raises(Exception, match="ended before it was ready"):
        serve(tmp_path, file).__enter__()
    assert reason in path.read_text()


def settled_metrics(server):
    """Return the metrics once they stand still: the engine publishes a step's counts after its replies."""
    before = metrics(server)
    while True:
        time.sleep(1.0)
        after = metrics(server)
        if after == before:
            return after
        before = after


def wait_until(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the server never got there"
        time.sleep(0.02)

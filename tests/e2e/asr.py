"""What the server tests share: model repositories of their own, and requests as a client sends them."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import soundfile
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from oasr_backend.triton.server import ServerOptions, TritonServer

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SHIPPED = ROOT / "model_repository"

FAULTY_MODEL = '''
"""asr_offline with Whisper that refuses one length, and that can be made slow by a file."""
import pathlib, time
import triton_python_backend_utils as pb_utils
import oasr_backend.models as models
from oasr_backend.models.whisper import WhisperConfig, WhisperRecognizer
from oasr_backend.triton.offline import OfflineModel


class Faulty(WhisperRecognizer):
    def transcribe(self, batch):
        while pathlib.Path(__file__).with_name("hold").exists():
            time.sleep(0.01)
        if any(piece.num_frames == 123 for piece in batch):
            raise RuntimeError("123 frames are too many")
        return super().transcribe(batch)


models.FAMILIES["whisper"] = models.Family(WhisperConfig, Faulty)


class TritonPythonModel:
    def initialize(self, args):
        self._model = OfflineModel(pb_utils, args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
'''


def copy_model(
    repository: Path,
    name: str = "asr_offline",
    model_py: str | None = None,
    source: str = "asr_offline",
    **edits: str,
) -> Path:
    """Copy the shipped model into `repository` under a name; edit parameters, or fields as `max_queue_size`.

    It starts at once, without measuring what batches cost, unless a test says otherwise.
    """
    folder = repository / name
    shutil.copytree(SHIPPED / source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    config = folder / "config.pbtxt"
    text = config.read_text()
    for key, value in {"measure_costs_s": "0", **edits}.items():
        text = edit_config(text, key, value)
    config.write_text(text)
    if model_py is not None:
        (folder / "1" / "model.py").write_text(model_py)
    return folder


def edit_config(text: str, key: str, value: str | None) -> str:
    """Set a parameter or a numeric field of a config.pbtxt; a parameter may be new, and None removes one."""
    if key in ("max_batch_size", "max_queue_size", "max_sequence_idle_microseconds"):
        text, count = re.subn(rf"{key}: \d+", f"{key}: {value}", text)
        assert count == 1, f"config.pbtxt has {count} fields {key}"
        return text
    parameter = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    kept = re.sub(rf'parameters {{ key: "{key}" .*\n', "", text)
    return kept if value is None else f"{kept}{parameter}\n"


def clips(folder: str = "librivox") -> dict[str, np.ndarray]:
    """Return the clips of a folder of tests/data as float32 at 16 kHz, by file name."""
    return {path.name: read(path) for path in sorted((DATA / folder).glob("*.wav"))}


def read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000
    return samples


def references(folder: str = "librivox") -> dict[str, str]:
    lines = (DATA / folder / "transcripts.tsv").read_text().splitlines()
    return dict(line.split("\t") for line in lines)


@dataclass(frozen=True)
class Answer:
    texts: list[str]
    details: list[dict[str, Any]]

    @property
    def text(self) -> str:
        [text] = self.texts
        return text


def serve(repository: Path, log: IO[bytes], **options: Any) -> TritonServer:
    """Return a server of a repository at free ports, to be started by `with`; it writes to `log`."""
    return TritonServer(
        ServerOptions(model_repositories=(str(repository),), **options).with_free_ports(), log=log
    )


def stub_pid(server: TritonServer, model: str) -> int:
    """Return the process of a model: the stub that was started with its model.py."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            session = os.getsid(int(entry.name))
        except (OSError, ValueError):
            continue
        if session == server.process.pid and any(
            f"/{model}/1/model.py".encode() in word for word in words
        ):
            return int(entry.name)
    raise AssertionError(f"no stub runs {model}")


class Client:
    """Sends utterances to one model of a server, over gRPC or HTTP."""

    def __init__(self, server: Any, model: str = "asr_offline", protocol: str = "grpc") -> None:
        self._module = grpcclient if protocol == "grpc" else httpclient
        self.model = model
        self.triton = (
            grpcclient.InferenceServerClient(server.grpc_url)
            if protocol == "grpc"
            else httpclient.InferenceServerClient(
                server.http_url, concurrency=16, network_timeout=300
            )
        )

    def request(
        self,
        rows: Sequence[np.ndarray],
        lengths: Sequence[int] | None = None,
        details: bool = False,
        **parameters: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `infer`: rows padded with 0 to the longest."""
        longest = max(len(row) for row in rows)
        wav = np.zeros((len(rows), longest), np.float32)
        for index, row in enumerate(rows):
            wav[index, : len(row)] = row
        counts = np.array(lengths or [len(row) for row in rows], np.int32).reshape(-1, 1)
        inputs = [self._input("WAV", wav, "FP32"), self._input("WAV_LENS", counts, "INT32")]
        names = ["TRANSCRIPTS", *(["DETAILS"] if details else [])]
        outputs = [self._module.InferRequestedOutput(name) for name in names]
        return {
            "model_name": self.model,
            "inputs": inputs,
            "outputs": outputs,
            "parameters": parameters or None,
        }

    def transcribe(self, *rows: np.ndarray, **options: Any) -> Answer:
        result = self.triton.infer(**self.request(rows, **options))
        details = result.as_numpy("DETAILS")
        return Answer(
            [row[0].decode() for row in result.as_numpy("TRANSCRIPTS")],
            [] if details is None else [json.loads(row[0]) for row in details],
        )

    def try_transcribe(
        self, *rows: np.ndarray, **options: Any
    ) -> Answer | InferenceServerException:
        try:
            return self.transcribe(*rows, **options)
        except InferenceServerException as error:
            return error

    def transcribe_at_once(
        self, utterances: Sequence[np.ndarray], **options: Any
    ) -> list[Answer | InferenceServerException]:
        """Send every utterance as a request of its own, all at the same time."""
        with ThreadPoolExecutor(len(utterances)) as pool:
            return list(
                pool.map(lambda samples: self.try_transcribe(samples, **options), utterances)
            )

    def _input(self, name: str, array: np.ndarray, datatype: str) -> Any:
        tensor = self._module.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        return tensor


def metrics(server: Any) -> dict[str, float]:
    """Return the server's own metrics (oasr_*) of all models, by their line's name and labels."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("oasr_"))
    return {name: float(value) for name, value in pairs}


def batch_sizes(server: Any) -> dict[int, int]:
    """Return how many batches of all models had which size (sizes 1 to 8 exactly, larger ones by bucket)."""
    found: dict[int, int] = {}
    for name, value in metrics(server).items():
        match = re.match(r'oasr_batch_size_bucket\{.*le="([0-9]+)"', name)
        if match:
            found[int(match[1])] = found.get(int(match[1]), 0) + int(value)
    sizes, below = {}, 0
    for size in sorted(found):
        sizes[size] = found[size] - below
        below = found[size]
    return {size: count for size, count in sizes.items() if count}

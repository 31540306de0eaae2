"""The systems that can be measured, by name, each on the same weights and on all cores.

ours, ours:POLICY     model_repository/asr_offline through tritonserver; with streams asr_streaming
ours-shm              the same, the inputs in system shared memory instead of gRPC's messages
in-process            the same engine without a server; with streams that of streams
stock:LADDER:DELAY:INSTANCES
                      what Triton repositories do today: 4-8-16:5000:1 is the ladder 4, 8, 16 with 5 ms of delay
silent                only with streams: a Triton model that answers every piece with nothing
sherpa-onnx:THREADS   the same Conformer in sherpa-onnx, as many workers as cores hold; with streams
                      sherpa-onnx:CHUNK:LEFT in chunks of so many encoder frames that see so many chunks before
sherpa-server:CHUNK:LEFT
                      only with streams: the same through sherpa-onnx's own websocket server
faster-whisper:BATCH:THREADS
                      one at a time; with a BATCH above 0 its batched pipeline, which batches the pieces of one clip
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from oasr_backend.benchmark import systems
from oasr_backend.benchmark.repositories import copy_model
from oasr_backend.benchmark.sherpa_streams import SherpaServer, SherpaStreams
from oasr_backend.benchmark.stream_systems import InProcessStreams, TritonStreams
from oasr_backend.benchmark.streams import StreamSystem
from oasr_backend.benchmark.systems import System
from oasr_backend.config import EngineConfig, option_names, read_options
from oasr_backend.cores import num_cores
from oasr_backend.errors import ConfigError
from oasr_backend.models import FAMILIES
from oasr_backend.models.whisper import WhisperConfig
from oasr_backend.models.whisper_folder import find_model
from oasr_backend.simulation.sweep import POLICIES

ROOT = Path(__file__).parents[2]
MODELS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "conformer": ("ctc", ("cards", "commands"), (1, 2, 4)),
    "whisper": ("whisper", ("librivox",), (1, 2, 4)),
}
"""The family, the clips that it understands, and our ladder."""

OURS = ROOT / "model_repository" / "asr_offline"
STREAMS = ROOT / "model_repository" / "asr_streaming"
STREAM_LADDER = (1, 2, 4, 8, 12, 16, 24, 32)
"""As asr_streaming ships it."""
MARGIN = {"cost_margin": "0.1"}
"""As asr_offline ships it."""
STOCK = ROOT / "scripts" / "load_test" / "stock"
SILENT = ROOT / "scripts" / "load_test" / "silent"


@dataclass(frozen=True, slots=True)
class LineUp:
    """What all systems of a run share.

    family: ctc or whisper. options: its options, as config.pbtxt has them.
    ladder: of our own system. engine: options of our engine.
    sherpa: the folder with sherpa-onnx's layout of the weights.
    folder: where repositories and logs go.
    """

    family: str
    options: Mapping[str, str]
    ladder: tuple[int, ...]
    engine: Mapping[str, str]
    sherpa: Path | None
    folder: Path

    def __post_init__(self) -> None:
        """Raise ConfigError for options that no system has."""
        family_options = FAMILIES[self.family].options
        for values, owner, of in (
            (self.options, family_options, "--options"),
            (self.engine, EngineConfig, "--engine"),
        ):
            for name in values:
                if name not in option_names(owner):
                    raise ConfigError(
                        f"{of} {name} is unknown; known are {', '.join(option_names(owner))}: correct it"
                    )

    def system(self, name: str) -> System:
        """Return a system by its name; ConfigError for one that is none."""
        kind, *arguments = name.split(":")
        makers: dict[str, Callable[..., System]] = {
            "ours": self._ours,
            "ours-shm": self._ours_in_shared_memory,
            "in-process": self._in_process,
            "stock": self._stock,
            "sherpa-onnx": self._sherpa_onnx,
            "faster-whisper": self._faster_whisper,
        }
        if kind not in makers:
            raise ConfigError(
                f"system is {name!r}; it must be one of {', '.join(makers)}: correct it"
            )
        with _reading(name):
            return makers[kind](name, *arguments)

    def streams(self, name: str, url: str | None) -> StreamSystem:
        """Return a system for live streams by its name; at `url` where one runs. ConfigError for one that is none."""
        with _reading(name):
            return self._streams(name, url)

    def _streams(self, name: str, url: str | None) -> StreamSystem:
        kind, *arguments = name.split(":")
        if kind == "ours":
            server = url or self._server(name, STREAMS, {**self.options, **self.engine})
            return TritonStreams(name, server, "asr_streaming" if url else "asr")
        if kind == "silent":
            return TritonStreams(name, self._server(name, SILENT, {}), "asr")
        if kind == "in-process":
            return self._streams_in_process(name)
        chunking = [int(number) for number in arguments or ("16", "4")]
        if kind == "sherpa-onnx":
            return SherpaStreams(name, self._sherpa_folder(name), num_cores(), *chunking)
        if kind == "sherpa-server":
            log = self.folder / name.replace(":", "_") / "server.log"
            return SherpaServer(name, self._sherpa_folder(name), log, num_cores(), *chunking)
        raise ConfigError(
            f"system is {name!r}; for streams it must be one of ours, in-process, silent, sherpa-onnx, sherpa-server: "
            "correct it"
        )

    def _streams_in_process(self, name: str) -> StreamSystem:
        family = FAMILIES[self.family]
        config = read_options(
            EngineConfig,
            {"parallel_batches": "0", "max_streams": "512", "max_waiting": "512", **self.engine},
            max_batch_size=max(STREAM_LADDER),
            preferred_batch_size=STREAM_LADDER,
        )
        options: Any = read_options(family.options, {"intra_threads": "1", **self.options})
        return InProcessStreams(name, family, options, config)

    def _ours(
        self, name: str, policy: str = "cost", client: type[systems.Triton] = systems.Triton
    ) -> System:
        if policy not in POLICIES:
            raise ValueError(f"policies are {', '.join(POLICIES)}")
        parameters = self._parameters() | {"schedule_policy": policy}
        return client(name, self._server(name, OURS, parameters, self.ladder), "asr")

    def _ours_in_shared_memory(self, name: str, policy: str = "cost") -> System:
        return self._ours(name, policy, systems.SharedMemoryTriton)

    def _stock(
        self, name: str, ladder: str = "4-8-16", delay_us: str = "0", instances: str = "1"
    ) -> System:
        rungs = tuple(int(size) for size in ladder.split("-"))
        num_instances = int(instances)
        if min(*rungs, num_instances) < 1 or int(delay_us) < 0:
            raise ValueError("ladder and instances begin at 1, the delay at 0")
        threads = {"intra_threads": str(max(1, num_cores() // num_instances))}
        parameters = {"model_family": self.family, **self.options, **threads}
        server = self._server(name, STOCK, parameters, rungs, int(delay_us), num_instances)
        return systems.Triton(name, server, "asr")

    def _server(
        self, name: str, source: Path, parameters: Mapping[str, str | None], *batching: Any
    ) -> systems.Server:
        folder = self.folder / name.replace(":", "_")
        repository = folder / "repository"
        prepare = partial(copy_model, source, repository, "asr", parameters, *batching)
        return systems.Server(repository, folder / "server.log", prepare)

    def _in_process(self, name: str, policy: str = "cost") -> System:
        family = FAMILIES[self.family]
        config = read_options(
            EngineConfig,
            {"schedule_policy": policy, "parallel_batches": "0", **MARGIN, **self.engine},
            max_batch_size=max(self.ladder),
            preferred_batch_size=self.ladder,
        )
        return systems.InProcess(name, family, read_options(family.options, self.options), config)

    def _sherpa_onnx(self, name: str, threads: str = "1") -> System:
        load = partial(systems.sherpa_onnx, self._sherpa_folder(name), int(threads))
        return systems.Workers(name, max(1, num_cores() // int(threads)), load)

    def _sherpa_folder(self, name: str) -> Path:
        if self.sherpa is None:
            raise ConfigError(
                f"{name} needs its layout of the weights: give --sherpa the folder that export_wenet.py --sherpa-onnx "
                "has written"
            )
        return self.sherpa

    def _faster_whisper(self, name: str, batch_size: str = "0", threads: str = "") -> System:
        options = read_options(WhisperConfig, self.options)
        load = partial(
            systems.faster_whisper,
            str(find_model(options.model_dir)),
            int(threads or num_cores()),
            options.beam_size,
            int(batch_size),
        )
        return systems.Workers(name, 1, load)

    def _parameters(self) -> dict[str, str | None]:
        """Return what asr_offline is given; what it ships for its own model goes, as no other system has it."""
        shipped = {name for family in FAMILIES.values() for name in option_names(family.options)}
        return {
            **dict.fromkeys(shipped),
            "model_family": self.family,
            **self.options,
            **self.engine,
        }


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Say of a system whose arguments are none that its name cannot be read."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"system is {name!r}, which cannot be read ({error}): --help says how systems are named"
        ) from error

"""CTC models in bundles, as WeNet's Conformers are exported: their options, and what they spell.

It runs nothing: see ctc_offline.py and ctc_streams.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from math import exp
from pathlib import Path

from oasr_backend.bundle import Bundle, read_bundle
from oasr_backend.config import check_at_least, check_choice
from oasr_backend.decode.ctc import CtcDecoder, GreedyDecoder, Hypothesis
from oasr_backend.decode.prefix_beam import PrefixBeamDecoder
from oasr_backend.decode.vocabulary import Vocabulary
from oasr_backend.errors import ClientError, ConfigError, shown
from oasr_backend.models.base import TranscribeOptions, Transcript
from oasr_backend.request import FRAMES_PER_SECOND
from oasr_backend.runtime.base import EncoderRuntime
from oasr_backend.runtime.choose import RUNTIMES, Wish, load_runtime

AT_CAPACITY = ("recycle", "finish")
MAX_BEAM_SIZE = 64


@dataclass(frozen=True, slots=True)
class CtcConfig:
    """Which bundle to run, and how. Raises ConfigError where a value is not allowed.

    model_dir: a bundle's folder, as scripts/export_wenet.py writes it; "" is the demo model.
    runtime: what runs the graphs: one of runtime/choose.py's, "auto" for the best that is there.
    plan_dir: the folder of TensorRT plans; "" for the bundle's own.
    intra_threads: threads of one forward on the CPU; 0 is one for each core.
    preferred_batch_size: the ladder, Triton's own: on a GPU a graph is captured for each of its sizes.
    feature_graph_batch_buckets: batch sizes of the features' graphs on a GPU; None for the ladder.
    beam_size: 1 is greedy; more is prefix beam search.
    decoding_chunk_size: encoder frames (40 ms) that are decoded at a time. 0 is full context for whole utterances, and
        for streams what the bundle was exported with.
    num_left_chunks: chunks before its own that a frame sees; -1 for all, None for what the bundle was exported with.
    max_piece_s: longer utterances are cut at silences; LibriSpeech's longest, of 35 s, are not.
    max_cache_s: of a stream's past that is kept where num_left_chunks is -1.
    num_cache_blocks: blocks of a chunk each in the key/value cache; 0 for as many as all running streams can fill.
    at_capacity: what happens beyond max_cache_s: "recycle" forgets the oldest, "finish" ends the stream.
    """

    model_dir: str = ""
    runtime: str = "auto"
    plan_dir: str = ""
    intra_threads: int = 1
    preferred_batch_size: tuple[int, ...] | None = None
    feature_graph_batch_buckets: tuple[int, ...] | None = None
    beam_size: int = 1
    decoding_chunk_size: int = 0
    num_left_chunks: int | None = None
    max_piece_s: float = 40.0
    max_cache_s: float = 60.0
    num_cache_blocks: int = 0
    at_capacity: str = "recycle"

    def __post_init__(self) -> None:
        check_at_least(self, 0, "intra_threads", "decoding_chunk_size", "num_cache_blocks")
        check_at_least(self, 1, "beam_size", "max_piece_s")
        check_at_least(self, -1, "num_left_chunks")
        check_choice("at_capacity", self.at_capacity, AT_CAPACITY)
        check_choice("runtime", self.runtime, RUNTIMES)
        sizes = self.feature_graph_batch_buckets or (1,)
        if sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            raise ConfigError(
                f"feature_graph_batch_buckets is {list(sizes)}; it must be numbers from 1 up, each larger than the one "
                "before: correct it"
            )
        if self.beam_size > MAX_BEAM_SIZE:
            raise ConfigError(
                f"beam_size is {self.beam_size}; it must be at most {MAX_BEAM_SIZE}: lower it"
            )


class CtcModel:
    """A loaded bundle: its graphs, and its tokens as text."""

    def __init__(self, config: CtcConfig, runtime: EncoderRuntime | None = None) -> None:
        """Load the bundle that `config` names; raises ConfigError where it cannot."""
        folder = Path(config.model_dir) if config.model_dir else demo_model()
        self.config = config
        self.bundle: Bundle = read_bundle(folder)
        self.runtime = runtime or load_runtime(_wish(config, folder, self.bundle), self.bundle)
        self._vocabulary = Vocabulary(self.bundle.tokens, self.bundle.token_separator)
        self.frame_s = self.bundle.subsampling / FRAMES_PER_SECOND

    def check_options(self, options: TranscribeOptions) -> None:
        """Raise ClientError for what a CTC model cannot do: it knows one language, and does not translate."""
        if options.language is not None:
            raise ClientError(
                f"language is {shown(options.language)}; this model has one language: leave the parameter out"
            )
        if options.task != "transcribe":
            raise ClientError(
                f"task is {shown(options.task)}; this model can only transcribe: leave the parameter out"
            )

    def new_decoder(self) -> CtcDecoder:
        """Return a decoder for one utterance or stream."""
        if self.config.beam_size == 1:
            return GreedyDecoder(self.bundle.blank_id)
        return PrefixBeamDecoder(self.config.beam_size, self.bundle.blank_id)

    def transcript(self, hypothesis: Hypothesis, words: bool) -> Transcript:
        """Return the text of decoded tokens; its confidence is their mean probability."""
        tokens = hypothesis.tokens
        return Transcript(
            self._vocabulary.text(hypothesis.token_ids),
            hypothesis.token_ids,
            self._vocabulary.words(tokens, self.frame_s) if words else (),
            sum(exp(token.log_prob) for token in tokens) / len(tokens) if tokens else 1.0,
        )

    def stable_text(self, hypothesis: Hypothesis) -> str:
        """Return what the text begins with, whatever follows."""
        return self._vocabulary.text(hypothesis.token_ids[: hypothesis.num_stable])


def _wish(config: CtcConfig, folder: Path, bundle: Bundle) -> Wish:
    streaming = bundle.streaming
    exported = (streaming.chunk_size, streaming.num_left_chunks) if streaming else (16, 4)
    left = exported[1] if config.num_left_chunks is None else config.num_left_chunks
    chunk_size = config.decoding_chunk_size or exported[0]
    if left < 0:
        left = int(config.max_cache_s * FRAMES_PER_SECOND / (chunk_size * bundle.subsampling))
    return Wish(
        config.runtime,
        folder,
        Path(config.plan_dir) if config.plan_dir else folder,
        config.intra_threads,
        config.preferred_batch_size or (),
        config.feature_graph_batch_buckets or (),
        chunk_size,
        left,
    )


def demo_model() -> Path:
    """Return the bundle that the package carries."""
    return Path(str(files("oasr_backend"))) / "demo_model"

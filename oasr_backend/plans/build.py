"""Building a plan of an ONNX graph with TensorRT, or with TensorRT for RTX, which needs no GPU for it.

Both libraries have nearly the same Python interface; the module is handed in as `library`. What is built for whom is
said by `profiles.py`, what the plan then is by `fingerprint.py`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from oasr_backend.bundle import FEATURES_FILE, read_bundle
from oasr_backend.contract import CONTRACTS, model_sizes
from oasr_backend.errors import ConfigError
from oasr_backend.files import write_whole
from oasr_backend.plans.card import compute_capability
from oasr_backend.plans.check import check_onnx
from oasr_backend.plans.fingerprint import (
    Fingerprint,
    as_text,
    check_fingerprint,
    fingerprint_path,
    plan_path,
    sha256,
)
from oasr_backend.plans.precision import in_precision
from oasr_backend.plans.profiles import Profile, Sizing, profiles

if TYPE_CHECKING:  # both flavours are checked against the types of the first
    import tensorrt as trt

log = logging.getLogger(__name__)

OnStep = Callable[[str, int, int], bool]
"""Called with a phase of the build, its steps that are done and all of its steps; False ends the build."""

MAX_WORKSPACE_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How plans are built.

    precision: "fp32", "fp16" or "bf16"; features are always made in fp32, since powers exceed fp16.
    compute_capabilities: the cards to build for, as "8.9". Empty is the card at hand, and all that "tensorrt" can.
    timing_cache: a file that keeps what kernels were timed at, for "tensorrt".
    workspace_mb: device memory that a layer may use.
    output: the folder of the plans; None for the bundle's.
    if_needed: keep a plan that is what would be built.
    """

    flavour: str = "tensorrt"
    precision: str = "fp16"
    sizing: Sizing = field(default_factory=Sizing)
    compute_capabilities: tuple[str, ...] = ()
    timing_cache: Path | None = None
    workspace_mb: int = 4096
    output: Path | None = None
    if_needed: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for what no card or builder takes."""
        cards = self.compute_capabilities
        for card in cards:
            if not re.fullmatch(r"\d{1,2}\.\d", card) or cards.count(card) > 1:
                raise ConfigError(
                    f"compute capability is {card!r}; it must be as 8.9, and none twice: correct it"
                )
        if not 1 <= self.workspace_mb <= MAX_WORKSPACE_MB:
            raise ConfigError(
                f"workspace_mb is {self.workspace_mb}; it must be from 1 to {MAX_WORKSPACE_MB}: correct it"
            )

    def plan_options(self, name: str) -> dict[str, Any]:
        """Return what of it a plan depends on, as plain data."""
        precision = "fp32" if name == FEATURES_FILE else self.precision
        return {"precision": precision, **asdict(self.sizing)}


def build_plans(
    library: Any, folder: Path, options: BuildOptions, on_step: OnStep | None = None
) -> list[Path]:
    """Build a plan of each graph of the bundle in `folder`, beside it; return their paths.

    Every graph is checked before the first build; a plan and its fingerprint appear whole or not at all. Raises
    ConfigError for a graph or an option that TensorRT refuses, and for files that cannot be read or written;
    KeyboardInterrupt where `on_step` has ended it.
    """
    bundle = read_bundle(folder)
    options = replace(options, output=options.output or folder)
    _check_writable(options)
    for name in bundle.graph_files:
        check_onnx(folder / name, CONTRACTS[name], model_sizes(bundle))
    wanted = {name: profiles(name, bundle, options.sizing) for name in bundle.graph_files}
    return [
        _build_one(library, folder / name, wanted[name], options, on_step)
        for name in bundle.graph_files
    ]


def _build_one(
    library: Any,
    onnx_path: Path,
    wanted: Sequence[Profile],
    options: BuildOptions,
    on_step: OnStep | None,
) -> Path:
    fingerprint = Fingerprint(
        options.flavour,
        library.__version__,
        options.compute_capabilities or (_card_at_hand(),),
        sha256(onnx_path),
        options.plan_options(onnx_path.name),
    )
    path = plan_path((options.output or onnx_path.parent) / onnx_path.name, options.flavour)
    if options.if_needed and _fits(path, fingerprint):
        return path
    try:
        graph = in_precision(onnx.load(str(onnx_path)), fingerprint.options["precision"])
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{onnx_path} cannot be made {fingerprint.options['precision']} ({error}): export the bundle again"
        ) from error
    plan = compile_plan(library, graph.SerializeToString(), wanted, options, on_step)
    try:
        fingerprint_path(path).unlink(missing_ok=True)  # never an old one beside a new plan
        write_whole(path, plan)
        write_whole(fingerprint_path(path), as_text(fingerprint, sha256(path)).encode())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): make room, or name another folder with --output"
        ) from error
    return path


def _check_writable(options: BuildOptions) -> None:
    """Make the folders, and see before a long build that what it gives can be written."""
    for folder in (options.output, options.timing_cache and options.timing_cache.parent):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(folder / "plans.check", b"")
                (folder / "plans.check").unlink()
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written to ({error.strerror}): let its user write there, or name another folder"
            ) from error


def compile_plan(
    library: Any,
    graph: bytes,
    wanted: Sequence[Profile],
    options: BuildOptions,
    on_step: OnStep | None = None,
) -> bytes:
    """Return a plan of a serialized ONNX graph, which takes the shapes of `wanted`; ConfigError where it cannot be."""
    messages = _messages(library)
    builder: trt.Builder = library.Builder(messages)
    typed = 1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network: trt.INetworkDefinition = builder.create_network(typed)
    parser: trt.OnnxParser = library.OnnxParser(network, messages)
    if not parser.parse(graph):
        raise ConfigError(
            f"TensorRT cannot read the graph ({'; '.join(_parse_errors(parser))}): export the bundle again"
        )
    config: trt.IBuilderConfig = builder.create_builder_config()
    config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, options.workspace_mb << 20)
    _add_profiles(library, builder, config, wanted)
    if options.compute_capabilities:
        _set_targets(library, config, options.compute_capabilities)
    if options.timing_cache is not None:
        _use_timings(config, options.timing_cache)
    monitor = _monitor(library, on_step or (lambda *_: True))
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if monitor.is_stopped:
        raise KeyboardInterrupt
    if plan is None:
        raise ConfigError(f"TensorRT cannot build the plan ({'; '.join(messages.errors)})")
    if options.timing_cache is not None:
        write_whole(options.timing_cache, bytes(config.get_timing_cache().serialize()))
    return bytes(plan)


def _card_at_hand() -> str:
    try:
        return compute_capability()
    except ConfigError as error:
        raise ConfigError(
            f"{error}, or name the cards to build for with --compute-capability and --flavour tensorrt_rtx"
        ) from error


def _fits(plan: Path, wanted: Fingerprint) -> bool:
    try:
        check_fingerprint(plan, wanted, rebuild="")
    except ConfigError as error:
        log.info("%s", str(error).rsplit(": ", 2)[0])
        return False
    return True


def _add_profiles(
    library: Any, builder: trt.Builder, config: trt.IBuilderConfig, wanted: Iterable[Profile]
) -> None:
    for profile in wanted:
        ranges = builder.create_optimization_profile()
        for name, shapes in profile.items():
            ends = (shapes.least, shapes.best, shapes.most)
            ranges.set_shape(name, *(library.Dims(shape) for shape in ends))
        config.add_optimization_profile(ranges)


def _use_timings(config: trt.IBuilderConfig, path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    # `bool` in the stubs is TensorRT's own.
    is_taken: Any = config.set_timing_cache(
        config.create_timing_cache(content), ignore_mismatch=False
    )
    if not is_taken:
        log.warning("%s holds no timings of this TensorRT and card: it is begun anew", path)
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)


def _set_targets(library: Any, config: Any, compute_capabilities: Sequence[str]) -> None:
    """Build for named cards, which only TensorRT for RTX can without having them."""
    if not hasattr(config, "set_compute_capability"):
        raise ConfigError(
            f"compute capabilities {', '.join(compute_capabilities)} are asked for; this TensorRT builds for the card "
            "at hand: leave them out, or use --flavour tensorrt_rtx"
        )
    known = [name for name in dir(library.ComputeCapability) if name.startswith("SM")]
    shown = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in known)
    config.num_compute_capabilities = len(compute_capabilities)
    for index, each in enumerate(compute_capabilities):
        name = f"SM{each.replace('.', '')}"
        if name not in known:
            raise ConfigError(
                f"compute capability {each} is none that this TensorRT builds for; it knows {shown}: "
                "correct it"
            )
        config.set_compute_capability(getattr(library.ComputeCapability, name), index)


def _parse_errors(parser: trt.OnnxParser) -> list[str]:
    return [parser.get_error(index).desc() for index in range(parser.num_errors)]


def _messages(library: Any) -> Any:
    """Return TensorRT's logger: into ours, and the errors kept."""
    severity = library.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.ERROR,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
        severity.INFO: logging.DEBUG,
        severity.VERBOSE: logging.NOTSET,
    }

    class Messages(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            level = levels[severity]
            if level == logging.ERROR:
                self.errors.append(text)
            if level:
                log.log(level, "%s", text)

    return Messages()


def _monitor(library: Any, on_step: OnStep) -> Any:
    class Monitor(library.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._sizes: dict[str, int] = {}
            self.is_stopped = False

        def phase_start(self, phase: str, _parent: str | None, num_steps: int) -> None:
            self._sizes[phase] = num_steps
            on_step(phase, 0, num_steps)

        def step_complete(self, phase: str, step: int) -> bool:
            self.is_stopped |= not on_step(phase, step + 1, self._sizes[phase])
            return not self.is_stopped

        def phase_finish(self, phase: str) -> None:
            on_step(phase, self._sizes[phase], self._sizes[phase])

    return Monitor()

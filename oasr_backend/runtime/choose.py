"""Which runtime a bundle gets: the one that is named, or the best that this machine has for it.

What needs torch or TensorRT is only imported here, and only where it is taken.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oasr_backend.bundle import ENCODER_FILE, Bundle
from oasr_backend.errors import ConfigError
from oasr_backend.plans.card import compute_capability
from oasr_backend.plans.fingerprint import plan_path
from oasr_backend.plans.fit import check_plans
from oasr_backend.plans.library import load_flavour
from oasr_backend.plans.profiles import DEFAULT_RUNGS, Sizing
from oasr_backend.runtime.base import EncoderRuntime
from oasr_backend.runtime.onnx import OnnxRuntime

if TYPE_CHECKING:
    from oasr_backend.runtime.cuda import CudaDevice

log = logging.getLogger(__name__)

RUNTIMES = ("auto", "tensorrt", "tensorrt_rtx", "torch", "onnx_cuda", "onnx")

CHECKPOINT_FOLDER = "torch"
"""Where a bundle keeps the checkpoint it was made of, where PyTorch shall run it (export_wenet.py --torch)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a bundle's runtime is asked to be.

    name: one of RUNTIMES.
    folder, plans: where the bundle and its plans lie.
    intra_threads: of a forward on the CPU; 0 for one a core.
    rungs: the ladder, to which graphs are captured; () for the usual one. Plans bring their own.
    feature_rungs: batch sizes of the features' graphs; () for the ladder.
    chunk_size, max_entries: of streams.
    captures: whether work on a GPU is captured as graphs; not, to measure what that gains.
    """

    name: str
    folder: Path
    plans: Path
    intra_threads: int
    rungs: tuple[int, ...]
    feature_rungs: tuple[int, ...]
    chunk_size: int
    max_entries: int
    captures: bool = True


def load_runtime(wish: Wish, bundle: Bundle) -> EncoderRuntime:
    """Return the runtime that is wished for; ConfigError where it cannot run here."""
    name, reason = (wish.name, "as runtime says") if wish.name != "auto" else _best(wish, bundle)
    log.info("runtime of %s: %s, %s", wish.folder, name, reason)
    return _LOADERS[name](wish, bundle)


def _best(wish: Wish, bundle: Bundle) -> tuple[str, str]:
    """Return the best runtime that is there, and why it is that one."""
    missing: list[str] = []
    for name, lack in _lacks(wish, bundle):
        if lack is None:
            return name, "since " + "; ".join(missing) if missing else "the best there is"
        missing.append(lack)
    return "onnx", "since " + "; ".join(missing)


def _lacks(wish: Wish, bundle: Bundle) -> Iterator[tuple[str, str | None]]:
    """Yield the runtimes on a GPU, the best first, and what each lacks here."""
    try:
        compute_capability()
    except ConfigError:
        yield "tensorrt", "there is no NVIDIA driver here"
        return
    for flavour in ("tensorrt", "tensorrt_rtx"):
        yield flavour, _lack_of_plans(flavour, wish, bundle)
    has_torch = importlib.util.find_spec("torch") is not None
    has_checkpoint = (wish.folder / CHECKPOINT_FOLDER).is_dir()
    lack = None if has_torch and has_checkpoint else "the bundle has no checkpoint for torch"
    yield "torch", lack if has_torch else "torch is not installed"
    yield "onnx_cuda", None if _has_cuda_provider() else "ONNX Runtime has no CUDA provider"


def _lack_of_plans(flavour: str, wish: Wish, bundle: Bundle) -> str | None:
    plan = plan_path(wish.plans / ENCODER_FILE, flavour)
    if not plan.exists():
        return f"there is no {plan.name}"
    try:
        _require_torch(flavour)
        check_plans(load_flavour(flavour), wish.folder, wish.plans, bundle, flavour)
    except ConfigError as error:
        return str(error)
    return None


def _has_cuda_provider() -> bool:
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def _onnx(wish: Wish, _bundle: Bundle) -> EncoderRuntime:
    return OnnxRuntime(wish.folder, wish.intra_threads)


def _onnx_cuda(wish: Wish, _bundle: Bundle) -> EncoderRuntime:
    if not _has_cuda_provider():
        raise ConfigError(
            "runtime is 'onnx_cuda'; this ONNX Runtime has no CUDA provider: install onnxruntime-gpu instead of "
            "onnxruntime, or choose another runtime"
        )
    return OnnxRuntime(wish.folder, wish.intra_threads, on_gpu=True)


def _tensorrt(flavour: str) -> Callable[[Wish, Bundle], EncoderRuntime]:
    def load(wish: Wish, bundle: Bundle) -> EncoderRuntime:
        _require_torch(flavour)
        options = check_plans(load_flavour(flavour), wish.folder, wish.plans, bundle, flavour)
        from oasr_backend.runtime.tensorrt import tensorrt_runtime

        runtime = tensorrt_runtime(
            wish.plans, options, bundle, flavour, _device(wish), wish.feature_rungs
        )
        runtime.prewarm()
        return runtime

    return load


def _torch(wish: Wish, bundle: Bundle) -> EncoderRuntime:
    _require_torch("torch")
    compute_capability()
    import torch

    from oasr_backend.runtime.torch import torch_runtime

    sizing = Sizing(
        rungs=wish.rungs or DEFAULT_RUNGS,
        chunk_size=wish.chunk_size,
        max_entries=max(1, wish.max_entries),
    )
    folder, place = wish.folder / CHECKPOINT_FOLDER, torch.device("cuda")
    runtime = torch_runtime(folder, bundle, sizing, _device(wish), place, wish.feature_rungs)
    runtime.prewarm()
    return runtime


def _device(wish: Wish) -> CudaDevice:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            f"torch {torch.__version__} sees no card (is it a build for CPUs?): install that of requirements/gpu.txt, "
            "or set runtime to onnx"
        )
    from oasr_backend.runtime.cuda import CudaDevice, EagerCudaDevice

    return CudaDevice() if wish.captures else EagerCudaDevice()


def _require_torch(runtime: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"runtime is {runtime!r}, which needs torch for the card's memory and graphs; it is not installed: "
            "pip install 'oasr-backend[gpu]', or set runtime to onnx"
        )


_LOADERS: dict[str, Callable[[Wish, Bundle], EncoderRuntime]] = {
    "tensorrt": _tensorrt("tensorrt"),
    "tensorrt_rtx": _tensorrt("tensorrt_rtx"),
    "torch": _torch,
    "onnx_cuda": _onnx_cuda,
    "onnx": _onnx,
}

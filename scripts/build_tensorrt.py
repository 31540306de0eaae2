#!/usr/bin/env python3
"""Build TensorRT plans of a bundle's graphs, beside them (docs/tensorrt.md).

.venv/bin/python scripts/build_tensorrt.py models/u2pp --preferred-batch-size 1 2 4 8 16 32
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from oasr_backend.errors import ConfigError
from oasr_backend.plans.fingerprint import PRECISIONS
from oasr_backend.plans.profiles import DEFAULT_BUCKETS_S, DEFAULT_RUNGS, Sizing

try:
    from oasr_backend.plans.build import BuildOptions, build_plans
    from oasr_backend.plans.library import FLAVOURS, load_flavour
except ModuleNotFoundError as missing:
    sys.exit(
        f"error: {missing.name} is not installed; building plans needs what serving does not: "
        "docs/tensorrt.md (Building plans) has the command"
    )


def main() -> None:
    options = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    progress = Progress()
    signal.signal(signal.SIGINT, progress.stop)
    try:
        sizing = Sizing(
            tuple(options.preferred_batch_size),
            tuple(options.buckets_s),
            options.chunk_size,
            options.num_left_chunks,
        )
        build = BuildOptions(
            options.flavour,
            options.precision,
            sizing,
            tuple(options.compute_capability),
            options.timing_cache,
            options.workspace_mb,
            options.output,
            options.if_needed,
        )
        plans = build_plans(load_flavour(build.flavour), options.bundle, build, progress.show)
    except KeyboardInterrupt:
        progress.end()
        print("build_tensorrt: stopped; plans that are whole stay", file=sys.stderr)
        sys.exit(130)
    except (ConfigError, OSError) as error:
        progress.end()
        sys.exit(f"build_tensorrt: {error}")
    progress.end()
    for plan in plans:
        print(f"{plan}: {plan.stat().st_size / 1e6:.1f} MB")


class Progress:
    """The phase of a build on one line of the console; each once on a line of its own where that is a file."""

    def __init__(self) -> None:
        self._is_console = sys.stderr.isatty()
        self._last = ""
        self._goes_on = True
        self._shown: set[str] = set()

    def stop(self, *_: object) -> None:
        """Have the build end at its next step: TensorRT lets no exception pass."""
        self._goes_on = False

    def show(self, phase: str, done: int, total: int) -> bool:
        if self._is_console:
            sys.stderr.write(f"\r\033[K{phase}: {done} of {total}")
        elif phase not in self._shown:
            sys.stderr.write(f"{phase}\n")
            self._shown.add(phase)
        self._last = phase
        sys.stderr.flush()
        return self._goes_on

    def end(self) -> None:
        if self._is_console and self._last:
            sys.stderr.write("\r\033[K")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("bundle", type=Path, help="a folder that scripts/export_wenet.py has written")
    add("--flavour", choices=FLAVOURS, default="tensorrt", help="default: %(default)s")
    add("--precision", choices=PRECISIONS, default="fp16", help="default: %(default)s")
    add(
        "--preferred-batch-size",
        type=int,
        nargs="+",
        default=DEFAULT_RUNGS,
        metavar="N",
        help="the ladder of config.pbtxt (default: %(default)s)",
    )
    add(
        "--buckets-s",
        type=float,
        nargs="+",
        default=DEFAULT_BUCKETS_S,
        metavar="SECONDS",
        help="lengths to which batches of whole utterances are padded (default: %(default)s)",
    )
    add("--chunk-size", type=int, default=16, help="encoder frames of 40 ms (default: %(default)s)")
    add("--num-left-chunks", type=int, default=4, help="chunks of the past (default: %(default)s)")
    add(
        "--compute-capability",
        nargs="+",
        default=(),
        metavar="X.Y",
        help="cards to build for, with --flavour tensorrt_rtx (default: the card at hand)",
    )
    add("--timing-cache", type=Path, help="a file that keeps timings for the next build")
    add("--workspace-mb", type=int, default=4096, help="default: %(default)s")
    add("--output", type=Path, help="a folder for the plans (default: the bundle's own)")
    add("--if-needed", action="store_true", help="keep plans that are what would be built")
    return parser.parse_args()


if __name__ == "__main__":
    main()

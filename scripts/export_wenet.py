#!/usr/bin/env python3
"""Make a bundle for serving of a WeNet checkpoint folder (docs/wenet.md).

.venv/bin/python scripts/export_wenet.py --checkpoint-dir exp/u2pp --output models/u2pp
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from oasr_backend.bundle import read_bundle
from oasr_backend.errors import ConfigError
from oasr_backend.runtime.choose import CHECKPOINT_FOLDER

try:
    from oasr_backend.export.bundle import export_bundle
    from oasr_backend.export.onnx_file import ExportError
    from oasr_backend.export.sherpa import export_sherpa
    from oasr_backend.export.wenet import load_checkpoint, save_checkpoint
except ModuleNotFoundError as missing:
    sys.exit(
        f"error: {missing.name} is not installed; exporting needs what serving does not. Run: "
        ".venv/bin/python -m pip install -e '.[export]' --extra-index-url https://download.pytorch.org/whl/cpu"
    )

SHERPA_FOLDER = "sherpa-onnx"


def main() -> None:
    options = parse_arguments()
    try:
        checkpoint = load_checkpoint(options.checkpoint_dir)
        differences = export_bundle(
            checkpoint,
            options.output,
            options.chunk_size,
            options.num_left_chunks,
            not options.offline_only,
        )
        if options.torch:
            folder = options.output / CHECKPOINT_FOLDER
            save_checkpoint(folder, checkpoint.model, checkpoint.tokens, checkpoint.features)
        if options.sherpa_onnx:
            settings = read_bundle(options.output).streaming
            folder = options.output / SHERPA_FOLDER
            for name, difference in export_sherpa(checkpoint, folder, settings).items():
                differences[f"{SHERPA_FOLDER}/{name}"] = difference
    except (ConfigError, ExportError) as error:
        sys.exit(f"export_wenet: {error}")
    for name, difference in differences.items():
        print(f"{options.output / name}: differs from PyTorch by {difference:.1e} at most")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--checkpoint-dir", type=Path, required=True, help="the checkpoint's folder")
    add("--output", type=Path, required=True, help="the bundle's folder; made if need be")
    add("--chunk-size", type=positive, help="encoder frames of 40 ms (default: as trained, or 16)")
    add(
        "--num-left-chunks", type=int, default=4, help="chunks of the past; -1 for all (default: 4)"
    )
    add("--offline-only", action="store_true", help="whole utterances only")
    add(
        "--sherpa-onnx",
        action="store_true",
        help=f"also write OUTPUT/{SHERPA_FOLDER} for that engine",
    )
    add(
        "--torch",
        action="store_true",
        help=f"also write OUTPUT/{CHECKPOINT_FOLDER}, which PyTorch runs on a GPU",
    )
    return parser.parse_args()


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


if __name__ == "__main__":
    main()

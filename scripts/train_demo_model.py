#!/usr/bin/env python3
"""Make the demo model of asr_streaming, or print its word error rates (docs/demo-model.md).

python scripts/train_demo_model.py train       # speak, train, export; goes on where it was stopped
python scripts/train_demo_model.py evaluate    # needs no torch
"""

from __future__ import annotations

import argparse
from pathlib import Path

from oasr_backend.training import corpus, evaluation

ROOT = Path(__file__).parents[1]


def main() -> None:
    options = parse_arguments()
    if options.action == "train":
        learn(options)
    for line in evaluation.report(evaluation.Recognizer(options.bundle), test_sets(options)):
        print(line, flush=True)


def learn(options: argparse.Namespace) -> None:
    import torch

    from oasr_backend.export.bundle import export_bundle
    from oasr_backend.export.wenet import load_checkpoint, save_checkpoint
    from oasr_backend.training import demo
    from oasr_backend.training.examples import UNITS, Recordings
    from oasr_backend.training.loop import Schedule, train

    torch.set_num_threads(options.threads)
    plan = corpus.training_plan(options.utterances, options.seed)
    speech = corpus.prepare(options.folder / "train", plan, options.processes)
    print(f"{len(speech)} utterances, {speech.durations_s().sum() / 3600:.2f} hours", flush=True)
    recordings = Recordings(speech, options.folder / "recordings", options.seed)
    model = demo.new_model(recordings)
    schedule = Schedule(options.epochs, reduced_precision=options.precision == "bfloat16")
    train(model, recordings, schedule, options.folder, say=lambda line: print(line, flush=True))
    save_checkpoint(options.folder / "checkpoint", model, UNITS, demo.FEATURES)
    export_bundle(load_checkpoint(options.folder / "checkpoint"), options.bundle)


def test_sets(options: argparse.Namespace) -> list[evaluation.Clips]:
    plan = corpus.held_out_plan(500, options.seed)
    held_out = corpus.prepare(options.folder / "held_out", plan, options.processes)
    return [
        evaluation.human_clips(ROOT / "tests/data"),
        evaluation.held_out_voices(held_out, distorted=False),
        evaluation.held_out_voices(held_out, distorted=True),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("action", choices=("train", "evaluate"))
    folder, bundle = ROOT / ".cache/demo_model", ROOT / "oasr_backend/demo_model"
    add("--folder", type=Path, default=folder, help="speech and checkpoints (default: %(default)s)")
    add("--bundle", type=Path, default=bundle, help="made or evaluated (default: %(default)s)")
    add("--utterances", type=int, default=12000)
    add("--epochs", type=int, default=30)
    add("--seed", type=int, default=1)
    add("--threads", type=int, default=1, help="of the training; a second process reads for it")
    add("--processes", type=int, default=2, help="that speak")
    add(
        "--precision",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the training: bfloat16 is slow on CPUs without it",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

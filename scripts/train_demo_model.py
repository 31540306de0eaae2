#!/usr/bin/env python3
"""Train the demo model of asr_streaming on synthetic speech, or print its error rates (docs/demo-model.md).

python scripts/train_demo_model.py train       # speak, train, write the checkpoint; goes on where it was stopped
python scripts/train_demo_model.py evaluate    # word error rates of the checkpoint
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from oasr_backend.export.wenet import load_checkpoint, save_checkpoint
from oasr_backend.training import corpus, demo, evaluation
from oasr_backend.training.examples import UNITS, Recordings
from oasr_backend.training.loop import Schedule, train

ROOT = Path(__file__).parents[1]


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    checkpoint = options.checkpoint or options.folder / "checkpoint"
    if options.action == "train":
        learn(options, checkpoint)
    for line in evaluation.report(load_checkpoint(checkpoint).model, test_sets(options)):
        print(line)


def learn(options: argparse.Namespace, checkpoint: Path) -> None:
    plan = corpus.training_plan(options.utterances, options.seed)
    speech = corpus.prepare(options.folder / "train", plan, options.processes)
    print(f"{len(speech)} utterances, {speech.durations_s().sum() / 3600:.2f} hours", flush=True)
    recordings = Recordings(speech, options.folder / "recordings", options.seed)
    model = demo.new_model(recordings)
    schedule = Schedule(options.epochs, reduced_precision=options.precision == "bfloat16")
    train(model, recordings, schedule, options.folder, say=lambda line: print(line, flush=True))
    save_checkpoint(checkpoint, model, UNITS, demo.FEATURES)


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
    parser.add_argument("action", choices=("train", "evaluate"))
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".cache/demo_model", help="speech and checkpoints"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="WeNet folder to write or read; default FOLDER/checkpoint"
    )
    parser.add_argument("--utterances", type=int, default=12000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads", type=int, default=1, help="of the training; one more process makes its batches"
    )
    parser.add_argument("--processes", type=int, default=2, help="that speak")
    parser.add_argument(
        "--precision", choices=("bfloat16", "float32"), default="bfloat16", help="of the training"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

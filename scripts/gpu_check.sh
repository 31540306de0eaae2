#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: run every test that needs one, and a benchmark.
#   ./scripts/gpu_check.sh [DIR]   # writes DIR/gpu.json and prints its tables; .cache/gpu_check where not named
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

[ -e /dev/nvidiactl ] || fail "There is no NVIDIA driver here (/dev/nvidiactl is missing): run this where the card is."
output=${1:-.cache/gpu_check}
mkdir -p "$output"
prepare_environment test
./scripts/install.sh gpu
python=.venv/bin/python
$python -m pytest tests/gpu -m gpu -v
bundle=$output/bundle
$python scripts/export_wenet.py --checkpoint-dir tests/data/demo_checkpoint --output "$bundle" --torch
$python scripts/build_tensorrt.py "$bundle" --if-needed
$python scripts/bench_gpu.py --bundle "$bundle" --output "$output/gpu.json"

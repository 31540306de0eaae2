#!/usr/bin/env bash
# Load a running server with real speech through NVIDIA's perf_analyzer, which is unpacked into .cache the first time.
#   ./scripts/perf_analyzer.sh [--clips DIR] [--sequences] [any perf_analyzer flag, for example: --concurrency-range 1:16:5]
set -euo pipefail
caller_directory=$PWD
cd "$(dirname "$0")/.."
. scripts/environment.sh

prepare_environment base
python=$PWD/.venv/bin/python
cd "$caller_directory"
exec "$python" -m oasr_backend.triton.perf_analyzer "$@"

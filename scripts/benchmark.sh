#!/usr/bin/env bash
# Measure what docs/performance.md shows, and write that page anew. Hours on two cores that have nothing else to do;
# started again, it goes on with what is missing. Its steps and what each prints lie in .cache/benchmark.
#   ./scripts/benchmark.sh [--quick]     # --quick: minutes, to see that it runs; the page goes to .cache/benchmark
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

quick=false repeats=5 requests=1000 backlog=400 seconds=30 page=docs/performance.md
output=.cache/benchmark
if [ "${1:-}" = --quick ]; then
    quick=true repeats=1 requests=20 backlog=10 seconds=3 output=.cache/benchmark-quick
    page=$output/performance.md
fi
mkdir -p "$output"
prepare_environment test
.venv/bin/pip install --quiet --no-deps --require-hashes -r requirements/bench.txt
python=.venv/bin/python

# step NAME COMMAND...: run it once, what it prints in NAME.txt below the command itself.
step() {
    local name=$1
    shift
    [ -e "$output/$name.txt" ] && return
    echo "== $name" >&2
    { printf '$'; printf ' %s' "${@/$PWD\//}"; echo; "$@"; } | tee "$output/$name.partial"
    mv "$output/$name.partial" "$output/$name.txt"
}

load() {
    local name=$1
    shift
    step "$name" $python scripts/load_test.py --output "$output/$name" --resume --plots \
        --repeats $repeats --requests $requests --backlog $backlog "$@"
}

step sherpa $python scripts/export_wenet.py --checkpoint-dir tests/data/demo_checkpoint \
    --output "$output/bundle" --sherpa-onnx
sherpa=$output/bundle/sherpa-onnx

step batches-conformer $python scripts/bench_batches.py ctc
step batches-whisper $python scripts/bench_batches.py whisper --options short_window=true
step batches-chunks $python scripts/bench_chunks.py oasr_backend/demo_model --batch-sizes 1 2 4 8 12 16 24 32

if $quick; then
    load conformer-sweep --model conformer --sweep-stock --stock-ladders 1-2-4 --stock-delays 0 --stock-instances 1
else
    load conformer-sweep --model conformer --sweep-stock
fi
best=$($python -m oasr_backend.benchmark.best "$output/conformer-sweep/conformer.jsonl")
load conformer --model conformer --reference "$best" --sherpa "$sherpa" \
    --systems "$best" stock:4-8-16:0:1 ours in-process sherpa-onnx:1
load whisper --model whisper --systems stock:1:0:1 ours in-process faster-whisper faster-whisper:8
load streams --streams 50 100 150 200 250 --seconds $seconds --sherpa "$sherpa" --systems ours sherpa-onnx

$python -m oasr_backend.benchmark.page scripts/load_test/performance.md "$output" "$page"

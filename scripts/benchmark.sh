#!/usr/bin/env bash
# Measure what docs/performance.md shows, and write that page anew. Hours on two cores that have nothing else to do;
# started again, it goes on with what is missing. Its steps and what each prints lie in .cache/benchmark.
#   ./scripts/benchmark.sh [--quick] [STEP...]   # --quick: minutes, to see that it runs
# STEPs: these only, and no page, unless "page" is among them, which is then made of what has run so far.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

quick=false output=.cache/benchmark page=docs/performance.md
wanted=()
# The page has a place for each step but these.
known=$(printf '%s\n' sherpa costs page && grep -oP '\{\{\K[\w-]+' scripts/load_test/performance.md | grep -vx machine)
for argument in "$@"; do
    case $argument in
        --quick) quick=true output=.cache/benchmark-quick page=.cache/benchmark-quick/performance.md ;;
        -h | --help)
            sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' scripts/benchmark.sh
            exit
            ;;
        *)
            grep -qx -- "$argument" <<<"$known" || fail "$argument is no step; steps are $(echo "$known" | xargs)"
            wanted+=("$argument")
            ;;
    esac
done
mkdir -p "$output"
exec 9>"$output/.lock"
flock --nonblock 9 || fail "Another benchmark runs in $output: wait for it."
prepare_environment test
.venv/bin/pip install --quiet --no-deps --require-hashes -r requirements/bench.txt
python=.venv/bin/python

# step NAME COMMAND...: run it once, what it prints in NAME.txt below the command itself.
step() {
    local name=$1
    shift
    [ -e "$output/$name.txt" ] && return
    [ ${#wanted[@]} -gt 0 ] && [[ ! " ${wanted[*]} " =~ " $name " ]] && return
    echo "== $name" >&2
    local shown=("$@")
    [ "$1" = served ] && shown=("${@:2}")
    { printf '$'; printf ' %s' "${shown[@]/$PWD\//}"; echo; "$@"; } | tee "$output/$name.partial"
    mv "$output/$name.partial" "$output/$name.txt"
}

# load NAME REPEATS BACKLOG REQUESTS OPTIONS...: a load test; a quick one is small.
load() {
    local name=$1 repeats=$2 backlog=$3 requests=$4
    shift 4
    if $quick; then repeats=1 backlog=8 requests=8; fi
    step "$name" $python scripts/load_test.py --output "$output/$name" --resume --plots \
        --repeats "$repeats" --backlog "$backlog" --requests "$requests" "$@"
}

step sherpa $python scripts/export_wenet.py --checkpoint-dir tests/data/demo_checkpoint \
    --output "$output/bundle" --sherpa-onnx
sherpa=$output/bundle/sherpa-onnx

step batches-conformer $python scripts/bench_batches.py ctc
step batches-conformer-threads $python scripts/bench_batches.py ctc --options intra_threads=0
whisper=($python scripts/bench_batches.py whisper --rows 1 2 4 --rounds 3)
step batches-whisper "${whisper[@]}"
step batches-whisper-threads "${whisper[@]}" --options intra_threads=0
step batches-whisper-whole "${whisper[@]}" --options short_window=false
step batches-chunks $python scripts/bench_chunks.py oasr_backend/demo_model --batch-sizes 1 2 4 8 12 16 24 32
step scheduler $python scripts/bench_scheduler.py
step wer $python scripts/bench_wer.py

load conformer-sweep 3 200 1 --model conformer --sweep-stock --stock-ladders 1 1-2-4 4-8-16 --stock-delays 0 5000
best=stock:1:0:2
if [ -e "$output/conformer-sweep/conformer.jsonl" ]; then
    best=$($python -m oasr_backend.benchmark.best "$output/conformer-sweep/conformer.jsonl")
fi
load conformer-throughput 9 150 1 --model conformer --loads --sherpa "$sherpa" \
    --systems "$best" stock:4-8-16:0:1 ours ours-shm in-process sherpa-onnx:1
load conformer 8 150 250 --model conformer --systems "$best" ours in-process
costs=$output/conformer-costs.json
load costs 1 400 1 --model conformer --loads --systems ours --engine "cost_table_path=$PWD/$costs"
simulate=($python scripts/simulate.py --service "$costs" --lengths librispeech --preferred-batch-size 1 2 4 --cap 4
    --policies fcfs cost --option parallel_batches=2)
step predicted-throughput "${simulate[@]}" --workload burst --requests 400
step predicted "${simulate[@]}" --of-best --rates 0.8 0.95 1.05 --requests 600

load whisper-sweep 3 30 1 --model whisper --utterances 30 --sweep-stock --stock-ladders 1 1-2-4 4-8-16 --stock-delays 0
load whisper-throughput 5 40 1 --model whisper --loads \
    --utterances 60 --systems stock:1:0:2 stock:4-8-16:0:1 ours in-process faster-whisper:0:2 faster-whisper:8:2
load whisper 5 40 100 --model whisper --utterances 60 --loads 0.8 0.95 --systems stock:1:0:2 ours
policies=(ours:fcfs ours:sjf ours:hrrn ours:window ours:cost ours:adaptive)
# policies LENGTHS UTTERANCES BACKLOG REQUESTS OVERLOAD: the orders without a wait bound; above saturation a queue takes a while to grow.
policies() {
    local options=(--model whisper --utterances "$2" --lengths "$1" --systems "${policies[@]}" --engine max_wait_time=inf
        --output "$output/policies-$1")
    load "policies-$1" 2 "$3" "$4" "${options[@]}" --loads 0.5 0.8
    load "policies-$1-overload" 2 "$3" "$5" "${options[@]}" --loads 1.0 1.3
}
policies librispeech 60 60 60 200
policies uniform 30 30 24 70

# served COMMAND...: run it beside the shipped models, on ports of their own.
served() {
    local log=$output/served.log server code=0
    : >"$log"
    ./scripts/serve.sh --http-port 18000 --grpc-port 18001 --metrics-port 18002 >"$log" 2>&1 &
    server=$!
    # Whatever ends this script ends the server too; a command in the foreground would hold the signal up.
    # shellcheck disable=SC2064
    trap "kill $server 2>/dev/null || true; wait $server || true" EXIT
    trap 'kill %% 2>/dev/null; exit 143' TERM
    until grep -q "Ready after" "$log"; do
        kill -0 $server 2>/dev/null || { tail -n 20 "$log" >&2; return 1; }
        sleep 1
    done
    "$@" &
    wait $! || code=$?
    trap - TERM EXIT
    kill $server
    wait $server || true
    return $code
}

# perf NAME SWEEP FLAGS...: one of perf_analyzer's sweeps, its CSV kept.
perf() {
    local name=$1 sweep=$2
    shift 2
    if $quick; then sweep=${sweep%%=*}=2; fi
    step "$name" served ./scripts/perf_analyzer.sh -u localhost:18001 "$sweep" --measurement-interval 5000 \
        --stability-percentage 999 --max-trials 3 -f "$PWD/$output/$name.csv" "$@"
}
perf perf-offline --concurrency-range=1:9:4
perf perf-offline-rate --request-rate-range=2:8:3
perf perf-streams --concurrency-range=4:16:12 --sequences

if $quick; then streams=(2 4) seconds=2; else streams=(150 250 350) seconds=6; fi
load streams 5 1 1 --streams "${streams[@]}" --seconds "$seconds" --utterances 8 --sherpa "$sherpa" \
    --systems ours in-process silent sherpa-onnx sherpa-server

[ ${#wanted[@]} -gt 0 ] && [[ ! " ${wanted[*]} " =~ " page " ]] && exit
$python -m oasr_backend.benchmark.page scripts/load_test/performance.md "$output" "$page"

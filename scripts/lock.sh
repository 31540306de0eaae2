#!/usr/bin/env bash
# Pin every package that the scripts install, with its hash, after pyproject.toml has changed:
#   pip install uv && ./scripts/lock.sh [--upgrade-package NAME]
# The locks agree with each other: base.txt (inside any tritonserver) is part of serve.txt (with a local
# tritonserver and the client), which is part of test.txt; plot.txt adds what draws the simulation's plots, bench.txt
# what the benchmark measures us beside, rtx.txt what builds plans for RTX cards. One lock holds for Python 3.11 and 3.12.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    uv pip compile pyproject.toml --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
        --generate-hashes --only-binary :all: --custom-compile-command ./scripts/lock.sh "$@"
}

# torch stays out: PyPI's build drags 3 GB of CUDA along (requirements/torch.txt); TensorRT itself too, of which the tests
# have the types.
without=$(printf "%s; python_version < '3'\n" torch tensorrt tensorrt-cu12-bindings)
compile --extra server --extra client --extra test --extra export --override <(echo "$without") \
    --output-file requirements/test.txt "$@"
compile --extra server --extra client --constraint requirements/test.txt --output-file requirements/serve.txt
compile --constraint requirements/serve.txt --output-file requirements/base.txt
compile --extra plot --constraint requirements/test.txt --output-file requirements/plot.txt
compile --extra rtx --constraint requirements/test.txt --output-file requirements/rtx.txt
compile --extra bench --constraint requirements/test.txt --output-file requirements/bench.txt

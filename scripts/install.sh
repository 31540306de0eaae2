#!/usr/bin/env bash
# Make .venv hold what serving needs, so that serve.sh starts without a network.
#   ./scripts/install.sh [base|serve|gpu]   # base: a tritonserver is there; serve: one is installed; gpu: base, PyTorch, TensorRT
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

case ${1:-serve} in
    base | serve) prepare_environment "${1:-serve}" ;;
    gpu)
        prepare_environment base
        .venv/bin/python -m pip install --disable-pip-version-check --no-input --requirement requirements/gpu.txt >&2 ||
            fail "The packages of requirements/gpu.txt could not be installed (see above). They come from PyPI and https://pypi.nvidia.com."
        ;;
    *) fail "$1 is none of base, serve and gpu." ;;
esac

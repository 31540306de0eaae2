#!/usr/bin/env bash
# Make .venv hold what serving needs, so that serve.sh starts without a network.
#   ./scripts/install.sh [base|serve|gpu|rtx]
# base: a tritonserver is there; serve: one is installed; gpu: base, PyTorch and TensorRT; rtx: base, and what builds plans of
# TensorRT for RTX.
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
    rtx)
        prepare_environment base
        .venv/bin/python -m pip install --disable-pip-version-check --no-input --quiet --no-deps --require-hashes \
            --requirement requirements/rtx.txt >&2 ||
            fail "The packages of requirements/rtx.txt could not be installed (see above). They come from PyPI."
        ;;
    *) fail "$1 is none of base, serve, gpu and rtx." ;;
esac

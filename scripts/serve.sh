#!/usr/bin/env bash
# Serve model_repository with a real tritonserver, in the foreground. The first start installs what it needs into .venv.
#   ./scripts/serve.sh [--http-port N] [--grpc-port N] [--metrics-port N] [--model-repository DIR] [any tritonserver flag]
set -euo pipefail
caller_directory=$PWD
cd "$(dirname "$0")/.."
. scripts/environment.sh

for argument in "$@"; do
    if [ "$argument" = --help ] || [ "$argument" = -h ]; then # which installs nothing
        python=$(find_python)
        PYTHONPATH=$PWD exec "$python" -m oasr_backend.triton.launcher --help
    fi
done
# NVIDIA's container and machines like it bring their own tritonserver.
if command -v tritonserver >/dev/null || [ -x /opt/tritonserver/bin/tritonserver ]; then
    prepare_environment base
else
    prepare_environment serve
fi
python=$PWD/.venv/bin/python
cd "$caller_directory"
exec "$python" -m oasr_backend.triton.launcher "$@"

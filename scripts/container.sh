#!/usr/bin/env bash
# What the container starts: TensorRT plans for its card, the first time, then the server.
#   BUNDLE: a bundle's folder; PLAN_DIR: where its plans are kept; BUILD_FLAGS: more flags of scripts/build_tensorrt.py
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${BUNDLE:-}" ] && [ -e /dev/nvidiactl ]; then
    # shellcheck disable=SC2086
    .venv/bin/python scripts/build_tensorrt.py "$BUNDLE" --output "${PLAN_DIR:-$BUNDLE}" --if-needed ${BUILD_FLAGS:-}
fi
exec ./scripts/serve.sh "$@"

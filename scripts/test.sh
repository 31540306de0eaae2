#!/usr/bin/env bash
# Run every check: lint, format, types, and all tests, those on a real tritonserver included.
#   ./scripts/test.sh                 everything
#   ./scripts/test.sh PYTEST_ARGS     these tests only, for example: ./scripts/test.sh tests/unit -k scheduler
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

prepare_environment test
python=.venv/bin/python
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

failed=
run() {
    echo "== $*"
    "$@" || failed="$failed
  $*"
}
run "$python" -m ruff check
run "$python" -m ruff format --check
run "$python" -m mypy
run "$python" -m pytest
[ -z "$failed" ] || fail "these failed:$failed"

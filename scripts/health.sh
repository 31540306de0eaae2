#!/usr/bin/env bash
# End with 0 where the server answers and all of its models are ready. HTTP_PORT: 8000 where not set.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python - "http://localhost:${HTTP_PORT:-8000}/v2/health/ready" <<'PYTHON'
import sys
import urllib.request

try:
    urllib.request.urlopen(sys.argv[1], timeout=4).close()
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
PYTHON

"""scripts/perf_analyzer.sh against a running server."""

from __future__ import annotations

import subprocess

import pytest

from oasr_backend.triton.installation import LaunchError
from oasr_backend.triton.perf_analyzer import find_perf_analyzer
from tests.e2e.server_fixture import ROOT

WINDOWS = ("--measurement-interval=2000", "--max-trials=3", "--stability-percentage=999")


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        (("--request-count=5",), "Successfully read data for 1 stream/streams with 5 step/steps."),
        # It would leave sequences half sent after a count of requests, and go on in their middle.
        (("--sequences", *WINDOWS), "Successfully read data for 2 stream/streams."),
    ],
)
def test_reports_throughput_and_latency_of_real_clips(asr_server, flags, read):
    try:
        find_perf_analyzer()
    except LaunchError as error:
        pytest.skip(f"no perf_analyzer here: {error}")
    done = subprocess.run(
        [
            ROOT / "scripts" / "perf_analyzer.sh",
            "-u",
            asr_server.grpc_url,
            "--concurrency-range=2",
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert read in done.stdout
    assert "Concurrency: 2, throughput: " in done.stdout
    assert "Failed request count" not in done.stdout

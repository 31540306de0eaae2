"""What the kernel says of the cores."""

from __future__ import annotations

import os

from oasr_backend.cores import busy_s, num_cores


def test_only_work_counts_as_busy(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 4000 500 6 7 800 0 0\ncpu0 50 10 15 2000 250 3 3 400 0 0\n")
    assert busy_s(stat) == (100 + 20 + 30 + 6 + 7) / os.sysconf("SC_CLK_TCK")


def test_the_machine_works_and_has_a_core():
    assert busy_s() > 0
    assert num_cores() >= 1

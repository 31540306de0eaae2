"""Whom the engine asks whether his client is still there, and when it spares itself that."""

import numpy as np
import pytest

from oasr_backend.engine.asking import ASK_EVERY_S, ASKED_OF, LONG_S, NUM_SURE, Asking
from oasr_backend.engine.job import Job, Utterance
from tests.fakes import FakeClock

SHORT_S = LONG_S / 2


class Clients:
    """Waits for an answer in a queue of its own; `gone` says whether they have left."""

    def __init__(self):
        self.clock = FakeClock()
        self.asking = Asking(self.clock)
        self.gone = False
        self.num_asked = 0

    def is_cancelled(self):
        self.num_asked += 1
        return self.gone

    def job(self):
        now = self.clock()
        utterance = Utterance("a", np.zeros(0, np.float32), is_cancelled=self.is_cancelled)
        return Job(utterance, print, 0.0, accepted_at=now, deadline_at=np.inf, asked_at=now)

    def asked_of(self, num_jobs, work_s):
        """Return how many of so many who have waited are asked before work for them."""
        before = self.num_asked
        jobs = [self.job() for _ in range(num_jobs)]
        self.clock.advance(ASK_EVERY_S)
        for job in jobs:
            assert self.asking.is_cancelled(job, work_s) in (False, self.gone)
        return self.num_asked - before


def test_who_has_waited_is_asked_and_not_again_for_as_long():
    clients = Clients()
    job = clients.job()
    for _ in range(6):
        assert not clients.asking.is_cancelled(job, SHORT_S)
        clients.clock.advance(ASK_EVERY_S / 2)
    assert clients.num_asked == 2


def test_where_all_are_still_there_few_are_asked_before_short_batches():
    clients = Clients()
    assert clients.asked_of(NUM_SURE, SHORT_S) == NUM_SURE
    assert clients.asked_of(10 * ASKED_OF, SHORT_S) == 10


def test_before_a_long_batch_everybody_is_asked():
    clients = Clients()
    assert clients.asked_of(NUM_SURE, SHORT_S) == NUM_SURE
    assert clients.asked_of(50, LONG_S) == 50


def test_once_one_is_gone_everybody_is_asked_again():
    clients = Clients()
    clients.asked_of(2 * NUM_SURE, SHORT_S)
    clients.gone = True
    num_missed = ASKED_OF - clients.asked_of(ASKED_OF, SHORT_S)
    assert num_missed <= ASKED_OF - 1
    assert clients.asked_of(100, SHORT_S) == 100
    clients.gone = False
    assert clients.asked_of(NUM_SURE, SHORT_S) == NUM_SURE
    assert clients.asked_of(ASKED_OF, SHORT_S) == 1


@pytest.mark.parametrize("work_s", [SHORT_S, LONG_S])
def test_no_answer_counts_as_still_there(work_s):
    clients = Clients()
    clients.is_cancelled = lambda: 1 / 0
    job = clients.job()
    clients.clock.advance(ASK_EVERY_S)
    assert not clients.asking.is_cancelled(job, work_s)

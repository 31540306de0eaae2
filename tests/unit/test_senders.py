"""Threads that hand responses over: nothing is lost, and closing waits for what is on its way."""

from __future__ import annotations

import threading

from oasr_backend.triton.senders import Senders


def test_closing_waits_until_everything_has_been_sent():
    senders, sent = Senders(), []
    for number in range(100):
        senders.send(lambda number=number: sent.append(number))
    senders.close()
    assert sorted(sent) == list(range(100))


def test_a_response_that_triton_is_slow_to_take_holds_no_other_up():
    senders, taken, others = Senders(), threading.Event(), threading.Event()
    senders.send(lambda: taken.wait(10))
    senders.send(others.set)
    assert others.wait(10)
    taken.set()
    senders.close()


def test_a_response_that_cannot_be_delivered_is_logged_and_the_next_one_is_sent(caplog):
    senders, sent = Senders(), []

    def fail():
        raise RuntimeError("closed")

    senders.send(fail)
    senders.send(lambda: sent.append(1))
    senders.close()
    assert sent == [1]
    assert "a response could not be delivered" in caplog.text

import pytest

from oasr_backend.request import TRANSITIONS, IllegalTransitionError, Request, RequestState

WAITING, RUNNING = RequestState.WAITING, RequestState.RUNNING
FINISHED, ABORTED = RequestState.FINISHED, RequestState.ABORTED

LEGAL = [
    (WAITING, RUNNING),
    (WAITING, ABORTED),
    (RUNNING, FINISHED),
    (RUNNING, ABORTED),
    (RUNNING, WAITING),
]


def test_the_table_holds_exactly_the_legal_transitions():
    assert {(a, b) for a, following in TRANSITIONS.items() for b in following} == set(LEGAL)


@pytest.mark.parametrize("start", RequestState)
@pytest.mark.parametrize("end", RequestState)
def test_a_request_goes_only_where_its_state_leads(start, end):
    request = Request("r1", 100, state=start)
    if (start, end) in LEGAL:
        request.advance(end)
        assert request.state is end
        return
    with pytest.raises(IllegalTransitionError) as caught:
        request.advance(end)
    assert str(caught.value) == f"request 'r1' cannot go from {start.value} to {end.value}"
    assert request.state is start


def test_a_negative_priority_counts_as_the_default_class():
    assert Request("r1", 100, priority=-3).priority == 0


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError) as caught:
        Request("r1", -1)
    assert str(caught.value) == "num_frames of request 'r1' is -1; it must be >= 0"

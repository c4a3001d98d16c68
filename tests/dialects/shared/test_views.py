from djl_python.dialects.shared.views import RequestCounts


def test_answers_are_counted_by_what_became_of_them() -> None:
    tally = RequestCounts()
    for status, seconds in ((200, 0.5), (204, 0.25), (404, 1.0), (499, 2.0), (500, 4.0)):
        tally = tally.with_answer(status, seconds)
    assert (tally.succeeded, tally.succeeded_s, tally.failed, tally.failed_s) == (2, 0.75, 3, 7.0)
    assert tally.last_s > 0

"""What is remembered of the prompts that workers had: bounded, oldest first, and gone with the worker."""

from __future__ import annotations

from djl_python.server.models.routing.prefix_index import PrefixIndex


def test_the_longest_beginning_that_a_worker_has_had_is_found() -> None:
    index = PrefixIndex()
    index.add("0", range(10, 30))
    for length in range(1, 20):
        assert index.known("0", [*range(10, 10 + length), *range(100, 107)]) == length
    assert index.known("0", range(10, 30)) == 20
    assert index.known("0", [1, 2, 3]) == index.known("0", []) == index.known("1", [10]) == 0


def test_a_worker_that_has_gone_is_forgotten_and_no_other() -> None:
    index = PrefixIndex()
    for worker in ("0", "1"):
        index.add(worker, [1, 2])
    index.forget("0")
    index.forget("never seen")
    assert (index.known("0", [1, 2]), index.known("1", [1, 2]), index.workers) == (0, 2, ("1",))


def test_prompts_that_are_no_longer_asked_are_forgotten_whole() -> None:
    index = PrefixIndex(most=4096)
    index.add("0", range(100))
    for number in range(1, 100):
        index.add("0", range(1000 * number, 1000 * number + 100))
        index.add("0", range(-1, -50, -1))  # all the time
    assert index.known("0", range(100)) == 0
    assert index.known("0", range(-1, -50, -1)) == 49
    assert index.known("0", range(99_000, 99_100)) == 100
    remembered = sum(index.known("0", range(1000 * number, 1000 * number + 100)) > 0 for number in range(100))
    assert 10 < remembered * 100 <= 4096 + 200


def test_workers_share_what_may_be_remembered() -> None:
    index = PrefixIndex(most=8192)
    workers = [str(number) for number in range(4)]
    for start in range(0, 100_000, 500):
        for worker in workers:
            index.add(worker, range(start, start + 500))
    kept = [sum(index.known(worker, [each]) for each in range(100_000)) for worker in workers]
    assert all(1024 <= count <= 2048 + 500 for count in kept), kept

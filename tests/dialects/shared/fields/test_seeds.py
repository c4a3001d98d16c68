from djl_python.core.types import MAX_SEED
from djl_python.dialects.shared.fields.seeds import drawn_seed, engine_seed, is_seed


def test_seeds_have_64_bits_with_or_without_a_sign() -> None:
    assert all(map(is_seed, (-(2**63), 0, 2**64 - 1)))
    assert not any(map(is_seed, (-(2**63) - 1, 2**64)))


def test_the_engine_gets_their_bits() -> None:
    assert engine_seed(-1) == MAX_SEED
    assert engine_seed(7) == 7
    assert engine_seed(0) == 0


def test_seeds_are_drawn_and_survive_a_javascript_client() -> None:
    drawn = {seed for _ in range(20) for seed in (drawn_seed(), engine_seed(None))}
    assert len(drawn) == 40
    assert all(0 <= seed < 2**53 for seed in drawn)

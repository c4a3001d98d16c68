"""The tables of keys without effect."""

from __future__ import annotations

from djl_python.config import Options, ServingSettings
from djl_python.config.binding import settings_of
from djl_python.config.keys.without_effect import OPTIONS_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT
from djl_python.config.settings.server import ServerConfig
from djl_python.engine.builtin.options import BuiltInOptions


def test_no_key_that_counts_is_among_them() -> None:
    for struct, prefix, idle in (
        (Options, "option.", OPTIONS_WITHOUT_EFFECT),
        (BuiltInOptions, "option.", OPTIONS_WITHOUT_EFFECT),
        (ServingSettings, "", SERVING_WITHOUT_EFFECT),
        (ServerConfig, "", SERVING_WITHOUT_EFFECT),
    ):
        names = {name for setting in settings_of(struct, prefix) for name in (setting.key, *setting.aliases)}
        assert names & {f"{prefix}{key}" for key in idle} == set()


def test_a_name_has_one_reason() -> None:
    reasons = [*OPTIONS_WITHOUT_EFFECT.values(), *SERVING_WITHOUT_EFFECT.values()]
    assert all(reason[0].islower() or reason.startswith("TensorRT") for reason in reasons)

from djl_python.server.metrics.metrics import Metrics
from djl_python.server.metrics.specs import SPECS


def test_every_metric_is_shown_under_its_full_name() -> None:
    shown = Metrics().render().decode()
    for spec in SPECS:
        assert f"# HELP {spec.full_name} " in shown

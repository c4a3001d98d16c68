"""The dashboard and the alerts name what a real server has: metrics, labels, and values of labels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from djl_python.dialects.shared.batches import Status
from djl_python.server.metrics.specs import SPECS
from djl_python.testing import RunningServer

FOLDER = Path(str(files("djl_python"))) / "observability"
DASHBOARD = FOLDER / "grafana-dashboard.json"
ALERTS = FOLDER / "prometheus-alerts.yaml"
#: What Prometheus adds to each sample, or has itself.
SCRAPE_LABELS = {"instance", "job"}
PROMETHEUS_OWN = {"up"}
#: Grafana's variables, and a value of each.
VARIABLES = {"$__rate_interval": "5m", "$model": ".+"}


def dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if asked := re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", "")):
            yield f"sum by ({asked[2]}) ({asked[1]})"


def alert_expressions() -> Iterator[str]:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def parsed(expression: str) -> Any:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return promql_parser.parse(expression)


def parts(node: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from parts(child)
    for argument in getattr(node, "args", None) or ():
        yield from parts(argument)


@pytest.fixture(scope="module")
def samples(demo: RunningServer) -> dict[str, list[dict[str, str]]]:
    """The labels of each sample, by its name, of a server that has answered; none for what has not happened."""
    body = {"messages": [{"role": "user", "content": "What is deep learning?"}], "max_tokens": 8}
    assert httpx.post(f"{demo.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    labels: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{demo.url}/metrics").text):
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}.get(family.type, ("",))
        for suffix in suffixes:
            labels.setdefault(f"{family.name}{suffix}", [])
        for sample in family.samples:
            labels.setdefault(sample.name, []).append(dict(sample.labels))
    return labels


def labels_of(metric: str, samples: dict[str, list[dict[str, str]]]) -> set[str]:
    declared = {
        name: {*spec.labels, "le"}
        for spec in SPECS
        for name in (spec.full_name, *(f"{spec.full_name}{suffix}" for suffix in ("_bucket", "_sum", "_count")))
    }
    return declared[metric] | SCRAPE_LABELS | {name for labels in samples[metric] for name in labels}


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *alert_expressions()])
def test_metrics_and_labels_of_the_dashboards_exist(expression: str, samples: dict[str, list[dict[str, str]]]) -> None:
    tree = parsed(expression)
    selectors = [part for part in parts(tree) if isinstance(part, promql_parser.VectorSelector)]
    assert selectors
    known = SCRAPE_LABELS.copy()
    for selector in selectors:
        if selector.name in PROMETHEUS_OWN:
            continue
        assert selector.name in samples, f"there is no {selector.name}"
        labels = labels_of(selector.name, samples)
        known |= labels
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels
    for aggregate in (part for part in parts(tree) if isinstance(part, promql_parser.AggregateExpr)):
        if aggregate.modifier is not None:
            assert set(aggregate.modifier.labels) <= known


def test_every_metric_of_a_request_is_on_the_dashboard(samples: dict[str, list[dict[str, str]]]) -> None:
    """A new metric is shown, or said here to be of little use in a chart."""
    shown = " ".join([*dashboard_expressions(), *alert_expressions()])
    missing = {spec.full_name for spec in SPECS if not re.search(rf"\b{spec.full_name}", shown)}
    assert missing == {
        "djl_kv_cache_blocks_used",  # their ratio is shown
        "djl_kv_cache_blocks_total",
        "djl_request_queue_seconds",  # its two stages are
        "djl_request_inference_seconds",
        "djl_request_max_new_tokens",
        "djl_key_requests_total",  # only where there are API keys
        "djl_key_tokens_total",
        "djl_rate_limited_requests_total",  # only where tenants have limits
        "djl_tenant_tokens_in_flight",
        "djl_model_loaded",  # only where models are loaded on request
        "djl_model_loads_total",
        "djl_model_unloads_total",
        "djl_worker_node",  # only where workers are on other machines
        "djl_rerun_requests_total",
    }


def test_the_values_of_labels_are_those_of_a_server(samples: dict[str, list[dict[str, str]]]) -> None:
    assert {"ready"} <= {labels["state"] for labels in samples["djl_workers"]}
    assert {"server", "worker"} <= {labels["stage"] for labels in samples["djl_queue_seconds_count"]}
    assert "in_progress" in get_args(Status)
    assert {labels["refused"] for labels in samples["djl_engine_info"]} <= {"yes", "no"}


def test_a_dashboard_as_grafana_imports_it() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    assert all(
        target["datasource"]["uid"] == "${datasource}" for panel in panels for target in panel.get("targets", ())
    )


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, capture_output=True)

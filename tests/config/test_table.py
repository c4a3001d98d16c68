"""The README's tables come from the declarations."""

from __future__ import annotations

from djl_python.config import settings_table


def test_settings_table() -> None:
    table = settings_table()
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
    assert table.count("\n### ") == 2
    for beginning in (
        "| `batch_size` (also `max_dynamic_batch_size`) | integer | `1` | `SERVING_BATCH_SIZE` |",
        "| `minWorkers` | integer | `1` | `SERVING_MIN_WORKERS` |",
        "| `option.predict_timeout` | number | `120` | `OPTION_PREDICT_TIMEOUT`, `PREDICT_TIMEOUT` |",
        "| `option.trust_remote_code` | true, false | `false` | `OPTION_TRUST_REMOTE_CODE` |",
        "| `option.max_model_len` (also `option.max_total_tokens`) | integer |  "
        "| `OPTION_MAX_MODEL_LEN`, `MAX_TOTAL_TOKENS` |",
        "| `inference_address` | address | `http://127.0.0.1:8080` | `SERVING_INFERENCE_ADDRESS` |",
        "| `drain_timeout` | number | `30` | `SERVING_DRAIN_TIMEOUT` |",
    ):
        assert any(row.startswith(beginning) for row in rows), beginning

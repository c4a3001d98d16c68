"""config.properties, the command line and SERVING_*."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from djl_python.config import Address, ModelUrls, ServerConfig, environment_table, load_server_config
from djl_python.core.errors import ConfigError


def config_file(directory: Path, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.properties"
    path.write_text(text)
    return path


def test_built_in() -> None:
    config = load_server_config(None, {}, {})
    assert config.inference_address == Address("127.0.0.1", 8080)
    assert (config.job_queue_size, config.max_request_size, config.drain_timeout_s) == (1000, 64 << 20, 30)
    assert set(config.provenance.values()) == {"default"}
    assert config.warnings == ()


def test_weakest_to_strongest(tmp_path: Path) -> None:
    """File, then command line, then environment, as DJL has it."""
    path = config_file(tmp_path, "job_queue_size=1\nbatch_size=1\nretry_threshold=11\n")
    config = load_server_config(
        path, {"batch_size": "2", "job_queue_size": "2"}, {"SERVING_JOB_QUEUE_SIZE": "3", "SERVING_MIN_WORKERS": "4"}
    )
    assert (config.job_queue_size, config.batch_size, config.retry_threshold, config.min_workers) == (3, 2, 11, 4)
    assert config.provenance["job_queue_size"] == "environment SERVING_JOB_QUEUE_SIZE"
    assert config.provenance["batch_size"] == "command line"
    assert config.warnings == (
        "environment SERVING_JOB_QUEUE_SIZE: job_queue_size=3 counts, not 2 of the command line",
    )
    assert config.provenance["retry_threshold"] == "config.properties:3"


def test_container_name_for_the_queue(tmp_path: Path) -> None:
    path = config_file(tmp_path, "job_queue_size=1\n")
    assert load_server_config(path, {}, {"MAX_CONCURRENT_REQUESTS": "7"}).job_queue_size == 7
    both = {"MAX_CONCURRENT_REQUESTS": "7", "SERVING_JOB_QUEUE_SIZE": "8"}
    assert load_server_config(path, {}, both).job_queue_size == 8


def test_variables_of_other_settings_are_no_unknown_keys() -> None:
    names = re.findall(r"^\| `(SERVING_\w+)`", environment_table(), re.MULTILINE)
    assert "SERVING_DOWNLOAD_DIR" in names
    assert load_server_config(None, {}, dict.fromkeys(names, "x")).warnings == ()


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    home = {"MODEL_SERVER_HOME": str(tmp_path)}
    assert load_server_config(None, {}, home).batch_size == 1
    config_file(tmp_path, "batch_size=2")
    assert load_server_config(None, {}, home).batch_size == 2
    config_file(tmp_path / "conf", "batch_size=3")
    assert load_server_config(None, {}, home).batch_size == 3
    named = config_file(tmp_path / "elsewhere", "batch_size=4")
    assert load_server_config(named, {}, home).batch_size == 4
    with pytest.raises(ConfigError, match=r"gone\.properties: No such file"):
        load_server_config(tmp_path / "gone.properties", {}, home)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://0.0.0.0:8080", Address("0.0.0.0", 8080)),
        ("http://localhost:0/", Address("localhost", 0)),
        ("http://example.org", Address("example.org", 80)),
        ("http://[::1]:9000", Address("::1", 9000)),
        ("unix:/tmp/s.sock", Address("", 0, "/tmp/s.sock")),
        ("unix:///tmp/s.sock", Address("", 0, "/tmp/s.sock")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:8080", "https://host:port or unix:/path"),
        ("http://host:port", "a port from 0 to 65535"),
        ("http://host:99999", "a port from 0 to 65535"),
        ("http://host:80/path", "https://host:port or unix:/path"),
        ("http://127.0.0..1:80", "no part between dots is empty"),
        (f"http://{'a' * 64}:80", "no part between dots is empty or too long"),
        ("unix:", "an absolute path after unix:"),
        ("unix:/", "an absolute path after unix:"),
        ("unix:s.sock", "an absolute path after unix:"),
    ],
)
def test_wrong_addresses(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_server_config(None, {}, {"SERVING_INFERENCE_ADDRESS": text})
    assert caught.value.message.startswith(f"environment SERVING_INFERENCE_ADDRESS: inference_address={text}: expected")


def test_host_and_port_change_their_part_only(tmp_path: Path) -> None:
    path = config_file(tmp_path, "inference_address=http://10.0.0.1:7000")
    assert load_server_config(path, {"port": "9000"}, {}).inference_address == Address("10.0.0.1", 9000)
    assert load_server_config(path, {"host": "::"}, {}).inference_address == Address("::", 7000)
    environ = {"SERVING_INFERENCE_ADDRESS": "http://10.0.0.2:7001"}
    config = load_server_config(path, {"port": "9000"}, environ)
    assert config.inference_address == Address("10.0.0.2", 7001)
    assert len(config.warnings) == 1
    empty = config_file(tmp_path, "inference_address=")
    assert load_server_config(empty, {"port": "9000"}, {}).inference_address == Address("127.0.0.1", 9000)
    both = load_server_config(None, {"host": "0.0.0.0", "port": "9"}, {})
    assert both.inference_address == Address("0.0.0.0", 9)
    with pytest.raises(ConfigError, match=r"^command line: port=99999: expected an integer from 0 to 65535$"):
        load_server_config(None, {"port": "99999"}, {})


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("SERVING_MAX_REQUEST_SIZE", str(2**31), "an integer >= 1 and <= 1073741824"),
        ("SERVING_CORS_ALLOWED_ORIGIN", "https://\u65e5", r"\* or origins, .*"),
        ("SERVING_CORS_ALLOWED_ORIGIN", "https://a/b", r"\* or origins, .*"),
        ("SERVING_CORS_ALLOWED_ORIGIN", "null", r"\* or origins, .*"),
        ("SERVING_ALLOWED_HOSTS", "https://a", "names of hosts, .*"),
        ("SERVING_CORS_ALLOWED_METHODS", "GET\nPOST", "printable ASCII"),
        ("SERVING_CORS_ALLOWED_HEADERS", "\xe9", "printable ASCII"),
    ],
)
def test_limits_that_fit_no_request_or_answer_are_refused(variable: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f": expected {expected}$"):
        load_server_config(None, {}, {variable: value})


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = config_file(tmp_path, "job_queue_size=many\n\nmax_request_size=0\n")
    with pytest.raises(ConfigError) as caught:
        load_server_config(path, {}, {"SERVING_BATCH_SIZE": "x"})
    assert caught.value.message.splitlines() == [
        "config.properties:1: job_queue_size=many: expected an integer >= 1",
        "config.properties:3: max_request_size=0: expected an integer >= 1 and <= 1073741824",
        "environment SERVING_BATCH_SIZE: batch_size=x: expected an integer >= 1",
    ]


def test_unknown_keys_are_warned_about(tmp_path: Path) -> None:
    path = config_file(tmp_path, "job_que_size=5\nkeystore=x\nplugin_folder=/p\n")
    # Kubernetes makes such a variable for a service that is called "serving".
    environ = {"SERVING_PORT": "tcp://10.0.0.1:80", "SERVING_BATCH_SIZE": "", "SERVING_FAIL_FAST": "true"}
    config = load_server_config(path, {}, environ)
    assert config == ServerConfig(provenance=config.provenance, warnings=config.warnings)
    assert config.warnings == (
        "config.properties:1: job_que_size is not known; did you mean job_queue_size?",
        "config.properties:2: keystore has no effect: certificate_file and private_key_file are PEM files, not a "
        "Java keystore (openssl pkcs12 -nodes -in KEYSTORE -out PAIR.pem makes a certificate_file of one)",
        "config.properties:3: plugin_folder has no effect: it is for plug-ins in Java",
        "environment SERVING_FAIL_FAST: fail_fast has no effect: a server that can load none of its models ends "
        "anyway, and workers that end are started again",
        "environment SERVING_PORT: port is not known",
    )


def test_the_management_address_and_access_are_read(tmp_path: Path) -> None:
    path = config_file(tmp_path, "management_address=unix:/run/manage\n")
    config = load_server_config(path, {}, {"SERVING_MANAGEMENT_ADDRESS": "http://10.0.0.1:8081"})
    assert config.management_address == Address("10.0.0.1", 8081)
    assert load_server_config(path, {}, {}).management_address == Address("", 0, "/run/manage")
    assert load_server_config(None, {}, {}).management_address is None
    config = load_server_config(path, {}, {"SERVING_MANAGEMENT_ACCESS": "open"})
    assert [text for text in config.warnings if "management_access has no effect" in text]
    with pytest.raises(
        ConfigError, match="management_address=8081: expected http://host:port, https://host:port or unix:/path"
    ):
        load_server_config(None, {}, {"SERVING_MANAGEMENT_ADDRESS": "8081"})
    with pytest.raises(ConfigError, match="management_access=all: expected one of local, open"):
        load_server_config(None, {}, {"SERVING_MANAGEMENT_ACCESS": "all"})


def test_where_models_are_that_nobody_has_registered() -> None:
    config = load_server_config(None, {}, {"SERVING_MODEL_URL_PATTERN": "s3://bucket/{model}"})
    assert config.model_url_pattern == ModelUrls("s3://bucket/{model}")
    with pytest.raises(ConfigError, match=r"model_url_pattern=\(: expected a URL with \{model\} in it, or a regular"):
        load_server_config(None, {}, {"SERVING_MODEL_URL_PATTERN": "("})


@pytest.mark.parametrize(
    ("file", "overrides", "environ", "expected"),
    [
        ("", {"certificate_file": "c"}, {}, "https://127.0.0.1:8080"),
        ("", {"certificate_file": "c", "host": "0.0.0.0", "port": "1"}, {}, "https://0.0.0.0:1"),
        ("certificate_file=c", {"port": "1"}, {}, "https://127.0.0.1:1"),
        ("certificate_file=c\ninference_address=http://127.0.0.1:1", {}, {}, "http://127.0.0.1:1"),
        ("inference_address=http://127.0.0.1:1", {"certificate_file": "c"}, {}, "https://127.0.0.1:1"),
        ("certificate_file=c\ninference_address=https://a", {}, {}, "https://a:443"),
        ("certificate_file=c\ninference_address=https://a", {"port": "9"}, {}, "https://a:9"),
        ("", {"certificate_file": "c"}, {"SERVING_INFERENCE_ADDRESS": "http://a:1"}, "http://a:1"),
        ("", {"certificate_file": "c"}, {"SERVING_INFERENCE_ADDRESS": "unix:/s"}, "unix:/s"),
        ("", {}, {"SERVING_CERTIFICATE_FILE": "c", "SERVING_PRIVATE_KEY_FILE": "k"}, "https://127.0.0.1:8080"),
    ],
)
def test_a_certificate_makes_the_address_https(
    tmp_path: Path, file: str, overrides: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    path = tmp_path / "config.properties"
    path.write_text(file)
    assert str(load_server_config(path, overrides, environ).inference_address) == expected


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("inference_address=https://a", "certificate_file and private_key_file, which https needs"),
        ("management_address=https://a", "certificate_file and private_key_file, which https needs"),
        ("private_key_file=k", "expected certificate_file beside it"),
        (
            "certificate_file=c\ninference_address=https://a:1\nmanagement_address=http://a:1",
            "expected one scheme at one port",
        ),
    ],
)
def test_https_that_can_not_be(tmp_path: Path, file: str, said: str) -> None:
    path = tmp_path / "config.properties"
    path.write_text(file)
    with pytest.raises(ConfigError, match=said):
        load_server_config(path, {}, {})


def test_settings_for_https_without_effect(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("inference_address=http://a\ncertificate_file=c\nclient_ca_file=d\nkeystore=e.p12")
    warnings = " ".join(load_server_config(path, {}, {}).warnings)
    assert "certificate_file, client_ca_file: no effect, for no address is https" in warnings
    assert "keystore has no effect: certificate_file and private_key_file are PEM files" in warnings
    path.write_text("certificate_file=c\nclient_certificates=optional")
    assert load_server_config(path, {}, {}).warnings == ("client_certificates has no effect without client_ca_file",)

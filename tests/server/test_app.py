import re

from djl_python.server.metrics import CONTENT_TYPE

from .harness import model_config, running, until, wait_ready


async def test_ping_is_djls_and_health_is_strict():
    async with running(model_config("a"), model_config("b", "2", properties={"load": "fail"}), wait=False) as site:
        early = await site.client.get("/ping")
        assert early.status_code == 200
        assert early.json() == {"a": {"status": "PENDING"}, "b:2": {"status": "PENDING"}}
        assert (await site.client.get("/health")).json() == {"status": "not ready", "models": ["a", "b:2"]}
        for model in site.models.values():
            await wait_ready(model)
        late = await site.client.get("/ping")
        assert late.status_code == 500
        assert late.json() == {"a": {"status": "Healthy"}, "b:2": {"status": "FAILED"}}
        assert late.text.startswith('{\n  "a": {\n')
        health = await site.client.get("/health")
        assert health.status_code == 503 and health.json()["models"] == ["b:2"]
        assert (await site.post("/predictions/b", do="echo")).status_code == 503
        assert (await site.post("/predictions/a", do="echo")).status_code == 200


async def test_everything_ready():
    async with running() as site:
        assert (await site.client.get("/health")).status_code == 200
        assert (await site.client.get("/ping")).json() == {"m": {"status": "Healthy"}}


async def test_a_model_that_is_loading_is_503_and_says_so():
    async with running(model_config(properties={"load": "later"}), wait=False, allow_multi_status=True) as site:
        answer = await site.post(do="echo")
        assert answer.status_code == 503 and "model 'm' is loading" in answer.text
        assert answer.headers["retry-after"] == "5"
        assert (await site.client.get("/ping")).status_code == 207
        await until(lambda: site.model.ready)
        assert (await site.post(do="echo")).status_code == 200
        assert (await site.client.get("/ping")).status_code == 200


async def test_the_pages_take_get_and_head():
    async with running() as site:
        for path in ("/ping", "/health", "/metrics"):
            got, head = await site.client.get(path), await site.client.head(path)
            assert got.status_code == head.status_code == 200
            assert head.content == b"" and int(head.headers["content-length"]) > 0
            wrong = await site.client.post(path)
            assert wrong.status_code == 405 and wrong.headers["allow"] == "GET, HEAD, OPTIONS"
        assert got.headers["content-type"] == CONTENT_TYPE


async def test_requests_are_counted_by_code():
    async with running() as site:
        for _ in range(2):
            await site.post(do="echo")
        await site.client.post("/nothing")
        text = (await site.client.get("/metrics")).text
        assert 'djl_requests_total{code="200",dialect="lmi",model="m",version=""} 2.0' in text
        assert 'djl_requests_total{code="404",dialect="",model="",version=""} 1.0' in text
        assert re.search(r'djl_request_duration_seconds_count\{dialect="lmi",model="m",version=""\} 2\.0', text)


async def test_cors_headers_only_where_configured():
    async with running(cors_allowed_origin="*", cors_allowed_methods="POST", cors_allowed_headers="x-a") as site:
        preflight = await site.client.options("/invocations", headers={"origin": "http://page"})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert preflight.headers["access-control-allow-methods"] == "POST"
        assert preflight.headers["access-control-allow-headers"] == "x-a"
        assert (await site.post(do="echo")).headers["access-control-allow-origin"] == "*"
    async with running() as site:
        assert "access-control-allow-origin" not in (await site.post(do="echo")).headers

"""Our own OpenAPI document, held against the server by schemathesis: nothing that fits it is answered with a 5xx."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis.checks import not_a_server_error

from tests.app.harness import Client, make_home, make_settings, serving

HELLO = [{"role": "user", "content": "hello"}]
CHATS = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/messages": {"messages": HELLO},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/responses": {"input": HELLO},
}
ANSWERS = (*CHATS, "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
OTHERS = (
    ("/v1/models", "GET"),
    ("/v1/models/{model_id}", "GET"),
    ("/v1/responses/{response_id}", "GET"),
    ("/v1/responses/{response_id}", "DELETE"),
    ("/metrics", "GET"),
    ("/api/models/{model_id}/estimate", "POST"),
    ("/api/models/{model_id}/doctor", "GET"),
    ("/api/models/{model_id}/quantize", "POST"),
    ("/api/doctor", "POST"),
    ("/api/models/{model_id}/drafters", "GET"),
    ("/api/engines/{engine_id}/speculation", "POST"),
    ("/api/engines/{engine_id}/selftest", "POST"),
    ("/api/engines/{engine_id}/selftest", "GET"),
    ("/api/engines/{engine_id}/blocks", "GET"),
    ("/api/engines/{engine_id}/blocks/history", "GET"),
    ("/api/engines/{engine_id}/fit", "POST"),
    ("/api/engines/{engine_id}/inspect", "POST"),
    ("/api/engines/{engine_id}/sampling", "GET"),
    ("/api/engines/{engine_id}/grammar", "POST"),
    ("/api/selftests", "GET"),
    ("/api/requests/{request_id}/trace", "GET"),
    ("/api/requests", "GET"),
    ("/api/requests/{request_id}", "GET"),
    ("/api/requests/{request_id}/body", "DELETE"),
    ("/api/requests/bodies", "DELETE"),
    ("/api/samples", "GET"),
    ("/api/samples/latencies", "GET"),
    ("/api/engine-runs", "GET"),
    ("/api/system", "GET"),
    ("/api/jobs", "GET"),
    ("/api/events", "GET"),
    ("/api/settings", "PUT"),
    ("/api/engines/{engine_id}/abort", "POST"),
    ("/api/alert-rules/{rule_id}", "PATCH"),
    ("/api/alerts", "GET"),
    ("/api/alerts/{alert_id}/acknowledge", "POST"),
    ("/api/about/documents/{name}", "GET"),
    ("/api/conversations", "GET"),
    ("/api/conversations", "POST"),
    ("/api/conversations/{conversation_id}", "PATCH"),
    ("/api/conversations/{conversation_id}/generate", "POST"),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("openapi")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def document(client: Client) -> schemathesis.BaseSchema:
    """Read once: it is large, and so is what is made of it."""
    return schemathesis.openapi.from_dict(client.get("/openapi.json").json())


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all calls."""
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.mark.parametrize("path", ANSWERS)
def test_what_fits_the_document_is_answered(
    client: Client, document: schemathesis.BaseSchema, session: requests.Session, path: str
) -> None:
    """A model of another name is refused before anything is read, so the default one is asked."""
    statuses = []

    @seed(1)
    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=document[path]["POST"].as_strategy())
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)
            case.body["stream"] = False
            if path in CHATS and len(statuses) % 2:  # what no schema says does not get in the way
                case.body = {name: value for name, value in case.body.items() if "tool" not in name} | CHATS[path]
        response = case.call(base_url=str(client.base_url), session=session, timeout=20)
        case.validate_response(response, checks=[not_a_server_error])
        if response.status_code != 200:
            assert response.json()["error"]["type"] == "invalid_request_error"
        statuses.append(response.status_code)

    ask()
    assert 200 in statuses, "nothing of what fits the document is accepted"


@pytest.mark.parametrize(("path", "method"), OTHERS)
def test_nothing_that_fits_the_document_breaks_the_server(
    client: Client, document: schemathesis.BaseSchema, session: requests.Session, path: str, method: str
) -> None:
    @seed(1)
    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=document[path][method].as_strategy())
    def ask(case: schemathesis.Case) -> None:
        response = case.call(base_url=str(client.base_url), session=session, timeout=20)
        case.validate_response(response, checks=[not_a_server_error])

    ask()

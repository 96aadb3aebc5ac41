"""The service held against its own description, by schemathesis."""

from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from labelquorum.server.app import create_app
from labelquorum.server.auth import ROUTES

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
EXAMPLES = {None: 2, "read": 4, "write": 4, "admin": 6}
ENDLESS = "/v1/streams/{stream}/events"
ALTERED = "/v1/streams/{stream}"  # by DELETE and PATCH, which takes a new name


@pytest.fixture(scope="module")
def described(running, admin):
    """The schema as the service gives it, and a stream with something in it."""
    made = {"name": "s", "settings": {"classes": ["owl", "wren"]}}
    made["rules"] = {"labels_per_item": 1, "chunk_items": 1, "grace": 3600}
    assert admin.post("/v1/streams", json=made).status_code == 201
    labels = [{"task": t, "worker": w, "label": "owl"} for t in (0, "0") for w in (0, "w")]
    assert admin.post("/v1/streams/s/labels", json=labels).status_code == 200
    assert admin.post("/v1/streams", json={**made, "name": "altered"}).status_code == 201
    return schemathesis.openapi.from_dict(admin.get("/openapi.json").json())


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("role", list(EXAMPLES), ids=str)
def test_every_answer_is_one_that_is_described(running, described, role, mode):
    key = {} if role is None else {"authorization": f"Bearer {running.secret(role)}"}
    statuses = {}

    def ask_and_check(case):
        if "stream" in (case.path_parameters or {}) and case.path != ENDLESS:
            altered = case.path == ALTERED and case.method != "GET"
            case.path_parameters["stream"] = "altered" if altered else "s"
        answer = case.call(base_url=running.url, headers=key)
        case.validate_response(answer, checks=CHECKS)
        statuses.setdefault(case.path, set()).add(answer.status_code)

    for operation in (result.ok() for result in described.get_all_operations()):

        @settings(
            max_examples=EXAMPLES[role],
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode))
        def check(case):
            ask_and_check(case)

        with suppress(Unsatisfiable):  # where there is nothing one could do wrong
            check()
    for path, seen in statuses.items():
        if path in ("/healthz", "/readyz", "/"):
            assert 200 in seen
        elif path == "/assets/{path}":
            assert 404 in seen
        elif role is None:
            assert seen <= {400, 401}
        else:
            assert seen & {200, 201, 403, 404, 422}
    assert running.client("admin").get("/v1/streams/s").status_code == 200


def test_every_route_is_described_with_its_key_and_its_refusals(running):
    schema = create_app(running.store, None).inner.openapi()
    for (method, path), need in ROUTES.items():
        if path == "/openapi.json":
            continue
        operation = schema["paths"][path.replace(":path", "")][method.lower()]
        assert operation["description"].strip()
        if need is None:
            assert "security" not in operation
            continue
        assert operation["security"] == [{"key": []}]
        assert f"scope {need.scope}" in operation["description"]
        assert {"401", "403", "429"} <= set(operation["responses"])
        for status, answer in operation["responses"].items():
            if status.startswith(("4", "5")):
                [media] = answer["content"].values()
                assert media["schema"] == {"$ref": "#/components/schemas/ErrorShape"}
        if method in ("POST", "PATCH"):
            assert operation["requestBody"]["content"]["application/json"]["schema"]

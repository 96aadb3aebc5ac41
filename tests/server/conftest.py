"""A service that all tests of a file share, a stream for each; and both databases."""

from urllib.parse import quote

import pytest
from server.served import serving
from store.conftest import database, databases, server, where  # noqa: F401


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("store")) as service:
        yield service


@pytest.fixture(scope="module")
def admin(running):
    return running.client()


@pytest.fixture
def stream(admin, request):
    """The path of an empty stream, which cuts two items of two labels each and closes them."""
    name = request.node.name[:200].replace("/", " ")
    answer = admin.post(
        "/v1/streams",
        json={
            "name": name,
            "settings": {"classes": ["owl", "wren"]},
            "rules": {
                "labels_per_item": 2,
                "chunk_items": 2,
                "max_wait": None,
                "retention": "discard",
                "grace": 0,
            },
        },
    )
    assert answer.status_code == 201, answer.text
    return f"/v1/streams/{quote(name, safe='')}"

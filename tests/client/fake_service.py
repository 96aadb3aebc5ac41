"""A service over a real socket that keeps the real one's rules, and misbehaves on demand."""

import gzip
import json
import threading
import time
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

KEY = "a-key"


class Cut(Response):
    """An answer that breaks off: what was done is done, but no reply comes."""

    async def __call__(self, scope, receive, send):
        headers = [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": False})


def refused(status, *errors, **headers):
    body = {"ok": False, "error": errors[0], "errors": list(errors), "status": status}
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(body, status, shown)


class Fake:
    """What the service holds, what it was asked, and what it will do wrong."""

    def __init__(self):
        self.asked = []  # (method, path, headers)
        self.batches = {}  # key: rows
        self.streams = {}
        self.trouble = []  # for each of the next requests: None, a response, or "lose"
        self.answers = {}  # (method, path): JSON
        self.events = []  # text of each connection's events
        self.app = FastAPI(openapi_url=None)
        self.app.add_api_route("/{path:path}", self.answer, methods=["GET", "POST", "DELETE"])

    async def answer(self, request: Request, path: str):
        body = await request.body()
        self.asked.append((request.method, f"/{path}", dict(request.headers)))
        trouble = self.trouble.pop(0) if self.trouble else None
        if isinstance(trouble, Response):
            return trouble
        reply = self.do(request, f"/{path}", body)
        return Cut() if trouble == "lose" else reply

    def do(self, request, path, body):
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return refused(401, "This key opens nothing.")
        if path.endswith("/events"):
            return StreamingResponse(self.tell(), media_type="text/event-stream")
        if path.endswith("/labels") and request.method == "POST":
            return self.take(request, body)
        if path == "/v1/streams" and request.method == "POST":
            made = json.loads(body)
            if made["name"] in self.streams:
                return refused(409, "There is such a stream.")
            self.streams[made["name"]] = made
            return JSONResponse(made, 201)
        name = path.removeprefix("/v1/streams/")
        if name in self.streams and request.method == "GET":
            return JSONResponse(self.streams[name])
        target = request.scope["raw_path"].decode().removeprefix("/v1")  # as it was spelled
        if request.url.query:
            target += f"?{request.url.query}"
        found = self.answers.get((request.method, target))
        if isinstance(found, Response):
            return found
        return refused(404, f"There is no {path!r} here.") if found is None else JSONResponse(found)

    def take(self, request, body):
        """Take labels once under their key, as the service does."""
        assert request.headers["content-type"] == "application/x-ndjson"
        if request.headers.get("content-encoding") == "gzip":
            assert len(body) > 0
            assert len(gzip.decompress(body)) <= 100 * len(body), "a bomb"
            body = gzip.decompress(body)
        rows = [json.loads(line) for line in body.decode().splitlines()]
        key = request.headers["idempotency-key"]
        if any(row["label"] == "bad" for row in rows):
            return refused(422, "line 1: label 'bad' is not one of the classes.", "line 2: so too.")
        repeated = key in self.batches
        if repeated and self.batches[key] != rows:
            return refused(409, "This key came before with other labels.")
        self.batches[key] = rows
        receipt = {"accepted": len(rows), "late": 0, "skipped": {}, "repeated": repeated}
        return JSONResponse(receipt)

    async def tell(self):
        yield self.events.pop(0)

    @property
    def rows(self):
        return [row for rows in self.batches.values() for row in rows]


@contextmanager
def serving(app):
    """The address of an app that is served by a thread of this process."""
    settings = {"log_level": "critical", "ws": "none", "lifespan": "off", "port": 0}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()

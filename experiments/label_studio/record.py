"""Record what a real Label Studio sends for each kind of event, for the tests.

    python3 run.py python experiments/label_studio/record.py

starts a Label Studio, has two people annotate, and writes each payload with its headers to
`tests/server/label_studio/`. Secrets and whatever tells of the machine are taken out.
"""

import argparse
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from studio import VERSION, Studio, choice, say

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "server" / "label_studio"
CONFIG = """<View><Text name="text" value="$text"/>
<Choices name="bird" toName="text" choice="single">
<Choice value="owl"/><Choice value="wren"/></Choices>
</View>"""
TWO = CONFIG.replace(
    "</View>",
    '<Choices name="mood" toName="text" choice="multiple"><Choice value="calm"/>'
    '<Choice value="loud"/></Choices></View>',
)
HEADERS = ("User-Agent", "Accept", "Content-Type", "Authorization")

Request = dict[str, Any]


@contextmanager
def receiver() -> Iterator[tuple[str, list[Request]]]:
    """An address, and what was sent to it."""
    got: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name: self.headers[name] for name in HEADERS}
            got.append({"headers": headers, "body": json.loads(body)})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    server.shutdown()


def record(studio: Studio) -> dict[str, Any]:
    """Have events of every kind happen; give what each sent, by name."""
    owner, ann, bob = studio.owner, studio.join("ann"), studio.join("bob")
    reply: dict[str, Any] = {}
    with receiver() as (url, got):

        def take(name: str) -> None:
            [reply[name]] = got
            got.clear()

        project = owner.project(CONFIG, [])
        owner.hook(project, url, "KEY")
        tasks = [{"text": "hoot", "code": "q1"}, {"text": "tweet", "code": "q2"}]
        owner.ask("POST", f"/api/projects/{project}/import", tasks)
        take("tasks_created")
        first, second = owner.tasks(project)
        of_ann = ann.annotate(first, choice("owl"), lead_time=1.5)
        take("annotation_created")
        of_bob = bob.annotate(first, choice("wren"))
        take("annotation_created_by_another")
        ann.correct(of_ann, choice("wren"))
        take("annotation_updated")
        owner.correct(of_ann, choice("owl"))
        take("annotation_updated_by_another")
        ann.correct(of_ann, [])
        take("annotation_emptied")
        ann.annotate(second, [], was_cancelled=True)
        take("annotation_skipped")
        bob.annotate(second, choice("owl", "wren"))
        take("annotation_of_two_choices")
        bob.delete(of_bob)
        take("annotations_deleted")
        owner.ask("POST", f"/api/tasks/{second}/drafts", {"result": choice("owl")})
        guess = {"task": first, "result": choice("wren"), "model_version": "guess"}
        owner.ask("POST", "/api/predictions/", guess)
        assert not got  # drafts and predictions are not sent
        act = f"/api/dm/actions?project={project}&id="
        all_tasks = {"selectedItems": {"all": True, "excluded": []}}
        owner.ask("POST", f"{act}predictions_to_annotations", all_tasks)
        take("annotations_created")
        reply["export"] = {
            "headers": {},
            "body": owner.ask("GET", f"/api/projects/{project}/export?exportType=JSON"),
        }
        some = {"selectedItems": {"all": False, "included": [second]}}
        owner.ask("POST", f"{act}delete_tasks_annotations", some)
        take("annotations_deleted_at_once")
        ann.ask("POST", f"/api/annotations/{of_ann}/convert-to-draft")
        assert not got  # nor is an annotation that is made a draft again
        owner.ask("PATCH", f"/api/projects/{project}/", {"title": "more birds"})
        take("project_updated")
        owner.ask("DELETE", f"/api/tasks/{first}/")
        take("tasks_deleted")

        bare = owner.project(CONFIG, tasks[:1])
        owner.hook(bare, url, "KEY")
        [hook] = owner.ask("GET", f"/api/webhooks/?project={bare}")
        owner.ask("PATCH", f"/api/webhooks/{hook['id']}/", {"send_payload": False})
        ann.annotate(owner.tasks(bare)[0], choice("owl"))
        take("annotation_created_without_payload")

        two = owner.project(TWO, tasks[:1])
        owner.hook(two, url, "KEY")
        ann.annotate(owner.tasks(two)[0], choice("owl") + choice("calm", "loud", name="mood"))
        take("annotation_of_two_controls")
    return reply


def scrub(value: Any) -> Any:
    """Take out what is secret, or differs from one recording to the next for no good reason."""
    if isinstance(value, dict):
        return {k: "removed" if k in ("token", "unique_id") else scrub(v) for k, v in value.items()}
    return [scrub(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", type=Path, default=ROOT / ".label-studio")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Studio.running(options.environment, Path(folder)) as studio,
    ):
        reply = record(studio)
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for name, request in reply.items():
        text = json.dumps(scrub(request), indent=1, ensure_ascii=False)
        (FIXTURES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    say(f"{len(reply)} payloads of Label Studio {VERSION} were recorded.")


if __name__ == "__main__":
    main()

"""Downloads from a server on this machine that has what a source would have, or has not."""

import threading
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from labelquorum.errors import LabelError, LabelQuorumError
from labelquorum.evaluation.datasets import download, load
from labelquorum.evaluation.datasets.download import download_dataset
from labelquorum.evaluation.datasets.load import (
    Counts,
    DatasetInfo,
    check_dataset,
    list_datasets,
    read_dataset,
)

REPOSITORY = "/someone/some-data"
PATHS = ("data/two words/label.csv", "data/two words/truth.csv")
CONTENT = (b"item,worker,label\n1,a,0\n1,b,1\n2,a,1\n", b"item,truth\n1,0\n2,1\n")
LABELS, TRUTH = b"task,worker,label\n1,a,0\n1,b,1\n2,a,1\n", b"task,label\n1,0\n2,1\n"
INFO = DatasetInfo(
    "tiny",
    title="A tiny set",
    citation="none",
    licence="none",
    counts=Counts(2, 2, 3, 2, 2),
    family="tiny",
    repository=f"https://github.com{REPOSITORY}",
    files=PATHS,
    converter="csv_pair",
    labels_sha256=sha256(LABELS).hexdigest(),
    truth_sha256=sha256(TRUTH).hexdigest(),
)


class Source(ThreadingHTTPServer):
    """Serves the files of a source; `cut` leaves out the end of each."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        addresses = (f"{REPOSITORY}/raw/HEAD/{path}".replace(" ", "%20") for path in PATHS)
        self.files = dict(zip(addresses, CONTENT, strict=True))
        self.asked, self.cut = [], 0

    def get(self, folder, **options):
        host = f"http://127.0.0.1:{self.server_port}"
        return download_dataset("tiny", folder, host=host, **options)


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def source(monkeypatch):
    known = {**load.known_datasets(), "tiny": INFO}
    monkeypatch.setattr(load, "known_datasets", lambda: known)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Source() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_set_is_fetched_converted_and_put_in_place(source, tmp_path):
    reply = []
    place = source.get(tmp_path, progress=lambda *news: reply.append(news))
    assert place == tmp_path / "tiny"
    assert (place / "labels.csv").read_bytes() == LABELS
    assert (place / "truth.csv").read_bytes() == TRUTH
    assert reply == [(p, len(c), len(c)) for p, c in zip(PATHS, CONTENT, strict=True)]
    assert list_datasets(tmp_path) == ["tiny"]
    assert check_dataset(read_dataset("tiny", tmp_path)) == []


def test_what_is_there_and_right_is_not_fetched_again(source, tmp_path):
    source.get(tmp_path)
    source.asked.clear()
    assert source.get(tmp_path) == tmp_path / "tiny"
    assert source.asked == []


def test_what_is_there_and_differs_is_not_written_over(source, tmp_path):
    source.get(tmp_path)
    mine = LABELS + b"3,a,1\n"
    (tmp_path / "tiny" / "labels.csv").write_bytes(mine)
    with pytest.raises(LabelError, match=r"not written over.* 2 items were expected. Got 3"):
        source.get(tmp_path)
    assert (tmp_path / "tiny" / "labels.csv").read_bytes() == mine


def test_a_folder_that_holds_something_else_is_left_alone(source, tmp_path):
    (tmp_path / "tiny").mkdir()
    with pytest.raises(LabelError, match="is there already"):
        source.get(tmp_path)
    assert source.asked == []


@pytest.mark.parametrize("trouble", ["absent", "cut", "away"])
def test_a_network_that_says_no_leaves_nothing_behind(source, tmp_path, monkeypatch, trouble):
    if trouble == "absent":
        source.files.popitem()
    elif trouble == "cut":
        source.cut = 3
    else:
        monkeypatch.setattr(download, "urlopen", partial(refuse, error=OSError("no route")))
    with pytest.raises(LabelQuorumError, match=r"cannot be fetched \(.+\)\. Check the net") as said:
        source.get(tmp_path)
    assert str(said.value).endswith(f"into {tmp_path / 'tiny'} yourself.")
    assert list(tmp_path.iterdir()) == []


def refuse(*_, error, **__):
    raise error


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"item,worker,label\n1,a,0\n", "gave another labels.csv"),
        (b"item,worker,label\n1\n", "could not be read"),
        (b"", "gave another labels.csv"),
        (b'item,worker,label\n"' + b"1" * 200_000, "could not be read"),
        (b"item,worker,label\n1,a,\xff\n", "could not be read"),
    ],
    ids=["changed", "short", "empty", "endless", "bytes"],
)
def test_a_source_that_has_changed_leaves_nothing_behind(source, tmp_path, content, what):
    source.files[next(iter(source.files))] = content
    with pytest.raises(LabelQuorumError, match=f"{what}.* so nothing was written"):
        source.get(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_says_no_leaves_nothing_behind(source, tmp_path, monkeypatch):
    write = download.Path.write_bytes

    def fill(path, content):
        if path.name == "truth.csv":
            raise OSError("disk full")
        return write(path, content)

    monkeypatch.setattr(download.Path, "write_bytes", fill)
    with pytest.raises(OSError, match="disk full"):
        source.get(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_had_is_said_to_be_so(tmp_path):
    with pytest.raises(LabelError, match=r"age cannot be downloaded. Data not available"):
        download_dataset("age", tmp_path)
    with pytest.raises(LabelError, match=r"cifar10n cannot be downloaded. Put labels.csv"):
        download_dataset("cifar10n", tmp_path)
    with pytest.raises(LabelError, match=r"toy cannot be downloaded. It comes with"):
        download_dataset("toy", tmp_path)
    with pytest.raises(LabelError, match=r"no data set 'tre' in .* nearest are 'rte'"):
        download_dataset("tre", tmp_path)
    with pytest.raises(LabelError, match=r"we were given '.*nowhere'"):
        download_dataset("rte", tmp_path / "nowhere")

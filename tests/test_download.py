"""Downloads against a server on this machine: whole files only, resumed where they stopped, a line for each failure."""

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fewsure.core.progress import silenced
from fewsure.data.io.download import download
from fewsure.errors import FewsureError

CONTENT = bytes(range(256)) * 5000
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    content = CONTENT
    with_ranges = True
    cut_after: int | None = None
    """Bytes after which the connection ends, once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.zip"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.content
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.path != "/file.zip":
            self.send_error(404, "Not Found")
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.with_ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        cut, self.server.cut_after = self.server.cut_after, None
        self.wfile.write(body[:cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_and_compared(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "file.zip"
    download(server.url, target, CHECKSUM)
    assert target.read_bytes() == CONTENT
    assert files(target.parent) == ["file.zip"]
    assert "1,280/1,280" in capsys.readouterr().err
    with silenced():
        download(server.url, tmp_path / "unpublished.zip", None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("with_ranges", [True, False])
def test_an_interrupted_transfer_is_resumed(with_ranges: bool, server: Server, tmp_path: Path) -> None:
    server.with_ranges, server.cut_after = with_ranges, 700_000
    target = tmp_path / "file.zip"
    with pytest.raises(FewsureError, match=r"after 700,000 of 1,280,000 bytes.*; run the command again to go on"):
        download(server.url, target, CHECKSUM)
    assert files(tmp_path) == ["file.zip.partial"]
    download(server.url, target, CHECKSUM)
    assert target.read_bytes() == CONTENT
    assert files(tmp_path) == ["file.zip"]
    assert server.asked == [None, "bytes=700000-"]


@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_partial_file_with_all_of_it_is_finished_and_one_too_long_fetched_anew(
    more: bytes, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file.zip.partial").write_bytes(CONTENT + more)
    download(server.url, tmp_path / "file.zip", CHECKSUM)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT + more)}-"] + [None] * bool(more)


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FewsureError) as error:
        download(server.url, tmp_path / "file.zip", f"md5:{'0' * 32}")
    for part in (server.url, "0" * 32, hashlib.md5(CONTENT).hexdigest()):
        assert part in str(error.value)
    assert files(tmp_path) == []
    (tmp_path / "file.zip.partial").write_bytes(b"something else")
    with pytest.raises(FewsureError, match="published sha256"):
        download(server.url, tmp_path / "file.zip", CHECKSUM)
    download(server.url, tmp_path / "file.zip", CHECKSUM)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_a_file_or_a_server_that_is_not_there_is_one_line(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FewsureError, match=r"expected a file at .*nothing, but the server answered 404 Not Found"):
        download(server.url.replace("file.zip", "nothing"), tmp_path / "file.zip", None)
    closed = Server()
    closed.server_close()
    with pytest.raises(FewsureError, match=r"cannot be fetched \(.*refused\); run the command again"):
        download(closed.url, tmp_path / "file.zip", None)
    assert files(tmp_path) == []

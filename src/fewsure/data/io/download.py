"""Downloads that can be interrupted: they go on where they stopped, and a file appears only when it is whole."""

from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from fewsure.core.files import sync
from fewsure.core.progress import ProgressLine
from fewsure.data.io.checksums import file_checksum
from fewsure.errors import FewsureError
from fewsure.version import __version__

BLOCK = 2**18
TIMEOUT = 30.0
NOT_SATISFIABLE = 416


def download(url: str, target: Path, checksum: str | None) -> None:
    """Fetch a file, compare its checksum (`md5:…`, `sha256:…`, or None where none is published), then put it in place.

    The part that has arrived lies in `TARGET.partial`; the next call asks the server for the rest only. A server that
    cannot do that sends all of it again.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    try:
        _fetch(url, partial)
    except HTTPError as error:
        error.close()
        raise FewsureError(f"expected a file at {url}, but the server answered {error.code} {error.reason}") from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise FewsureError(
            f"{url} cannot be fetched ({reason}); run the command again to go on, or put the file at {target}"
        ) from error
    _compare(partial, url, checksum)
    sync(partial)
    partial.replace(target)


def _fetch(url: str, partial: Path) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    try:
        answer = _ask(url, start=have)
    except HTTPError as error:
        if error.code != NOT_SATISFIABLE:
            raise
        error.close()
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # all of it had arrived before
        answer = _ask(url, start=0)
    with answer:
        resumed = have > 0 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with partial.open("ab" if resumed else "wb") as file, ProgressLine(f"{url}, kB") as line:
            while block := answer.read1(BLOCK):
                file.write(block)
                done += len(block)
                line.show(done // 1000, (total or done) // 1000)
    if total is not None and done != total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _ask(url: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": f"fewsure/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    return cast(HTTPResponse, urlopen(Request(url, headers=headers), timeout=TIMEOUT))


def _compare(partial: Path, url: str, checksum: str | None) -> None:
    if checksum is None:
        return
    algorithm, _, expected = checksum.partition(":")
    found = file_checksum(partial, algorithm)
    if found != expected:
        partial.unlink()
        raise FewsureError(
            f"expected {url} to have the published {algorithm} {expected}, but got {found}; "
            "what was fetched is deleted, try again later"
        )

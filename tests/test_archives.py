"""A folder, a zip file and several zip files look the same, and nothing is extracted."""

import hashlib
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from fewsure.data.io import archives
from fewsure.data.io.checksums import file_checksum, verify
from fewsure.errors import FewsureError

from .data_files import write_tree, write_zip

MEMBERS = {"b/2.png": b"four", "a/1.png": b"one", "a/0.png": b"zero"}


def contents(folder: Path, stem: str = "train") -> list[tuple[str, bytes]]:
    with ExitStack() as stack:
        return [(member.path, member.read()) for member in archives.members(folder, stem, stack)]


def test_all_layouts_look_the_same(tmp_path: Path) -> None:
    write_tree(tmp_path / "folder" / "train", MEMBERS)
    write_zip(tmp_path / "zip" / "train.zip", MEMBERS)
    write_zip(tmp_path / "inside" / "train.zip", {f"train/{name}": content for name, content in MEMBERS.items()})
    write_zip(tmp_path / "zips" / "train_b.zip", {"a/0.png": b"zero", "b/2.png": b"four"})
    write_zip(tmp_path / "zips" / "train_a.zip", {"a/1.png": b"one"})
    before = sorted(tmp_path.rglob("*"))
    for layout in ("folder", "zip", "inside", "zips"):
        assert contents(tmp_path / layout) == sorted(MEMBERS.items())
    assert sorted(tmp_path.rglob("*")) == before
    assert contents(tmp_path) == []


def test_a_class_may_have_the_name_of_the_archive_and_what_systems_leave_is_skipped(tmp_path: Path) -> None:
    left = {"tram/.DS_Store": b"", "__MACOSX/train/._1.png": b""}
    write_zip(tmp_path / "train.zip", {"train/1.png": b"a train", "tram/1.png": b"a tram"} | left)
    assert [path for path, _ in contents(tmp_path)] == ["train/1.png", "tram/1.png"]


def test_a_truncated_zip_and_a_damaged_member_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.zip"
    write_zip(path, MEMBERS)
    whole = path.read_bytes()
    for kept in (0, 1, 40, 150, -1):
        path.write_bytes(whole[:kept])
        with pytest.raises(FewsureError, match=r"train\.zip is damaged or incomplete .*; fetch it again"):
            contents(tmp_path)
    path.write_bytes(whole.replace(b"four", b"five"))
    with pytest.raises(FewsureError, match=r"train\.zip: b/2\.png is damaged .*CRC"):
        contents(tmp_path)


def test_sizes_and_numbers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "train.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/bomb.png", bytes(archives.MAX_BYTES + 1))
    assert (tmp_path / "train.zip").stat().st_size < 100_000
    with pytest.raises(FewsureError, match=r"bomb\.png to have at most 67,108,864 bytes, but got 67,108,865"):
        contents(tmp_path)
    write_zip(tmp_path / "val.zip", MEMBERS)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    with pytest.raises(FewsureError, match=r"val\.zip to have at most 2 files"):
        contents(tmp_path, "val")


def test_a_file_in_two_archives_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "train_a.zip", {"a/1.png": b"one"})
    write_zip(tmp_path / "train_b.zip", {"a/1.png": b"another"})
    with pytest.raises(FewsureError, match=r"a/1\.png once, but got .*train_a\.zip.* and .*train_b\.zip"):
        contents(tmp_path)


def test_checksums_are_the_published_ones_of_sha_256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert file_checksum(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_checksum(tmp_path / "abc", "md5") == "900150983cd24fb0d6963f7d28e17f72"


@pytest.mark.parametrize("in_parent", [True, False])
def test_a_list_of_checksums_is_honoured(in_parent: bool, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_tree(folder, {"a.zip": b"right", "b.zip": b"not listed"})
    listed = tmp_path / "SHA256SUMS" if in_parent else folder / "SHA256SUMS"
    name = "set/a.zip" if in_parent else "a.zip"
    listed.write_text(f"{hashlib.sha256(b'right').hexdigest()}  {name}\n")
    files = [folder / "a.zip", folder / "b.zip"]
    assert verify(files, folder) == {"a.zip": True, "b.zip": False}
    (folder / "a.zip").write_bytes(b"wrong")
    with pytest.raises(FewsureError) as error:
        verify(files, folder)
    for part in ("a.zip", hashlib.sha256(b"right").hexdigest(), hashlib.sha256(b"wrong").hexdigest()):
        assert part in str(error.value)
    listed.write_text("\nnot a checksum\n")
    with pytest.raises(FewsureError, match=r"line 2 of .*SHA256SUMS"):
        verify([], folder)

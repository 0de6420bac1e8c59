"""Files are hashed in large parts."""

import hashlib

import pytest

from voxcpm_grpc.hub import digest as file_digest
from voxcpm_grpc.hub.digest import digest_file


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
@pytest.mark.parametrize("name", ["sha256", "sha1"])
def test_the_hash_is_that_of_the_whole_file(tmp_path, monkeypatch, size, name):
    monkeypatch.setattr(file_digest, "PART", 100)
    monkeypatch.setattr(file_digest, "LEAST_PART", 100)
    content = bytes(i % 251 for i in range(size))
    path = tmp_path / "file"
    path.write_bytes(content)
    parts: list[int] = []
    digest = digest_file(path, name, b"begin", parts.append)
    assert digest.hexdigest() == hashlib.new(name, b"begin" + content).hexdigest()
    assert parts == [100] * (size // 100) + [size % 100] * bool(size % 100)


def test_a_file_that_grows_is_read_to_its_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12")

    def grow(_: int) -> None:
        if path.stat().st_size < 8:
            with path.open("ab") as file:
                file.write(b"34")

    assert digest_file(path, on_bytes=grow).digest() == hashlib.sha256(b"12343434").digest()


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        digest_file(tmp_path / "file")

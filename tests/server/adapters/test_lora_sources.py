"""Adapters come from allowed sources only, and whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import pytest
from support.engines.lora_adapters import (
    ADAPTER,
    CONFIG,
    LARGE_CONFIG,
    LEGACY,
    OTHER,
    SUM,
    WEIGHTS,
    content,
    folder,
    left,
    refusal,
)

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, StartupError
from voxcpm_server.adapters.sources import MAX_WEIGHTS_BYTES, LoraSources

# What is allowed


@pytest.mark.parametrize("source", ["/srv/adapters/anna", "hf://org/anna", "s3://bucket/anna", "memory://anna"])
async def test_without_roots_every_source_is_refused_with_the_setting(allow, source):
    error = await refusal(allow(), source)
    assert isinstance(error, FailedPrecondition)
    assert source in error.message and "admin.lora_sources is empty" in error.message
    assert error.field == "source"


@pytest.mark.parametrize(
    ("root", "source"),
    [
        ("s3://bucket/a", "s3://bucket/ab"),
        ("s3://bucket/a", "s3://bucket"),
        ("s3://bucket/a", "s3://bucketb/a"),
        ("s3://bucket/a", "s3://other/a/b"),
        ("s3://bucket/a", "gs://bucket/a/b"),
        ("s3://bucket/a", "S3://bucket/a/b"),
        ("https://host/a", "https://host:8443/a/b"),
        ("https://host/a", "http://host/a/b"),
        ("s3://bucket/a", "memory://a"),
        ("s3://bucket/a", "file:///bucket/a"),
        ("s3://bucket/a", "local:///bucket/a"),
        ("s3://bucket/a", "hf://bucket/a"),
        ("s3://bucket/a", "bucket/a"),
        ("memory://adapters", "memory://adaptersb/anna"),
        ("hf://org/", "hf://organisation/anna"),
        ("hf://org/", "hf://another/org"),
        ("hf://org/anna", "hf://org/annabel"),
        ("hf://org/anna", "hf://org/ann@main"),
        ("hf://org/anna", "/org/anna"),
        ("hf://", "s3://org/anna"),
    ],
)
async def test_a_source_beside_a_root_is_refused_with_all_roots(allow, root, source):
    error = await refusal(allow(root, "hf://friend/"), source)
    assert isinstance(error, FailedPrecondition)
    for part in (source, f"{root}, hf://friend/", "admin.lora_sources"):
        assert part in error.message
    assert error.field == "source"


async def test_a_refusal_lists_ten_roots(allow):
    error = await refusal(allow(*(f"/srv/{number}" for number in range(12))), "hf://org/anna")
    assert "/srv/9 and 2 more" in error.message


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("", "empty"),
        ("memory://adapters/a\nb", "control characters"),
        ("memory://adapters/\0", "control characters"),
        ("memory://adapters/" + "a" * 2048, "has 2,066 characters and at most 2,048"),
        ("simplecache::memory://adapters/anna", "chain"),
        ("memory://adapters/anna::s3://bucket", "chain"),
        ("memory://adapters/../anna", "'..'"),
        ("memory://adapters/%2e%2E/anna", "'%2e%2E'"),
        ("memory://adapters/a%2fb", "'a%2fb'"),
        ("memory://adapters/a\\..\\b", "segment"),
        ("memory://adapters//anna", "''"),
        ("memory:///adapters/anna", "''"),
        ("memory://adapters/./anna", "'.'"),
        ("memory://adapters/anna?versionId=1", "query"),
        ("memory://adapters/anna#1", "fragment"),
        ("https://host/a?token=secret", "query"),
        ("https://user:secret@host/a/b", "user name or a password"),
        ("https://secret@host/a/b", "user name or a password"),
        ("file://adapters", "write file:///PATH"),
        ("hf://anna", "hf://OWNER/NAME"),
        ("hf://org/anna/files", "hf://OWNER/NAME"),
        ("hf://org/anna@", "hf://OWNER/NAME"),
        ("hf://org/anna@a/../../b", "hf://OWNER/NAME"),
        ("hf://org/../anna", "hf://OWNER/NAME"),
        ("hf://org/an--na", "hf://OWNER/NAME"),
    ],
)
async def test_a_malformed_source_is_refused(allow, stored, cache, source, fault):
    stored("memory://anna", ADAPTER)
    stored("memory://adapters/anna", ADAPTER)
    error = await refusal(allow("memory://adapters", "https://host/a", "hf://"), source)
    assert isinstance(error, InvalidRequest)
    assert fault in error.message
    assert error.field == "source"
    assert left(cache) == []


@pytest.mark.parametrize("sha256", ["", SUM[:-1], SUM + "0", "g" * 64, f"{SUM}\n"])
async def test_a_malformed_sum_is_refused(allow, tmp_path, sha256):
    error = await refusal(allow(tmp_path), folder(tmp_path / "anna"), sha256)
    assert isinstance(error, InvalidRequest)
    assert error.field == "sha256"
    assert f"{len(sha256)} characters and must be 64" in error.message


@pytest.mark.parametrize(
    "root",
    [
        "",
        "hf://org",
        "hf://org/anna@main",
        "hf://org/anna/files",
        "hf://../",
        "s3://",
        "s3://bucket/../other",
        "s3://bucket?a=b",
        "simplecache::s3://bucket",
        "unknown-scheme://bucket",
        "https://user:secret@host/a",
        "file://adapters",
    ],
)
def test_a_root_that_is_not_valid_stops_the_start(allow, root):
    with pytest.raises(StartupError, match=r"admin\.lora_sources has") as raised:
        allow("/srv/adapters", root)
    assert "secret" not in str(raised.value)


# Directories


async def test_a_directory_below_a_root_is_used_in_place(allow, tmp_path, cache):
    anna = folder(tmp_path / "roots/ours/anna")
    for root in (tmp_path / "roots", anna, f"{tmp_path}/roots/"):
        assert await allow(root).fetch(str(anna)) == anna
    assert await allow(tmp_path / "roots").fetch(f"{tmp_path}/roots/other/../ours/anna/", SUM.upper()) == anna
    assert left(cache) == []


async def test_a_root_may_be_a_link(allow, tmp_path):
    anna = folder(tmp_path / "disk/anna")
    (tmp_path / "adapters").symlink_to(tmp_path / "disk")
    assert await allow(tmp_path / "adapters").fetch(f"{tmp_path}/adapters/anna") == anna


@pytest.mark.parametrize("name", ["rootsb/anna", "roots/../private/anna", "roots/link", "roots/link/anna", "nowhere"])
async def test_a_directory_outside_is_refused_if_it_exists_or_not(allow, tmp_path, name):
    folder(tmp_path / "roots/anna")
    folder(tmp_path / "rootsb/anna")
    folder(tmp_path / "private/anna")
    (tmp_path / "roots/link").symlink_to(tmp_path / "private")
    error = await refusal(allow(tmp_path / "roots"), f"{tmp_path}/{name}")
    assert isinstance(error, FailedPrecondition)
    assert f"{tmp_path}/{name} is not allowed" in error.message
    assert "private" not in error.message or "private" in name  # the target of a link


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
async def test_a_file_that_links_outside_is_refused(allow, tmp_path, name):
    anna, secret = folder(tmp_path / "roots/anna"), tmp_path / "elsewhere"
    (anna / name).rename(secret)
    (anna / name).symlink_to(secret)
    error = await refusal(allow(tmp_path / "roots"), anna)
    assert isinstance(error, FailedPrecondition)
    assert f"{name} of {anna} is a link" in error.message
    assert str(secret) not in error.message
    secret.rename(tmp_path / "roots/blob")
    (anna / name).unlink()
    (anna / name).symlink_to("../blob")
    assert await allow(tmp_path / "roots").fetch(str(anna), SUM) == anna


async def test_links_in_a_circle_are_refused(allow, tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert isinstance(await refusal(allow(tmp_path), tmp_path / "one"), InvalidRequest)


async def test_a_url_of_a_directory_needs_a_root_of_its_scheme(allow, tmp_path):
    anna = folder(tmp_path / "roots/anna")
    (tmp_path / "roots/link").symlink_to(tmp_path)
    for scheme in ("file", "local"):
        sources = allow(f"{scheme}://{tmp_path}/roots")
        assert await sources.fetch(f"{scheme}://{anna}") == anna
        assert isinstance(await refusal(sources, anna), FailedPrecondition)
        assert isinstance(await refusal(sources, f"{scheme}://{tmp_path}/roots/link"), FailedPrecondition)
        assert isinstance(await refusal(allow(tmp_path), f"{scheme}://{anna}"), FailedPrecondition)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_directory_without_permission_is_refused(allow, tmp_path):
    anna = folder(tmp_path / "closed/anna")
    anna.parent.chmod(0)
    try:
        error = await refusal(allow(tmp_path), anna)
    finally:
        anna.parent.chmod(0o700)
    assert isinstance(error, FailedPrecondition)
    assert "permission" in error.message


# The files of every kind of source


@pytest.fixture(params=["directory", "memory"])
def place(request, allow, stored, tmp_path):
    """Stores an adapter in a source of each kind; returns its sources and its name."""

    def put(files: Mapping[str, bytes]) -> tuple[LoraSources, str]:
        if request.param == "directory":
            return allow(tmp_path / "ours"), str(folder(tmp_path / "ours/anna", files))
        stored("memory://ours/anna", {"notes.txt": b"mine", **files})
        return allow("memory://ours"), "memory://ours/anna"

    return put


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        ({WEIGHTS: b"x"}, ["has no lora_config.json; "]),
        ({CONFIG: b"{}"}, ["has no lora_weights.safetensors; "]),
        ({"notes.txt": b"x"}, ["no lora_config.json and no lora_weights.safetensors", "that the training wrote"]),
        ({CONFIG: b"{}", LEGACY: b"x"}, ["only lora_weights.ckpt", "pickle", "with safetensors"]),
        (LARGE_CONFIG, ["lora_config.json", "65,538 bytes and at most 65,536"]),
    ],
)
async def test_files_that_are_no_adapter_are_refused(place, cache, files, faults):
    sources, source = place(files)
    error = await refusal(sources, source)
    assert isinstance(error, InvalidRequest)
    for fault in [source, *faults]:
        assert fault in error.message
    assert left(cache) == []


async def test_a_legacy_file_beside_the_weights_is_ignored(place):
    sources, source = place({**ADAPTER, LEGACY: b"pickle"})
    found = await sources.fetch(source)
    assert content(found).items() >= ADAPTER.items()


async def test_a_wrong_sum_is_refused_with_both_and_nothing_is_kept(place, cache):
    sources, source = place(OTHER)
    error = await refusal(sources, source, SUM)
    assert isinstance(error, InvalidRequest)
    assert error.field == "sha256"
    assert hashlib.sha256(OTHER[WEIGHTS]).hexdigest() in error.message and SUM in error.message
    assert left(cache) == []


async def test_weights_over_four_gibibytes_are_refused(allow, tmp_path):
    anna = folder(tmp_path / "anna")
    os.truncate(anna / WEIGHTS, MAX_WEIGHTS_BYTES + 1)  # a sparse file
    error = await refusal(allow(tmp_path), anna)
    assert isinstance(error, InvalidRequest)
    assert "4,294,967,297 bytes and at most 4,294,967,296" in error.message


async def test_names_of_other_things_are_refused(allow, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for name in ("file", "nowhere"):
        error = await refusal(allow(tmp_path), tmp_path / name)
        assert isinstance(error, InvalidRequest)
        assert "is not a directory" in error.message
    (folder(tmp_path / "anna", {CONFIG: b"{}"}) / WEIGHTS).mkdir()
    assert "has no lora_weights.safetensors" in (await refusal(allow(tmp_path), tmp_path / "anna")).message

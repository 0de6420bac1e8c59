"""The number of fronts that a server chooses, and the reason in its log."""

from __future__ import annotations

import tempfile

import pytest

from voxcpm_grpc.settings.models import models, on_all_gpus
from voxcpm_grpc.settings.sources import load
from voxcpm_server.front_count import FrontCount, front_count


def chosen(*flags: str, gpus: int = 0, cores: float = 16) -> FrontCount:
    settings = on_all_gpus(load(flags, {}), gpus)
    return front_count(settings, models(settings), gpus=gpus, cores=cores)


@pytest.mark.parametrize(
    ("flags", "gpus", "cores", "count", "reason"),
    [
        ((), 0, 16, 1, "which is enough for 1 engine on the CPU"),
        (("--devices", "cpu:4"), 0, 64, 1, "which is enough for 4 engines on the CPU"),
        (("--devices", "cpu"), 8, 64, 1, "which is enough for 1 engine on the CPU"),
        ((), 1, 16, 4, "4 for each of 1 GPU; 16 cores and 1 engine"),
        ((), 2, 16, 7, "half of 14 cores that 2 engines leave"),
        ((), 2, 32, 8, "4 for each of 2 GPUs; 32 cores and 2 engines"),
        (("--devices", "0,1,2,3"), 0, 32, 14, "half of 28 cores that 4 engines leave"),
        ((), 4, 16, 8, "2 for each of 4 GPUs; 16 cores and 4 engines"),
        ((), 8, 208, 32, "4 for each of 8 GPUs; 208 cores and 8 engines"),
        (("--engine.device", "cuda:1"), 0, 16, 4, "4 for each of 1 GPU; 16 cores and 1 engine"),
        ((), 2, 8, 4, "2 for each of 2 GPUs; 8 cores and 2 engines"),
        ((), 1, 8, 3, "half of 7 cores that 1 engine leaves"),
        ((), 2, 5.5, 3, "as many as 5.5 cores and 2 engines leave room for, of 4 for 2 GPUs"),
        ((), 1, 4, 2, "2 for each of 1 GPU; 4 cores and 1 engine"),
        ((), 1, 2, 1, "as many as 2 cores and 1 engine leave room for, of 2 for 1 GPU"),
        ((), 1, 0.5, 1, "as many as 0.5 cores and 1 engine leave room for, of 2 for 1 GPU"),
        ((), 4, 2, 1, "as many as 2 cores and 4 engines leave room for, of 8 for 4 GPUs"),
        (("--model", "a=x@0;b=y@0"), 1, 16, 4, "4 for each of 1 GPU; 16 cores and 2 engines"),
        (("--model", "a=x;b=y"), 2, 16, 6, "half of 12 cores that 4 engines leave"),
        (("--model", "a=x@0,1;b=y@cpu"), 2, 16, 6, "half of 13 cores that 3 engines leave"),
        (("--fronts", "3"), 0, 2, 3, "as fronts says"),
        (("--fronts", "1"), 8, 64, 1, "as fronts says"),
        (("--listen", "unix:/run/voxcpm.sock"), 2, 32, 1, "because a Unix socket belongs to one process"),
        (("--front-ports", "consecutive"), 2, 32, 1, "because with consecutive ports their number must be known"),
        (("--voices.url", "memory://"), 2, 32, 1, "because voices in memory (voices.url) belong to one process"),
        (("--pool", "ray"), 2, 32, 1, "because fronts share the engines of their host, and those of a Ray cluster are"),
    ],
)
def test_the_number_follows_from_engines_cores_and_settings(flags, gpus, cores, count, reason):
    found = chosen(*flags, gpus=gpus, cores=cores)
    assert found.count == count
    assert found.reason.startswith(reason)


def test_a_system_that_does_not_share_ports_has_one_front(monkeypatch):
    monkeypatch.delattr("socket.SO_REUSEPORT")
    assert chosen(gpus=2) == FrontCount(1, "because this system does not let processes share a port")


def test_a_temporary_folder_whose_path_is_too_long_for_sockets_has_one_front(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "d" * 100)
    found = chosen(gpus=2)
    assert found.count == 1
    assert found.reason.endswith("set TMPDIR to a shorter one")

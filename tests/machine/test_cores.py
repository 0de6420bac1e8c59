"""The cores of a process, with cgroups that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from voxcpm_grpc.machine.cores import available_cores

HOST = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000"}, HOST),
        ("0::/", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/a.slice/b", {"a.slice/cpu.max": "30000 100000", "a.slice/b/cpu.max": "max 100000"}, 0.3),
        ("0::/a/b", {"cpu.max": "70000 100000"}, 0.7),
        ("4:cpu,cpuacct:/x\n3:memory:/", {"cpu,cpuacct/x/cpu.cfs_quota_us": "25000"}, 0.25),
        ("4:cpu:/kubepods/pod", {"cpu/cpu.cfs_quota_us": "10000"}, 0.1),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1"}, HOST),
        ("4:cpuset:/", {"cpuset/cpu.cfs_quota_us": "10000"}, HOST),
        ("", {}, HOST),
    ],
)
def test_the_cores_are_those_of_the_affinity_and_of_the_cgroups(tmp_path: Path, lines, files, expected):
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(lines)
    for name, text in files.items():
        file = groups / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if name.endswith("quota_us"):
            file.with_name("cpu.cfs_period_us").write_text("100000")
    assert available_cores(groups, own) == expected


def test_without_cgroups_the_affinity_counts(tmp_path: Path):
    assert available_cores(tmp_path, tmp_path / "none") == HOST

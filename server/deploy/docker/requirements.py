"""Prints the packages that an image installs before this project, so that a change of the code does not install them
again: the base requirements and some extras of pyproject.toml, without torch and without the bundled voice, which the
image builds.

    python requirements.py pyproject.toml server jwt > requirements.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

APART = {"torch", "voxcpm-grpc-demo"}

project = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))["project"]
extras = project["optional-dependencies"]
if unknown := set(sys.argv[2:]) - set(extras):
    sys.exit(f"no such extra: {', '.join(sorted(unknown))}; there are {', '.join(sorted(extras))}")
required = [*project["dependencies"], *(line for extra in sys.argv[2:] for line in extras[extra])]
for line in sorted(set(required)):
    if re.split(r"[\s\[<>=!~;]", line)[0] not in APART:
        print(line)

"""`voxcpm-grpc` with a server that draws 0 for every stream without a seed: its speech is the same in each run."""

from __future__ import annotations

from voxcpm_client.cli import main
from voxcpm_server.wire import generate

if __name__ == "__main__":
    generate.MAX_DRAWN_SEED = 0
    main(prog_name="voxcpm-grpc")

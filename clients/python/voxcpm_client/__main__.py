"""`python -m voxcpm_client` is `voxcpm-grpc`."""

from voxcpm_client.cli import main

main(prog_name="voxcpm-grpc")

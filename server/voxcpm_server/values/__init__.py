"""Requests and results as frozen values. No protobuf comes in."""

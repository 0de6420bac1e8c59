"""Requests for speech and their answers, whatever the route."""

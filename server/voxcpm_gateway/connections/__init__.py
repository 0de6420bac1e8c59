"""Connections and heads of HTTP, before a request exists."""

"""Protobuf messages to values and back. No other package reads or writes the fields of messages."""

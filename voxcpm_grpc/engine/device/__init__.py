"""Copies, graphs and caches on the device of an engine. Nothing here schedules."""

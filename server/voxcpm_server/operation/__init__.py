"""The view of operators on a server: metrics, the last minute, its load, the other fronts. No service comes in."""

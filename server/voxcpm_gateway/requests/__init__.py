"""The checks that every HTTP request passes: bodies, fields, origins, credentials, log. No route comes in."""

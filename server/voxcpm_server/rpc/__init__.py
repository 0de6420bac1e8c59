"""One RPC, whatever its service: its sender, admission, trace, delivery. No service comes in."""

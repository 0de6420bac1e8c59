"""Commands that run a server, or change a running one."""

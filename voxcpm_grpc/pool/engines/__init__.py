"""The engines behind a pool, as processes of this host: started, supervised, restarted and reached."""

"""Wyoming, Home Assistant's protocol for speech: a service that calls a VoxCPM server. Needs the extra `wyoming`."""

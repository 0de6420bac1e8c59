"""A Generate stream: text in, segments to engines, audio out. No message of gRPC is read here."""

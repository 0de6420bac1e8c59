"""One engine: it runs the requests of one model on one device. Neither families of models nor gRPC come in."""

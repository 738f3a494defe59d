"""What training jobs send: collectives over real sockets."""

"""What training jobs send: collectives over real sockets, with compute phases by time and checked sums."""

"""``rdma`` over p2pstore: trainers that call ``P2PClient.get`` read what the engine writes, and vice versa."""

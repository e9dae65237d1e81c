"""How bytes come from a producer to a reader: shared memory, TCP, RDMA."""

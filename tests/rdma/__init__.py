"""Transport ``rdma`` over real RDMA devices; docs/rdma.md says where these tests run."""

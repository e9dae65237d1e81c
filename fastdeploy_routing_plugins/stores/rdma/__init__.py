"""The `rdma` store: parts stay in the memory of the process that put them; readers pull them."""

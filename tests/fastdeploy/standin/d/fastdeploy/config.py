from fastdeploy.settings import ReplayConfig


class RoutingReplayConfig(ReplayConfig):
    def __init__(self, args) -> None:
        self.enable_routing_replay = False
        self.routing_store_type = "local"
        self.local_store_dir = "./routing_replay_output"
        self.rdma_store_server = ""
        self.only_last_turn = False
        self.use_fused_put = False
        self.take(args)

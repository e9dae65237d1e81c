from fastdeploy.settings import ReplayConfig


class RoutingReplayConfig(ReplayConfig):
    def __init__(self, args) -> None:
        self.enable_routing_replay = False
        self.routing_store_type = "local"
        self.local_store_dir = "./routing_replay_output"
        self.rdma_store_server = ""
        self.only_last_turn = False
        self.use_fused_put = False
        self.debug_mode = False
        self.routing_dtype = ""
        self.num_moe_layers = 0
        self.moe_top_k = 0
        self.take(args)

    def postprocess(self, model_config) -> None:
        self.num_moe_layers = model_config.num_hidden_layers - model_config.moe_layer_start_index
        self.moe_top_k = model_config.moe_k
        total = model_config.moe_num_experts + model_config.moe_num_shared_experts + 1
        self.routing_dtype = "uint8" if total <= 255 else "uint16" if total <= 65_535 else "uint32"

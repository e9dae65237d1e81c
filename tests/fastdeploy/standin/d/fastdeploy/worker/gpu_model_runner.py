from fastdeploy.model_executor.layers.moe.routing_indices_cache import RoutingReplayManager


class GPUModelRunner:
    def __init__(self, fd_config):
        self.fd_config = fd_config
        self.routing_replay_manager: RoutingReplayManager = None

    def insert_tasks_v1(self, req_dicts, num_running_requests: int = None):
        for request in req_dicts:
            self.routing_replay_manager.register_request(batch_id=request.idx, request_id=request.request_id)

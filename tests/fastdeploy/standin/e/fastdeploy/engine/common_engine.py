from fastdeploy.output.token_processor import TokenProcessor


class EngineService:
    def __init__(self, cfg, start_queue=True):
        self.cfg = cfg
        self.token_processor = TokenProcessor(cfg)

    def start(self): ...

    def _init_routing_cache_manager(self, num_gpu_blocks: int):
        from fastdeploy.cache_manager.routing_cache_manager import RoutingCacheManager

        self.routing_cache_manager = RoutingCacheManager(fd_config=self.cfg, num_gpu_blocks=num_gpu_blocks)
        self.token_processor.routing_cache_manager = self.routing_cache_manager

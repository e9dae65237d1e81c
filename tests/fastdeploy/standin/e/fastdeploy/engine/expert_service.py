from types import SimpleNamespace

from fastdeploy.engine.common_engine import EngineService


class ExpertService:
    """The engine of a data-parallel rank from 1 on."""

    def __init__(self, cfg, local_data_parallel_id, start_queue=True):
        self.cfg = cfg
        self.do_profile = cfg.cache_config.num_gpu_blocks_override is None
        self.engine = EngineService(cfg, start_queue)

    def start(self, ipc_signal_suffix, local_data_parallel_id):
        self.engine.start()
        if self.do_profile:
            self.get_profile_block_num_signal = SimpleNamespace(value=[self.cfg.cache_config.profiled_blocks])
            self.reset_kvcache_blocks()
        return True

    def reset_kvcache_blocks(self):
        self.do_profile = 0

    def _exit_sub_services(self): ...

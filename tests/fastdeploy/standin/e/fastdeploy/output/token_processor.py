import logging

from fastdeploy.engine.request import Request


class TokenProcessor:
    def __init__(self, cfg):
        self.cfg = cfg
        self.routing_cache_manager = None

    def _finalize_routing(self, task_id, task: Request, result, is_prefill=False):
        if not self.cfg.routing_replay_config.enable_routing_replay or result is None:
            return
        try:
            if result.finished and self.routing_cache_manager is not None:
                store_type = self.cfg.routing_replay_config.routing_store_type
                seq_len = task.prompt_token_ids_len + len(task.output_token_ids)
                if task.output_token_ids and task.output_token_ids[-1] in task.eos_token_ids:
                    seq_len -= 1
                if store_type == "response":
                    manager = self.routing_cache_manager
                    result.routing_data = manager.gather_routing_for_request(task.block_tables, seq_len)
                else:
                    self.routing_cache_manager.on_request_finished(
                        request_id=task_id, block_table=task.block_tables, seq_len=seq_len
                    )
        except Exception as e:
            logging.warning(f"[R3] Failed to finalize routing for {task_id}: {e}")

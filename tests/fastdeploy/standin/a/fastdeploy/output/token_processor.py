from fastdeploy.engine.request import Request


class TokenProcessor:
    def _recycle_resources(self, task_id: str, index: int, task: Request, result=None, is_prefill=False): ...

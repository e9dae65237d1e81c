from fastdeploy.output.token_processor import TokenProcessor

__all__ = ["TokenProcessor"]

from fastdeploy.served import Request, RequestMetrics

__all__ = ["Request", "RequestMetrics"]

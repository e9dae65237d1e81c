from dataclasses import dataclass

from fastdeploy.config import RoutingReplayConfig
from fastdeploy.settings import Arguments


@dataclass
class EngineArgs(Arguments):
    def create_routing_repaly_config(self) -> RoutingReplayConfig:
        return RoutingReplayConfig(self.merged())

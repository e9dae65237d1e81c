"""Stand-in: what the configuration classes of all families have in common."""

import json
from dataclasses import asdict, dataclass
from typing import Any


class ReplayConfig:
    def take(self, args):
        if args is not None:
            for key, value in args.items():
                if hasattr(self, key) and value != "None":
                    setattr(self, key, value)

    def to_json_string(self):
        return json.dumps(dict(vars(self)))


@dataclass
class Arguments:
    """The engine's arguments; ``model`` stands for the many others."""

    model: str = "stand-in"
    routing_replay_config: dict[str, Any] | None = None

    def merged(self):
        return {**asdict(self), **(self.routing_replay_config or {})}

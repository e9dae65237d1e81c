from fastdeploy.second_store import (
    RoutingStoreBase,
    RoutingStoreLocal,
    StoreProcess,
    StoreWrapper,
    get_routing_store,
)

__all__ = ["RoutingStoreBase", "RoutingStoreLocal", "StoreProcess", "StoreWrapper", "get_routing_store"]

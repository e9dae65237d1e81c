"""An engine process that does what it is told, line by line, with the FastDeploy on its path. Run by path.

As in FastDeploy, the process that is started imports ``fastdeploy`` and makes the engine in a child, by fork or spawn.
Commands come as JSON lines on stdin; answers go, as JSON lines, to the descriptor that is given.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from typing import Any


def start(state: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Makes the engine."""
    from settings import Settings

    if state["family"] == "e":
        from driver_e import Engine
    else:
        from driver_d import Engine

    state["settings"] = Settings(**settings)
    state["engine"] = Engine(state["settings"])
    return {"pid": os.getpid()}


def finish(state: dict[str, Any], requests: list[dict[str, Any]], pause: float = 0.0) -> dict[str, Any]:
    """Lets requests end, one after the other."""
    took, attached = [], []
    for request in requests:
        routing = state["settings"].routing(request["seed"], request["tokens"])
        arrival = request.get("arrival") or time.time()
        ns, reply = state["engine"].finish(request["id"], routing, arrival)
        took.append(ns)
        attached.append(None if reply is None else bool((reply == routing).all() and reply.shape == routing.shape))
        if pause:
            time.sleep(pause)
    return {"ns": took, "attached": attached}


def finish_forever(state: dict[str, Any], prefix: str, tokens: int, path: str) -> dict[str, Any]:
    """Lets requests end until the process is killed, and notes each in a file once its hand-over has returned."""
    from settings import request_id

    with open(path, "a", encoding="utf-8") as file:
        for seed in range(1_000_000):
            routing = state["settings"].routing(seed, tokens)
            state["engine"].finish(request_id(f"{prefix}:{seed}:0:0"), routing, time.time())
            file.write(f"{seed}\n")
            file.flush()
    return {}


def finish_out_of_range(state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Lets a request end whose routing holds an id that no expert has."""
    routing = state["settings"].routing(request["seed"], request["tokens"])
    routing[-1, -1, 0] = 200
    state["engine"].finish(request["id"], routing, time.time())
    return {}


def measure(state: dict[str, Any], prefix: str, tokens: int, count: int, pause: float) -> dict[str, Any]:
    """Lets requests of one size end, and says how long each held the engine up."""
    from settings import request_id

    engine = state["engine"]
    blocks = engine.fill(state["settings"].routing(1, tokens))
    took = []
    for number in range(count):
        end = time.monotonic() + pause
        while time.monotonic() < end:  # steps of other requests: an engine's thread is never idle for long
            time.sleep(0.005)
            json.dumps([{"request_id": f"request-{n}", "token_ids": [n]} for n in range(64)])
        took.append(engine.finish_filled(request_id(f"{prefix}-{number}:0:0:0"), blocks, tokens))
    return {"ns": took}


def profile(state: dict[str, Any], prefix: str, tokens: int, count: int, pause: float) -> dict[str, Any]:
    """Does the same under a profiler, and returns its table."""
    import cProfile
    import io
    import pstats

    with cProfile.Profile() as profiler:
        measure(state, prefix, tokens, count, pause)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(12)
    return {"table": text.getvalue()}


def load_pdtensor(state: dict[str, Any], path: str, seed: int, tokens: int, layer: int | None) -> dict[str, Any]:
    """Loads a file as today's trainers do, and compares it."""
    import paddle

    loaded = paddle.load(path)
    expected = state["settings"].routing(seed, tokens).transpose(1, 0, 2)
    expected = expected if layer is None else expected[layer]
    array = loaded.numpy() if hasattr(loaded, "numpy") else loaded
    return {"same": array.shape == expected.shape and bool((array == expected).all()), "shape": list(array.shape)}


def attach(state: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Attaches to another engine's host buffer, as a worker does."""
    from fastdeploy.cache_manager.routing_cache_manager import RoutingHostBufferView
    from settings import Settings

    s = Settings(**settings)
    state["view"] = RoutingHostBufferView(
        (s.blocks * s.block_size, s.layers, s.top_k), "uint8", f"routing_host_buffer.{s.port}"
    )
    return {}


def look(state: dict[str, Any]) -> dict[str, Any]:
    """Says what is loaded, and where the engine's shared memory lies."""
    import fastdeploy

    manager = getattr(state.get("engine"), "manager", None)
    ours = [name for name in sys.modules if name.startswith("fastdeploy_routing_plugins")]
    wrapper = getattr(manager, "_store_wrapper", None)
    return {
        "fastdeploy": fastdeploy.__file__,
        "ours": len(ours),
        "manager": manager is not None,
        "wrapper": None if wrapper is None else f"{type(wrapper).__module__}.{type(wrapper).__qualname__}",
        "dtype": getattr(manager, "routing_dtype", None),
    }


def import_patched(state: dict[str, Any]) -> dict[str, Any]:
    """Imports every module that is to be patched, as engine and worker do, and says which this FastDeploy has."""
    import importlib

    from fastdeploy_routing_plugins.hosts.fastdeploy.patching import WATCHED

    return {name: _wrapped(importlib.import_module(name)) for name in sorted(WATCHED) if _there(name)}


def _there(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is its package
        return False


def _wrapped(module: Any) -> list[str]:
    """Returns the names in a module, and in its classes, that are ours or wrap FastDeploy's own."""
    found = []
    for name, value in vars(module).items():
        home = str(getattr(value, "__module__", ""))
        if home.startswith("fastdeploy_routing_plugins"):
            found.append(name)
        elif isinstance(value, type) and home == module.__name__:
            found += [f"{name}.{key}" for key, one in vars(value).items() if hasattr(one, "__wrapped__")]
    return sorted(found)


def configure(state: dict[str, Any], replay: dict[str, Any]) -> dict[str, Any]:
    """Reads ``--routing-replay-config`` as the engine's command line does, and passes it on as a worker gets it."""
    from fastdeploy.config import RoutingReplayConfig
    from fastdeploy.engine.args_utils import EngineArgs

    made = EngineArgs(model="a-model", routing_replay_config=replay).create_routing_repaly_config()
    line = made.to_json_string()
    return {"line": line, "worker": vars(RoutingReplayConfig(json.loads(line)))}


def receive(state: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Makes a request of what the server says, hands it to another engine, and there to a worker.

    Returns:
        What is known of its rollout, in each place.
    """
    import pickle

    import fastdeploy.engine.common_engine  # noqa: F401 - where requests come in
    from fastdeploy.engine.request import Request

    from fastdeploy_routing_plugins.hosts.fastdeploy.requests import split, user_of

    first = Request.from_dict({"prompt_token_ids": [5], "prompt_token_ids_len": 1, **said})
    second = Request.from_dict(first.to_dict())
    third = pickle.loads(pickle.dumps(second))
    return {"rollouts": [split(one.request_id, user_of(one))[0] for one in (first, second, third)]}


def reset(state: dict[str, Any]) -> dict[str, Any]:
    """Clears the engine's buffers, as between rounds of training."""
    manager = state["engine"].manager
    (manager.reset if hasattr(manager, "reset") else manager.clear_all_request)()
    return {}


def clear_store(state: dict[str, Any]) -> dict[str, Any]:
    """Has the store cleared."""
    state["engine"].manager._store_wrapper.submit_clear_store_task()
    return {}


def close(state: dict[str, Any]) -> dict[str, Any]:
    """Closes the engine; the process then ends by itself."""
    state["engine"].close()
    return {}


COMMANDS = {
    call.__name__: call
    for call in (
        start,
        finish,
        finish_forever,
        finish_out_of_range,
        measure,
        profile,
        import_patched,
        configure,
        receive,
        load_pdtensor,
        attach,
        look,
        reset,
        clear_store,
        close,
    )
}


def serve(commands: Any, family: str) -> None:
    """Obeys commands until the pipe ends; runs in the child."""
    state: dict[str, Any] = {"family": family}
    while True:
        try:
            order = commands.recv()
        except EOFError:
            return
        call = order.pop("call")
        if call == "exit":
            return
        try:
            answer = COMMANDS[call](state, **order)
        except Exception as err:  # noqa: BLE001 - the other side judges it
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(err).__name__}: {err}"}
        commands.send(answer)


def child(ends: tuple[Any, Any], family: str, inherited: int | None) -> None:
    """Begins in the child: keeps its own end of the pipe alone."""
    mine, theirs = ends
    theirs.close()
    if inherited is not None:
        os.close(inherited)
    serve(mine, family)


class Launcher:
    """Makes one engine after the other, each in a child.

    Args:
        family: The family of the FastDeploy on the path.
        inherited: The descriptor for answers if children have it too.
    """

    def __init__(self, family: str, inherited: int | None) -> None:
        self._family = family
        self._inherited = inherited
        self._process: Any = None
        self._pipe: Any = None

    def begin(self, environ: dict[str, str]) -> dict[str, Any]:
        """Starts a child with further variables."""
        before = dict(os.environ)
        os.environ.update(environ)
        self._pipe, theirs = multiprocessing.Pipe()
        ends = (theirs, self._pipe)
        self._process = multiprocessing.Process(target=child, args=(ends, self._family, self._inherited))
        self._process.start()
        theirs.close()
        os.environ.clear()
        os.environ.update(before)
        return {"engine": self._process.pid}

    def pass_on(self, order: dict[str, Any]) -> dict[str, Any]:
        """Passes an order to the child and returns its answer, or how it ended."""
        try:
            self._pipe.send(order)
            while not self._pipe.poll(0.02):
                if self._process.exitcode is not None:  # its own children may hold the pipe open
                    raise EOFError
            answer: dict[str, Any] = self._pipe.recv()
            return answer
        except (EOFError, OSError):
            self._pipe.close()
            self._process.join()
            return {"ended": self._process.exitcode}


def main() -> int:
    """Obeys until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("method")
    parser.add_argument("answers", type=int)
    options = parser.parse_args()
    os.set_inheritable(options.answers, False)
    import fastdeploy  # noqa: F401 - plugins are loaded by it

    multiprocessing.set_start_method(options.method, force=True)
    launcher = Launcher(options.family, options.answers if options.method == "fork" else None)
    with open(options.answers, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            order = json.loads(line)
            begin = order["call"] == "begin"
            answer = launcher.begin(order["environ"]) if begin else launcher.pass_on(order)
            print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

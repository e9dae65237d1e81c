"""Hands over what SGLang and vLLM return as ``routed_experts``; runs with made-up outputs and reads them back.

Both count token first, ``[rows, layers, top_k]``. n tokens have n-1 rows: the last one never went through the model.

* SGLang, ``return_routed_experts`` (sgl-project/sglang#12162): ``meta_info["routed_experts"]``, base64 of flat int32.
  Rows ``[routed_experts_start_len, n-1)``; all hidden layers, so dense ones too, as zeros.
* vLLM, ``enable_return_routed_experts`` (vllm-project/vllm#28284, docs/features/routed_experts.md there):
  ``CompletionOutput.routed_experts``, an array, over HTTP base64 of an .npy file; uint8, or uint16 over 256 experts.
  Rows ``[routed_experts_prompt_start, n-1)``; all hidden layers.
* vLLM 0.21 (docs/training/routed_experts_replay.md): int16, MoE layers only, the prompt's rows apart in
  ``RequestOutput.prompt_routed_experts``, and -1 for tokens that came from the prefix cache.

``fastdeploy_routing_plugins.convert`` knows these forms and counts the rows. A row of -1 is no routing: only runs of
real rows are submitted, each under the tokens that it is of. What is missing is an absent part, which ``get`` names,
and which another turn or another engine may still submit.
"""

from __future__ import annotations

import argparse
import base64
import io
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from fastdeploy_routing_plugins import RoutingSchema, open_store, open_writer
from fastdeploy_routing_plugins.convert import sglang, vllm
from fastdeploy_routing_plugins.errors import IncompleteError

HIDDEN_LAYERS = 12
SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=range(1, HIDDEN_LAYERS))  # layer 0 is dense


def submit_sglang(writer, rollout_id, output, num_hidden_layers, *, start=0, more=False):
    """Submits an answer of ``/generate``; ``start`` is the request's ``routed_experts_start_len``."""
    for choice, rows in sglang.read(output, writer.schema, num_hidden_layers=num_hidden_layers, start=start):
        submit(writer, rollout_id, rows, choice=choice, more=more)


def submit_vllm(writer, rollout_id, request, num_hidden_layers, *, start=0, more=False):
    """Submits a ``RequestOutput`` with all its choices; ``start`` is ``routed_experts_prompt_start``."""
    how = {"num_hidden_layers": num_hidden_layers, "prompt": getattr(request, "prompt_routed_experts", None)}
    for output in request.outputs:
        num_tokens = len(request.prompt_token_ids) + len(output.token_ids)
        rows = vllm.rows(output.routed_experts, writer.schema, start=start, num_tokens=num_tokens, **how)
        submit(writer, rollout_id, rows, choice=output.index, more=more)


def submit(writer, rollout_id, rows, *, choice=0, more=False):
    """Submits the known rows of a sequence; with ``more``, another turn says how many tokens there are in all."""
    if more:
        rows = replace(rows, total_tokens=None)
    parts = rows.parts()
    for part in parts:
        writer.submit(rollout_id, part.rows, choice=choice, **part.place)
    if not parts and not more:
        writer.seal(rollout_id, rows.total_tokens, choice=choice)  # so that readers learn what they wait for


# --- made-up engines ----------------------------------------------------------------------------------------------


def routing(num_tokens, seed):
    """What a router might have chosen: ``[num_tokens - 1, HIDDEN_LAYERS, top_k]``, zeros in the dense layer."""
    scores = np.random.default_rng(seed).random((num_tokens - 1, HIDDEN_LAYERS, SCHEMA.num_experts))
    chosen = np.argsort(scores, axis=-1)[..., : SCHEMA.top_k]
    chosen[:, 0] = 0
    return chosen


def sglang_output(chosen, prompt_tokens, start=0):
    text = base64.b64encode(chosen[start:].astype("<i4").tobytes()).decode()
    meta = {"prompt_tokens": prompt_tokens, "completion_tokens": len(chosen) + 1 - prompt_tokens}
    return {"text": "...", "meta_info": {**meta, "routed_experts": text}}


def vllm_output(choices, prompt_tokens, **more):
    outputs = [
        SimpleNamespace(index=index, token_ids=[0] * generated, routed_experts=rows)
        for index, (rows, generated) in enumerate(choices)
    ]
    return SimpleNamespace(prompt_token_ids=[0] * prompt_tokens, outputs=outputs, **more)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def hand_over(writer):
    """Submits made-up outputs; returns what must be readable: id, choice, first known token, rows of all tokens."""
    turn1, turn2 = routing(41, seed=1)[:30], routing(41, seed=1)  # the second turn continues the first
    submit_sglang(writer, "sglang:0:0:0", sglang_output(turn1, 20), HIDDEN_LAYERS)
    submit_sglang(writer, "sglang:0:1:0", sglang_output(turn1, 20), HIDDEN_LAYERS, more=True)
    submit_sglang(writer, "sglang:0:1:0", sglang_output(turn2, 35, start=30), HIDDEN_LAYERS, start=30)

    one, two = routing(50, seed=2), routing(64, seed=3)  # two answers to one prompt of 24 tokens
    submit_vllm(writer, "vllm:0:0:0", vllm_output([(one.astype("u1"), 26), (two.astype("u1"), 40)], 24), HIDDEN_LAYERS)
    submit_vllm(writer, "vllm:1:0:0", vllm_output([(npy(one.astype("u1")), 26)], 24), HIDDEN_LAYERS)

    moe = one[:, 1:].astype("i2")  # vLLM 0.21, whose prefix cache knew 16 of the 24 tokens
    prompt = np.concatenate([np.full((16, *moe.shape[1:]), -1, "i2"), moe[16:24]])
    output = vllm_output([(np.concatenate([moe[24:], moe[:1]]), 26)], 24, prompt_routed_experts=prompt)
    submit_vllm(writer, "vllm:2:0:0", output, HIDDEN_LAYERS)
    return [
        ("sglang:0:0:0", 0, 0, turn1),
        ("sglang:0:1:0", 0, 0, turn2),
        ("vllm:0:0:0", 0, 0, one),
        ("vllm:0:0:0", 1, 0, two),
        ("vllm:1:0:0", 0, 0, one),
        ("vllm:2:0:0", 0, 16, one),
    ]


def read_back(store, expected):
    for rollout_id, choice, first, rows in expected:
        if first:
            try:
                store.get(rollout_id, choice=choice)
                raise AssertionError(f"{rollout_id}: nobody knows the first {first} tokens")
            except IncompleteError as err:
                print(f"{rollout_id}: missing are {', '.join(map(str, err.missing))}")
        record = store.get(rollout_id, choice=choice, tokens=(first, len(rows)))
        assert np.array_equal(record.routing, rows[first:, 1:].transpose(1, 0, 2)), rollout_id
        print(f"{rollout_id} choice {choice}: tokens {first}:{len(rows)} of {SCHEMA.num_layers} layers came back")


def main() -> int:
    parser = argparse.ArgumentParser(description="Hands routing of made-up SGLang and vLLM outputs over.")
    parser.add_argument(
        "--config", help="a configuration as JSON, or @file; without it a folder that is removed again"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = args.config or {"routing_store_type": "local", "routing_store_config": {"store_dir": folder}}
        with open_writer(config, schema=SCHEMA, limits={"arena_bytes": 16 << 20}) as writer:
            expected = hand_over(writer)
            writer.flush(timeout=60).check()
        with open_store(config, schema=SCHEMA) as store:
            read_back(store, expected)
    print("everything came back as the engines had chosen it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

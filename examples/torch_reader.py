"""A torch trainer that replays routing: batches are read in the workers of a DataLoader.

    python torch_reader.py                                  # a folder of its own
    python torch_reader.py --config @engine/local.json      # the store of a run

A small Mixture-of-Experts language model is sampled in bfloat16, as an engine would, and its routing is put into the
store. The trainer holds the same weights in float32. Its own routers choose other experts now and then, so that its
log-probabilities differ from the engine's; with the recorded experts they nearly agree. Then it trains with replay.
Ends with 1 if replay does not help.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import tempfile
from dataclasses import dataclass

import numpy as np

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader
except ImportError:
    raise SystemExit("this example needs torch: pip install 'fastdeploy-routing-plugins[torch]'") from None

from fastdeploy_routing_plugins import RoutingReader, RoutingSchema, open_reader, open_store
from fastdeploy_routing_plugins.reader.torch import replay_topk

VOCABULARY, HIDDEN, INNER, LAYERS, EXPERTS, TOP_K = 64, 32, 32, 4, 16, 2
SCHEMA = RoutingSchema(num_experts=EXPERTS, top_k=TOP_K, layer_ids=range(LAYERS))
PROMPT, LONGEST = 8, 32


# --- the model: the only change for replay is in MoE.forward ---------------------------------------------------------


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / HIDDEN**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / INNER**0.5)

    def forward(self, x, ids=None, mask=None):
        """Returns the layer's output and the experts used; `ids` [batch, tokens, top_k] were recorded."""
        scores = self.router(x)
        live = scores.topk(TOP_K).indices
        ids, mask = (live, None) if ids is None else (ids, mask)
        weights, chosen = replay_topk(scores, ids, mask, norm="sum")  # gradients flow into the router
        gates = torch.zeros_like(scores).scatter(-1, chosen, weights.to(scores.dtype))
        every = torch.einsum("bth,ehi->btei", x, self.up).relu()  # all experts, since they are few and small
        return torch.einsum("btei,eih->bth", every * gates[..., None], self.down), live


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.mixers = nn.ModuleList(nn.Linear(HIDDEN, 3 * HIDDEN, bias=False) for _ in range(LAYERS))
        self.experts = nn.ModuleList(MoE() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens, routing=None, mask=None):
        """Returns logits [batch, tokens, vocabulary] and what the routers would choose [layers, batch, tokens, top_k].

        `routing` [batch, layers, tokens, top_k] and `mask` [batch, tokens] are those of a RoutingBatch.
        """
        x, choices = self.embedding(tokens), []
        for layer, (mixer, experts) in enumerate(zip(self.mixers, self.experts, strict=True)):
            query, key, value = mixer(functional.rms_norm(x, (HIDDEN,))).chunk(3, -1)
            x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            ids = None if routing is None else routing[:, layer]
            y, live = experts(functional.rms_norm(x, (HIDDEN,)), ids, mask)
            x = x + y
            choices.append(live)
        return self.head(functional.rms_norm(x, (HIDDEN,))) * 4, torch.stack(choices)


# --- the engine's side -----------------------------------------------------------------------------------------------


@dataclass
class Sample:
    rollout_id: str
    tokens: list  # prompt and completion
    logprobs: list  # of the completion's tokens, as the engine computed them
    advantage: float


@torch.no_grad()
def roll_out(model, store, prefix, count, chance):
    """Samples `count` completions in bfloat16 and puts their routing into the store; returns the samples."""
    engine = copy.deepcopy(model).bfloat16()
    lengths = torch.randint(PROMPT + 4, LONGEST, (count,), generator=chance)
    tokens = torch.randint(VOCABULARY, (count, PROMPT), generator=chance)
    rows, logprobs = [], []
    for at in range(PROMPT, LONGEST):
        logits, choices = engine(tokens)
        rows.append(choices if at == PROMPT else choices[:, :, -1:])  # an engine computes each token once
        distribution = logits[:, -1].float().log_softmax(-1)
        new = torch.multinomial(distribution.exp(), 1, generator=chance)
        logprobs.append(distribution.gather(-1, new))
        tokens = torch.cat([tokens, new], 1)
    routing, logprobs = torch.cat(rows, 2), torch.cat(logprobs, 1)
    rewards = torch.stack([(tokens[n, PROMPT : lengths[n]] % 2 == 0).float().mean() for n in range(count)])
    advantages = (rewards - rewards.mean()) / rewards.std()
    samples = []
    for n, length in enumerate(lengths.tolist()):
        samples.append(
            Sample(
                f"{prefix}:{n}:0:0",
                tokens[n, :length].tolist(),
                logprobs[n, : length - PROMPT].tolist(),
                float(advantages[n]),
            )
        )
        # The token sampled last never went through the model: `length` tokens have `length - 1` rows.
        store.put(samples[-1].rollout_id, routing[:, n, : length - 1].numpy(), schema=SCHEMA)
    lost = samples[1].rollout_id  # what an engine loses is masked: live experts are used for it
    store.delete(lost)
    store.abort(lost, "engine restarted")
    return samples


# --- the trainer's side ----------------------------------------------------------------------------------------------


@dataclass
class Collate:
    """Runs in the DataLoader's workers. A reader can be pickled and forked: each worker opens the store for itself."""

    reader: RoutingReader
    timeout: float

    def __call__(self, samples):
        lengths = [len(sample.tokens) for sample in samples]
        batch = self.reader.get_batch(
            [sample.rollout_id for sample in samples],
            timeout=self.timeout,
            on_missing="mask",
            num_tokens=lengths,
            rows="n-1",
        ).check_missing(0.5)
        routing, mask, _ = batch.to_torch()
        tokens = np.zeros((len(samples), max(lengths)), np.int64)
        logprobs = np.zeros(tokens.shape, np.float32)
        trained = np.zeros(tokens.shape, np.bool_)
        for row, sample in enumerate(samples):
            tokens[row, : len(sample.tokens)] = sample.tokens
            logprobs[row, PROMPT : len(sample.tokens)] = sample.logprobs
            trained[row, PROMPT : len(sample.tokens)] = True
        advantages = torch.tensor([sample.advantage for sample in samples])
        arrays = [torch.from_numpy(each) for each in (tokens, logprobs, trained)]
        return {"routing": routing, "mask": mask, "advantages": advantages} | dict(
            zip(("tokens", "logprobs", "trained"), arrays, strict=True)
        )


def log_probs(model, batch, replay):
    """Returns log-probabilities of each token but the first, and what the routers would choose by themselves."""
    how = (batch["routing"], batch["mask"]) if replay else ()
    logits, choices = model(batch["tokens"], *how)
    return logits[:, :-1].log_softmax(-1).gather(-1, batch["tokens"][:, 1:, None])[..., 0], choices


@torch.no_grad()
def compare(model, batches):
    """Returns how far log-probabilities are from the engine's, live and replayed, and how many choices differ."""
    sums, count, differ, choices = [0.0, 0.0], 0, 0, 0
    for batch in batches:
        mask, routing = batch["mask"], batch["routing"].transpose(0, 1)
        known = batch["trained"][:, 1:] & mask[:, :-1]
        for replay in (False, True):
            ours, live = log_probs(model, batch, replay)
            sums[replay] += (ours - batch["logprobs"][:, 1:]).abs()[known].sum().item()
            if not replay:
                agree = (routing[..., :, None] == live[..., None, :]).any(-1)[:, mask]
                differ, choices = differ + int((~agree).sum()), choices + agree.numel()
        count += int(known.sum())
    return sums[0] / count, sums[1] / count, differ / choices


def train(model, batches, steps):
    """Takes some steps of policy gradient with replayed experts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step, batch in zip(range(steps), batches, strict=False):
        ours, _ = log_probs(model, batch, replay=True)
        ratio = (ours - batch["logprobs"][:, 1:]).exp()
        weight = batch["trained"][:, 1:] * batch["advantages"][:, None]
        loss = -(ratio * weight).sum() / batch["trained"].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lost = len(batch["mask"]) - int(batch["mask"].any(1).sum())
        print(f"step {step}: loss {loss.item():+.4f}, {lost} of {len(batch['mask'])} samples without recorded experts")


def main() -> int:
    parser = argparse.ArgumentParser(description="A torch trainer that replays routing.")
    parser.add_argument("--config", help="a configuration as JSON, or @file; without it a folder of its own")
    parser.add_argument("--workers", type=int, default=2, help="of the DataLoader (default: %(default)s)")
    parser.add_argument("--start-method", choices=("fork", "spawn"), help="of the workers")
    parser.add_argument("--samples", type=int, default=32, help="rollouts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model, chance = Model(), torch.Generator().manual_seed(args.seed)
    with contextlib.ExitStack() as ends:
        config = args.config
        if config is None:
            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="fd-routing-torch-"))
            config = {"routing_store_type": "local", "routing_store_config": {"store_dir": folder}}
        prefix = f"torch-{args.seed}"
        with open_store(config) as store:
            store.delete_prefix(prefix)
            samples = roll_out(model, store, prefix, args.samples, chance)
        reader = ends.enter_context(open_reader(config, schema=SCHEMA))
        loader = DataLoader(
            samples,
            batch_size=8,
            num_workers=args.workers,
            multiprocessing_context=args.start_method if args.workers else None,
            collate_fn=Collate(reader, timeout=60.0),
        )
        live, replayed, differ = compare(model, loader)
        print(f"choices of the routers that differ from the engine's: {differ:.2%}")
        print(f"|log-probability - the engine's|: {live:.2e} live, {replayed:.2e} with replay")
        train(model, loader, steps=4)
    return 0 if replayed < live else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The trainer: GRPO in float32 on what the engine sampled in bfloat16, with or without the engine's routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import paddle
from model import ModelConfig, MoeModel
from paddle.nn import functional as F
from rollout import Engine, Request

from fastdeploy_routing_plugins import Freshness, RoutingReader

PROMPT_TOKENS = 4
CLIP = 0.2  # how far a token's probability may move from the engine's before its gradient is cut off, as in PPO
WAIT = 60.0  # s for the routing of a step


@dataclass(frozen=True)
class Job:
    """How training is done, the same for every seed and with and without replay."""

    steps: int = 100
    prompts: int = 4
    group: int = 8
    tokens: int = 24
    learning_rate: float = 3e-3
    entropy: float = 0.05
    log_every: int = 5

    def logged(self, step: int) -> bool:
        """Whether the figures of a step are kept: the first and last one, and every few in between."""
        return step % self.log_every == 0 or step == self.steps - 1


@dataclass(frozen=True)
class Figures:
    """What one step measured, before its update.

    Attributes:
        step: Which.
        disagreement: Share of the engine's expert choices that the trainer's own routers do not make.
        kl: KL(engine || trainer) per token in nats, estimated on the sampled tokens: mean of ``exp(d) - 1 - d`` with
            ``d = log p_trainer - log p_engine`` (the estimator k3, which needs the sampled log-probabilities only).
        reward: Mean reward of the step's rollouts.
    """

    step: int
    disagreement: float
    kl: float
    reward: float


def rewards(tokens: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """The task: odd and even tokens in turn. Returns the share of sampled tokens that keep to it, ``[batch]``."""
    turns = (tokens[:, 1:] + tokens[:, :-1]) % 2 == 1
    return (turns & sampled).sum(1) / sampled.sum(1)


def advantages(reward: np.ndarray, group: int) -> np.ndarray:
    """Compares each reward with those of the other answers to the same prompt, as GRPO does."""
    groups = reward.reshape(-1, group)
    return ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)).reshape(-1, 1)


def train(
    engine: Engine,
    reader: RoutingReader,
    config: ModelConfig,
    job: Job,
    *,
    seed: int,
    replay: bool,
    progress: Callable[[], None] = lambda: None,
) -> list[Figures]:
    """Trains a fresh model and returns the figures of the logged steps."""
    model = MoeModel(config, seed)
    optimizer = paddle.optimizer.Adam(job.learning_rate, parameters=model.parameters())
    figures = []
    for step in range(job.steps):
        request = make_request(model, job, seed, step, replay)
        rollouts = engine.roll_out(request)

        # All the routing of the step, padded as the tokens are. Waits until it is stored; raises if any of it is
        # missing, has another number of rows, or was made by other weights than the trainer has now.
        batch = reader.get_batch(
            rollouts.ids,
            timeout=WAIT,
            num_tokens=request.lengths.tolist(),
            rows="n-1",
            fresh=Freshness(current=step, max_staleness=0),
        )
        recorded, mask, _ = batch.to_paddle()
        recorded, mask = recorded[:, :, :-1], mask[:, :-1]  # the last token is predicted only

        positions = np.arange(1, rollouts.tokens.shape[1])
        sampled = (positions >= PROMPT_TOKENS) & (positions < request.lengths[:, None])
        reward = rewards(rollouts.tokens, sampled)
        tokens = paddle.to_tensor(rollouts.tokens)
        logits, used, own = model(tokens[:, :-1], replay=(recorded, mask) if replay else None)
        every = F.log_softmax(logits, -1)
        logprobs = every.take_along_axis(tokens[:, 1:].unsqueeze(-1), -1).squeeze(-1)
        distance = logprobs - paddle.to_tensor(rollouts.logprobs)

        weight = paddle.to_tensor((sampled / sampled.sum()).astype(np.float32))
        advantage = paddle.to_tensor(advantages(reward, job.group).astype(np.float32))
        ratio = distance.exp()
        gain = paddle.minimum(ratio * advantage, ratio.clip(1 - CLIP, 1 + CLIP) * advantage)
        entropy = -(every.exp() * every).sum(-1)
        loss = -((gain + job.entropy * entropy) * weight).sum()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

        if job.logged(step):
            if replay:
                assert different(recorded, used, mask) == 0  # the recorded experts were used, all of them
            apart = distance.numpy().astype(np.float64)[sampled]
            kl = float((np.expm1(apart) - apart).mean())
            figures.append(Figures(step, different(recorded, own, mask), kl, float(reward.mean())))
        progress()
    return figures


def make_request(model: MoeModel, job: Job, seed: int, step: int, replay: bool) -> Request:
    """Makes prompts of random tokens, each as often as a group has answers; the same ones with and without replay."""
    rng = np.random.default_rng([seed, step])
    prompts = rng.integers(model.config.vocab, size=(job.prompts, PROMPT_TOKENS))
    lengths = PROMPT_TOKENS + rng.integers(job.tokens * 3 // 4, job.tokens + 1, size=job.prompts * job.group)
    return Request(
        name=f"seed{seed}-{'replay' if replay else 'plain'}-{step}",
        prompts=prompts.repeat(job.group, axis=0),
        lengths=lengths,
        weights=model.weights(),
        version=step,
        seed=(seed, step, 1),
    )


def different(recorded, chosen, mask) -> float:
    """Returns the share of recorded expert choices ``[batch, layers, tokens, top_k]`` that were not made."""
    missed = ~(recorded.unsqueeze(-1) == chosen.unsqueeze(-2)).any(-1)
    rows = mask.unsqueeze(1).expand(missed.shape[:3])
    return float(missed.numpy()[rows.numpy()].mean())

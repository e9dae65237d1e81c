from __future__ import annotations

import numpy as np
import pytest

from fastdeploy_routing_plugins.demo.model import Forward, KVCache, ModelConfig, MoeTransformer, log_softmax

CONFIG = ModelConfig(vocab_size=64, hidden=32, heads=2, layers=4, expert_hidden=16, experts=16, top_k=4, seed=3)


@pytest.fixture(scope="module")
def full() -> MoeTransformer:
    return MoeTransformer(CONFIG, half=False)


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(5).integers(CONFIG.vocab_size, size=(3, 20))


def run(model: MoeTransformer, tokens: np.ndarray, replay: np.ndarray | None = None) -> Forward:
    cache = KVCache.empty(model.config, *tokens.shape)
    return model.forward(tokens, np.zeros(len(tokens), np.int64), cache, replay=replay)


def test_default_shape_is_a_mixture_of_experts_with_a_dense_first_layer():
    config = ModelConfig()
    assert config.moe_layer_ids[0] == 1
    assert len(config.moe_layer_ids) >= 4
    assert config.experts >= 16
    assert config.top_k == 4


def test_routing_has_one_row_of_distinct_experts_per_token_and_moe_layer(full, tokens):
    routing = run(full, tokens).routing
    assert routing.shape == (3, 3, 20, 4)
    assert routing.min() >= 0
    assert routing.max() < CONFIG.experts
    assert (np.diff(np.sort(routing, axis=-1), axis=-1) > 0).all()
    assert len(np.unique(routing)) == CONFIG.experts


def test_equal_seeds_give_equal_models_and_other_seeds_do_not(full, tokens):
    same = run(MoeTransformer(CONFIG, half=False), tokens)
    other = run(MoeTransformer(ModelConfig(vocab_size=64, hidden=32, heads=2, seed=4), half=False), tokens)
    assert np.array_equal(same.logits, run(full, tokens).logits)
    assert not np.allclose(same.logits, other.logits)


def test_a_later_token_changes_nothing_before_it(full, tokens):
    changed = tokens.copy()
    changed[:, 12] = (changed[:, 12] + 1) % CONFIG.vocab_size
    before, after = run(full, tokens), run(full, changed)
    np.testing.assert_allclose(before.logits[:, :12], after.logits[:, :12], atol=1e-5)
    assert np.array_equal(before.routing[:, :, :12], after.routing[:, :, :12])
    assert (np.abs(before.logits[:, 12:] - after.logits[:, 12:]).max(axis=-1) > 1e-4).all()


def test_decoding_with_the_cache_equals_one_pass_over_all_tokens(full, tokens):
    whole = run(full, tokens)
    cache = KVCache.empty(CONFIG, 3, 20)
    # Rows of different prompt lengths, prefilled one by one and then decoded together, as the rollout does it.
    lengths = np.array([5, 9, 7])
    for row, length in enumerate(lengths):
        prefill = full.forward(tokens[row : row + 1, :length], np.zeros(1, np.int64), cache.row(row))
        np.testing.assert_allclose(prefill.logits[0], whole.logits[row, :length], atol=1e-4)
        assert np.array_equal(prefill.routing[:, 0], whole.routing[:, row, :length])
    rows = np.arange(3)
    for step in range(10):
        decode = full.forward(tokens[rows, lengths + step][:, None], lengths + step, cache)
        np.testing.assert_allclose(decode.logits[:, 0], whole.logits[rows, lengths + step], atol=1e-4)
        assert np.array_equal(decode.routing[:, :, 0], whole.routing[:, rows, lengths + step])


def test_replaying_its_own_selection_changes_nothing(full, tokens):
    own = run(full, tokens)
    replayed = run(full, tokens, own.routing.astype(np.uint8))
    assert np.array_equal(replayed.logits, own.logits)
    assert np.array_equal(replayed.routing, own.routing)


def test_replay_uses_the_given_experts_with_weights_from_the_live_router(full, tokens):
    own = run(full, tokens)
    reordered = run(full, tokens, own.routing[..., ::-1])
    np.testing.assert_allclose(reordered.logits, own.logits, atol=1e-4)
    others = (own.routing + 1) % CONFIG.experts
    forced = run(full, tokens, others)
    assert np.array_equal(forced.routing, others)
    assert np.abs(forced.logits - own.logits).mean() > 0.05


def test_half_rounds_weights_activations_and_cache_to_float16_and_stays_close(full, tokens):
    half = MoeTransformer(CONFIG, half=True)
    cache = KVCache.empty(CONFIG, 3, 20)
    rounded = half.forward(tokens, np.zeros(3, np.int64), cache)
    exact = run(full, tokens, rounded.routing)
    for values in (rounded.logits, cache.keys, cache.values):
        assert np.array_equal(values, values.astype(np.float16).astype(np.float32))
    assert not np.array_equal(rounded.logits, exact.logits)
    assert np.abs(rounded.logits - exact.logits).mean() < 0.02


def test_log_softmax_sums_to_one_and_survives_large_logits():
    logits = np.array([[1000.0, 999.0, -1000.0], [0.0, 0.0, 0.0]], np.float32)
    result = log_softmax(logits)
    np.testing.assert_allclose(np.exp(result).sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(result[1], -np.log(3), rtol=1e-6)

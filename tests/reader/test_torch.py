"""torch: what it must do as Paddle does, and autocast, compiled graphs, devices and pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fastdeploy_routing_plugins.errors import InvalidRecordError, UnsupportedError  # noqa: E402
from fastdeploy_routing_plugins.reader.batch import RoutingBatch  # noqa: E402
from fastdeploy_routing_plugins.reader.torch import replay_topk  # noqa: E402

from .framework_cases import Framework, ReplayCases, TensorCases, batch  # noqa: E402
from .replay_reference import CASES, Case, case  # noqa: E402


class Torch(Framework):
    name = "torch"
    replay_topk = staticmethod(replay_topk)
    no_ids = (RuntimeError, IndexError)

    def tensor(self, array: np.ndarray, dtype: str | None = None) -> Any:
        return torch.tensor(array, dtype=None if dtype is None else getattr(torch, dtype))

    def numpy(self, tensor: Any) -> np.ndarray:
        held = tensor.detach()
        return (held.float() if held.dtype in (torch.bfloat16, torch.float16) else held).numpy()

    def differentiable(self, tensor: Any) -> Any:
        return tensor.requires_grad_()

    def from_dlpack(self, made: RoutingBatch) -> Any:
        return torch.from_dlpack(made)


class TestReplay(Torch, ReplayCases):
    @pytest.mark.parametrize("given", CASES[:6])
    def test_autocast_changes_nothing(self, given: Case) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            weights = self.weights(given)

        np.testing.assert_array_equal(weights, self.weights(given))

    @pytest.mark.parametrize("given", [CASES[0], CASES[9]])
    def test_one_graph_without_a_break_computes_the_same(self, given: Case) -> None:
        torch._dynamo.reset()  # a value that the host waits for breaks a graph
        compiled = torch.compile(replay_topk, fullgraph=True, backend="eager")
        arguments = [self.given(each) for each in (given.scores, given.ids, given.mask)]
        weights, _ = compiled(*arguments, bias=self.given(given.bias), **given.options())

        np.testing.assert_array_equal(weights.numpy(), self.weights(given))

    @pytest.mark.parametrize("dtype", ["uint16", "uint32"])
    def test_further_integers_mean_the_same(self, dtype: str) -> None:
        given = case()

        np.testing.assert_array_equal(self.weights(given, ids=self.tensor(given.ids, dtype)), self.weights(given))


class TestTensors(Torch, TensorCases):
    def test_torchs_uint16_is_refused(self) -> None:
        with pytest.raises(InvalidRecordError, match="int32 or int64"):
            batch().to_torch(torch.uint16)

    def test_tensors_go_to_the_device_asked_for(self) -> None:
        assert {each.device.type for each in batch().to_torch(device="meta")} == {"meta"}

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator that memory is pinned for")
    @pytest.mark.parametrize("form", [batch, lambda: batch().packed()], ids=["padded", "packed"])
    def test_pinned_memory_without_an_accelerator_is_refused_in_a_sentence(self, form: Any) -> None:
        with pytest.raises(UnsupportedError, match="torch cannot pin memory here"):
            form().to_torch(pin=True)

    @pytest.mark.skipif(
        not torch.accelerator.is_available(), reason="memory is pinned for an accelerator, and none is here"
    )
    @pytest.mark.parametrize("experts", [256, 257])
    def test_pinned_memory_is_pinned_and_travels(self, experts: int) -> None:
        made = batch(experts)
        assert all(each.is_pinned() for each in made.to_torch(pin=True))
        there = made.to_torch(device=torch.accelerator.current_accelerator(), pin=True)
        np.testing.assert_array_equal(there.routing.cpu(), made.routing)

    def test_a_read_only_batch_becomes_tensors_without_a_warning(self) -> None:
        made = batch()
        made.routing.flags.writeable = False

        np.testing.assert_array_equal(made.to_torch().routing, made.routing)

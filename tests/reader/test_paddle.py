"""Paddle: what it must do as torch does, and mixed precision, static graphs and places."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")

from fastdeploy_routing_plugins.errors import InvalidRecordError, UnsupportedError  # noqa: E402
from fastdeploy_routing_plugins.reader.batch import RoutingBatch  # noqa: E402
from fastdeploy_routing_plugins.reader.paddle import replay_topk  # noqa: E402

from .framework_cases import Framework, ReplayCases, TensorCases, batch  # noqa: E402
from .replay_reference import case  # noqa: E402

ON_GPU = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0


class Paddle(Framework):
    name = "paddle"
    replay_topk = staticmethod(replay_topk)
    no_ids = (IndexError, ValueError, OSError)

    def tensor(self, array: np.ndarray, dtype: str | None = None) -> Any:
        made = paddle.to_tensor(array)
        return made if dtype is None else made.astype(dtype)

    def numpy(self, tensor: Any) -> np.ndarray:
        # NumPy shows Paddle's 16-bit floats as other things.
        return tensor.astype("float32").numpy() if self.dtype_of(tensor) in ("bfloat16", "float16") else tensor.numpy()

    def differentiable(self, tensor: Any) -> Any:
        tensor.stop_gradient = False
        return tensor

    def from_dlpack(self, made: RoutingBatch) -> Any:
        return paddle.utils.dlpack.from_dlpack(made)


class TestReplay(Paddle, ReplayCases):
    @pytest.mark.skipif(not ON_GPU, reason="Paddle's mixed precision has no effect without a GPU")
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_mixed_precision_changes_nothing(self, level: str) -> None:
        given = case(scoring="sigmoid", norm="sum", masked=True, biased=True)
        with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
            weights = self.weights(given)

        np.testing.assert_array_equal(weights, self.weights(given))

    def test_a_static_graph_for_any_number_of_tokens_computes_the_same(self) -> None:
        given = case(scoring="sigmoid", norm="sum", masked=True)

        def weights(scores: Any, recorded: Any, mask: Any) -> Any:  # a value that the host waits for breaks the graph
            return replay_topk(scores, recorded, mask, norm="sum", scoring="sigmoid")[0]

        kinds = (([None, 64], "float32"), ([None, 8], "int64"), ([None], "bool"))
        specs = [paddle.static.InputSpec(shape, dtype) for shape, dtype in kinds]
        static = paddle.jit.to_static(weights, input_spec=specs, full_graph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Paddle's own, about its tracer
            traced = static(*map(paddle.to_tensor, (given.scores, given.ids, given.mask)))

        np.testing.assert_array_equal(traced.numpy(), self.weights(given))

    def test_int8_means_the_same(self) -> None:
        given = case()

        np.testing.assert_array_equal(self.weights(given, ids=self.tensor(given.ids, "int8")), self.weights(given))

    def test_paddles_uint16_is_refused_as_bfloat16(self) -> None:
        with pytest.raises(InvalidRecordError, match="bfloat16"):
            self.replayed(case(), ids=self.tensor(case().ids, "uint16"))


class TestTensors(Paddle, TensorCases):
    @pytest.mark.parametrize("place", ["cpu", paddle.CPUPlace()])
    def test_tensors_go_to_the_place_asked_for(self, place: Any) -> None:
        assert all(each.place.is_cpu_place() for each in batch().to_paddle(place=place))

    @pytest.mark.skipif(paddle.is_compiled_with_cuda(), reason="this build of Paddle has these places")
    @pytest.mark.parametrize("place", ["gpu:0", "gpu_pinned", "nowhere"])
    @pytest.mark.parametrize("form", [batch, lambda: batch().packed()], ids=["padded", "packed"])
    def test_a_place_that_paddle_does_not_have_is_refused_in_a_sentence(self, form: Any, place: str) -> None:
        with pytest.raises(UnsupportedError, match=f"Paddle does not make a tensor at .*{place}"):
            form().to_paddle(place=place)

    @pytest.mark.skipif(not ON_GPU, reason="Paddle pins memory for a GPU, and none is here")
    def test_pinned_memory_is_pinned(self) -> None:
        made = batch(257).to_paddle(place=paddle.CUDAPinnedPlace())

        assert all(each.place.is_cuda_pinned_place() for each in made)

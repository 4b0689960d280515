"""The GPUs of this machine, as PaddlePaddle sees them."""

from __future__ import annotations

import paddle

from danlu.engines.base import Gpus


def gpus() -> Gpus | None:
    """None: there are none. The first stands for all of them."""
    cuda = paddle.device.cuda
    if not paddle.device.is_compiled_with_cuda() or cuda.device_count() == 0:
        return None
    first = cuda.get_device_properties(0)
    return Gpus(cuda.device_count(), first.name, first.total_memory, first.multi_processor_count)

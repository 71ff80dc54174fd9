"""Work that is recorded once and replayed: as a CUDA graph on a GPU, as a list of kernels on a CPU."""

from typing import Any

import torch

from fewsure.core.cpu_graph import CpuGraph
from fewsure.core.cuda_graph import CudaGraph


def recording(generator: torch.Generator, *, name: str, records: bool) -> CpuGraph[Any] | CudaGraph[Any]:
    """What does a piece of work, which draws from `generator`, again and again on its device.

    Only the content of tensors that stay where they are, and the seed of the generator, may differ from one time to the
    next. `name` says in a warning what cannot be recorded.
    """
    if generator.device.type == "cuda":
        return CudaGraph(generator, name=name, records=records)
    return CpuGraph(name=name, records=records)

"""How does Paged run without a kernel language? With torch operators and 32-bit indices, as on Ascend."""

import torch

from impl.paged import IndexEngine, PagedAllocator
from impl.torch_engine import TorchEngine


class AscendAllocator(PagedAllocator):
    """Paged in int32: `alloc`, extend, decode and both lists.

    `engine=None` takes the torch engine on any device.
    """

    index_dtype = torch.int32

    def _default_engine(self, device: str | torch.device) -> IndexEngine:
        return TorchEngine()

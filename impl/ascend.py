"""How does Paged run without a kernel language? With torch operators and 32-bit indices, as on Ascend."""

from typing import Any

import torch

from impl.paged import IndexEngine, PagedAllocator
from impl.torch_engine import TorchEngine


class AscendAllocator(PagedAllocator):
    """Paged in int32: `alloc`, extend, decode and both lists.

    `engine=None` takes the torch engine on any device.
    """

    index_dtype = torch.int32

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: Any,
        need_sort: bool,
        *,
        engine: IndexEngine | None = None,
        debug: bool | None = None,
    ) -> None:
        engine = TorchEngine() if engine is None else engine
        super().__init__(size, page_size, dtype, device, kvcache, need_sort, engine=engine, debug=debug)

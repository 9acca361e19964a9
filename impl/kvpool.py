"""Where do K and V lie? Small real KV pools, to check that data at a request's slots stays what it was."""

import torch

CpuCopy = list[tuple[torch.Tensor, torch.Tensor]]


class KVPool:
    """K and V of some layers: per layer a tensor [size + page_size, heads, head_dim] each.

    The first page_size rows are the padding page, so that slot numbers index the tensors as they are.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        layers: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str | torch.device,
    ) -> None:
        if min(page_size, layers, heads, head_dim) < 1 or size < page_size:
            raise ValueError("page_size, layers, heads and head_dim must be at least 1, and size page_size.")
        self.size, self.page_size, self.layers = size, page_size, layers
        self.dtype, self.device = dtype, device
        shape = (2, layers, size + page_size, heads, head_dim)
        self.buffers = torch.zeros(shape, dtype=dtype, device=device)  # K, then V
        self.k_buffer, self.v_buffer = (list(layered) for layered in self.buffers)

    def set_kv(self, layer: int, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write `k`, `v` [n, heads, head_dim] at slots `loc` [n] of a layer. ValueError for other shapes."""
        self._check_rows("k", k, loc)
        self._check_rows("v", v, loc)
        self.k_buffer[layer][loc.long()] = k.to(self.dtype)
        self.v_buffer[layer][loc.long()] = v.to(self.dtype)

    def get_kv(self, layer: int, loc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of K and V at the slots `loc` [n] of a layer, each [n, heads, head_dim]."""
        _check_slots(loc)
        return self.k_buffer[layer][loc.long()], self.v_buffer[layer][loc.long()]

    def get_cpu_copy(self, indices: torch.Tensor) -> CpuCopy:
        """What `indices` [n] hold: for every layer a pair (K, V) of CPU tensors [n, heads, head_dim]."""
        pairs = (self.get_kv(layer, indices) for layer in range(self.layers))
        return [(k.cpu(), v.cpu()) for k, v in pairs]

    def load_cpu_copy(self, kv_cache_cpu: CpuCopy, indices: torch.Tensor) -> None:
        """Write a copy to the slots `indices` [n], in its order.

        ValueError, with nothing written, if its layers, rows or row shapes do not fit.
        """
        if len(kv_cache_cpu) != self.layers:
            raise ValueError(f"The copy has {len(kv_cache_cpu)} layers, but the pool has {self.layers}.")
        for k, v in kv_cache_cpu:
            self._check_rows("The copy's K", k, indices)
            self._check_rows("The copy's V", v, indices)
        for layer, (k, v) in enumerate(kv_cache_cpu):
            self.set_kv(layer, indices, k.to(self.device), v.to(self.device))

    def _check_rows(self, name: str, rows: torch.Tensor, loc: torch.Tensor) -> None:
        _check_slots(loc)
        expected = (loc.numel(), *self.k_buffer[0].shape[1:])
        if tuple(rows.shape) != expected:
            raise ValueError(f"{name} must have shape {expected}, but has {tuple(rows.shape)}.")


def _check_slots(loc: torch.Tensor) -> None:
    if loc.dim() != 1:
        raise ValueError(f"Slots must have one dimension, but have shape {tuple(loc.shape)}.")


class SwaKVPool:
    """The KV pool of the layers with full attention and that of the layers with a sliding window.

    `full_to_swa_index_mapping` is set by the SWA allocator.
    """

    def __init__(self, full_kv_pool: KVPool, swa_kv_pool: KVPool) -> None:
        self.full_kv_pool = full_kv_pool
        self.swa_kv_pool = swa_kv_pool
        self.full_to_swa_index_mapping: torch.Tensor | None = None

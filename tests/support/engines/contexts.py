"""Random arguments of kernels that attend to paged contexts."""

from typing import Any

import torch


def step(target, contexts, heads, groups, size, *, rotated=True, page=16) -> list[Any]:
    """Arguments of `decode_attention`. The slot of the new position and all slots after it are NaN."""
    device, dtype = target
    context = torch.tensor(contexts)
    used = (context + page - 1) // page
    pages = torch.randn(2, int(used.sum()) + 1, page, groups, size)
    table, write = torch.zeros(len(contexts), int(used.max()) + 1, dtype=torch.int32), torch.zeros(len(contexts))
    owned, start = torch.zeros(pages.shape[1] * page, dtype=torch.bool), 1
    for i, (n, count) in enumerate(zip(contexts, used.tolist(), strict=True)):
        table[i, :count] = torch.arange(start, start + count)
        write[i] = start * page + n - 1
        owned[start * page : start * page + n - 1] = True
        start += count
    pages.flatten(1, 2)[:, ~owned] = float("nan")
    fused = torch.randn(len(contexts), heads + 2 * groups, size).to(device, dtype)
    angle = torch.randint(0, 300, (len(contexts), 1)) * 100 ** -torch.linspace(0, 1, size // 2)
    turn = (angle.cos().to(device), angle.sin().to(device)) if rotated else (None, None)
    integers = (context.to(device, torch.int32), table.to(device), write.to(device, torch.int64))
    return [*fused.split([heads, groups, groups], dim=1), *turn, *pages.to(device, dtype), *integers, max(contexts) + 9]

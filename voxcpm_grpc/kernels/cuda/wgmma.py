"""The instructions of Hopper's matrix unit as text of a program: an instruction has as many operands as it has sums."""

from __future__ import annotations


def multiply_function(rows: int) -> str:
    """A function `multiply(d, a, b, add)` that adds, or assigns, the product of two tiles in shared memory.

    d has rows / 2 sums a thread, of 64 x `rows` in a group of four warps. a and b are descriptors of bfloat16 tiles
    with 16 inputs, whose rows are contiguous: 64 x 16 and `rows` x 16. `rows` is a multiple of 8 up to 256.
    """
    if rows % 8 or not 8 <= rows <= 256:
        raise ValueError(f"the matrix unit multiplies a multiple of 8 rows up to 256, not {rows}")
    sums = rows // 2
    names = ", ".join(f"%{i}" for i in range(sums))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    return (
        f"__device__ __forceinline__ void multiply(float (&d)[{sums}], u64 a, u64 b, bool add) {{\n"
        f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{sums + 2}, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.bf16.bf16 "
        f'{{{names}}}, %{sums}, %{sums + 1}, p, 1, 1, 0, 0; }}" : {operands} : "l"(a), "l"(b), "r"((int)add));\n}}\n'
    )

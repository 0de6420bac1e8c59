"""The instructions of Hopper's matrix unit as text of a program: an instruction has as many operands as it has sums."""

from __future__ import annotations


def multiply_function(rows: int, kind: str = "bf16", *, registers: bool = False) -> str:
    """A function `multiply(d, a, b, add)` that adds, or assigns, the product of two tiles in shared memory.

    d has rows / 2 sums a thread, of 64 x `rows` in a group of four warps. a and b are descriptors of tiles of `kind`
    (bf16 or f16) with 16 inputs, whose rows are contiguous: 64 x 16 and `rows` x 16. `rows` is a multiple of 8 up to
    256. With `registers` a is four words of each thread instead.
    """
    if rows % 8 or not 8 <= rows <= 256:
        raise ValueError(f"the matrix unit multiplies a multiple of 8 rows up to 256, not {rows}")
    sums, words = rows // 2, 4 if registers else 1
    names = ", ".join(f"%{i}" for i in range(sums))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    parameter, first, given, flags = "u64 a", f"%{sums}", '"l"(a)', "1, 1, 0, 0"
    if registers:
        parameter, flags = "const u32 (&a)[4]", "1, 1, 0"
        first = f"{{{', '.join(f'%{sums + i}' for i in range(words))}}}"
        given = ", ".join(f'"r"(a[{i}])' for i in range(words))
    return (
        f"__device__ __forceinline__ void multiply(float (&d)[{sums}], {parameter}, u64 b, bool add) {{\n"
        f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{sums + words + 1}, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.{kind}.{kind} "
        f'{{{names}}}, {first}, %{sums + words}, p, {flags}; }}" : {operands} : {given}, "l"(b), "r"((int)add));\n}}\n'
    )

// The matrix unit computes products: 16-bit operands, sums in float32.

// The products have 16 x 8 outputs of 16 inputs: the first operand has 16 rows, the second 8 columns.
__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Exchanges rows and columns of 8 x 8 values of 16 bits: lane l has columns 2 * (l % 4) and + 1 of row l / 4.
__device__ __forceinline__ u32 transpose(u32 v) {
    u32 to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(v));
    return to;
}

// The second operand of `multiply_wide` lies in shared memory in slabs of 64 inputs x 24 rows. A row of a slab has 128
// bytes, whose 16-byte parts are exchanged so that eight rows use all banks.
constexpr u32 SLAB = 24 * 128;

// Stores the words of inputs 8 * part + 2 * (lane % 4), + 1 of the rows lane / 4, + 8, + 16.
__device__ __forceinline__ void store_operand(u32 slab, u32 part, u32 lane, u32 first, u32 second, u32 third) {
    const u32 row = lane / 4, to = slab + row * 128 + ((part ^ row) << 4) + lane % 4 * 4;
    asm volatile("st.shared.u32 [%0], %1;\nst.shared.u32 [%0 + 1024], %2;\nst.shared.u32 [%0 + 2048], %3;"
                 ::"r"(to), "r"(first), "r"(second), "r"(third) : "memory");
}

// The descriptor is that of 16 inputs: step 0 to 3 of a slab.
__device__ __forceinline__ u64 operand(u32 slab, u32 step) {
    return (u64)((slab >> 4 & 0x3fff) + 2 * step) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The products have 64 x 24 outputs of 16 inputs, in four warps: the first operand, of 16 rows a warp, is in registers.
// They are asynchronous.
__device__ __forceinline__ void multiply_wide(float (&c)[12], const uint4& a, u64 b, bool add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %17, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, "
                 "{%12,%13,%14,%15}, %16, p, 1, 1, 0;\n}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));
}

__device__ __forceinline__ void wait_wide(float (&c)[12]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 12; i++) asm volatile("" : "+f"(c[i])::"memory");
}

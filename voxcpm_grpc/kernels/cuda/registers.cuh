// The kernels that keep all operands of their products in registers share this.

__device__ __forceinline__ void load(u32 (&to)[4], const u16* from) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from) : "memory");
}

__device__ __forceinline__ void load(float4& to, const float* from) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w) : "l"(from) : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The result of an operation over all lanes, or over neighbours of 2 DISTANCE lanes each.
template <int DISTANCE = 16, class Operation> __device__ __forceinline__ float across(float x, Operation operation) {
#pragma unroll
    for (int d = DISTANCE; d; d /= 2) x = operation(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

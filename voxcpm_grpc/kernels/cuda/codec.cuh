// What the kernels of the codec need of the device: half precision, values of many bytes at once, barriers and copies.

__device__ __forceinline__ u32 pack_half(float first, float second) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
__device__ __forceinline__ void unpack_half(u32 word, float& first, float& second) {
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(first), "=f"(second) : "r"(word));
}
__device__ __forceinline__ float snake(float x, float alpha, float inverse) {
    const float sine = __sinf(x * alpha);
    return fmaf(sine * sine, inverse, x);
}
template <int COUNT>
__device__ __forceinline__ void load_values(float (&v)[COUNT], const float* p) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
            : "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3]) : "l"(p + i));
}
__device__ __forceinline__ void load_global(u32 (&v)[4], const u16* p) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p) : "memory");
}
__device__ __forceinline__ void store_global(u16* p, const u32 (&v)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
__device__ __forceinline__ void load_shared(u32 (&v)[4], u32 at) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_shared(u32 (&v)[2], u32 at) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at));
}
__device__ __forceinline__ void store_shared(u32 at, const u32 (&v)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
__device__ __forceinline__ void store_shared(u32 at, const u32 (&v)[2]) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(v[0]), "r"(v[1]) : "memory");
}
template <int T, int R>
__device__ __forceinline__ void multiply_wait(float (&y)[T][R]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int j = 0; j < R; j++) asm volatile("" : "+f"(y[i][j]) :: "memory");
}

// The matrix unit reads registers until its product is complete: this uses one afterwards.
__device__ __forceinline__ void keep(u32 word) { asm volatile("" :: "r"(word)); }

__device__ __forceinline__ void multiply_wait_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

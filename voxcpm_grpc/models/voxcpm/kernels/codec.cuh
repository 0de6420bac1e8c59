// The kernels of the codec need this of the device: half precision, values of many bytes at once, barriers and copies.

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
__device__ __forceinline__ void store_shared(u32 at, const u32 (&v)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Stores by a condition take no branch, so that the compiler mixes what comes before them.
__device__ __forceinline__ void store_global(u16* p, const u32 (&v)[4], bool stored) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }"
                 ::"l"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"((int)stored) : "memory");
}
__device__ __forceinline__ void store_shared(u32 at, const u32 (&v)[4], bool stored) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.shared.v4.u32 [%0], {%1, %2, %3, %4}; }"
                 ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"((int)stored) : "memory");
}

// Parts of 8 rows of 16 bytes; eight threads give the rows of a part.
__device__ __forceinline__ void load_matrices(u32 (&v)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&v)[2], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at) : "memory");
}

// d is the product of 16 rows and a matrix for 8 channels, and c; the rows have 16 inputs, or 8.
__device__ __forceinline__ void multiply_small(float (&d)[4], const u32 (&x)[4], u32 b, u32 next, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(b), "r"(next), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void multiply_small(float (&d)[4], const u32 (&x)[2], u32 b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

template <int T, int R>
__device__ __forceinline__ void multiply_wait(float (&y)[T][R]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int j = 0; j < R; j++) asm volatile("" : "+f"(y[i][j]) :: "memory");
}

// Words that the matrix unit reads have their values before its products begin.
__device__ __forceinline__ void settle(u32& word) { asm volatile("" : "+r"(word) :: "memory"); }
template <typename T, int COUNT>
__device__ __forceinline__ void settle(T (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) settle(words[i]);
}

// The matrix unit reads registers until its product is complete: these use them afterwards.
__device__ __forceinline__ void keep(u32 word) { asm volatile("" :: "r"(word)); }
template <typename T, int COUNT>
__device__ __forceinline__ void keep(const T (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) keep(words[i]);
}

template <int COUNT>
__device__ __forceinline__ void multiply_wait_but() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory"); }
__device__ __forceinline__ void arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

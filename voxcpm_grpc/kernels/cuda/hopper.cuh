// Shared by the kernels written for Hopper: number formats, and barriers in shared memory.
//
// CUDA's headers are not included: programs are compiled at run time on machines that may not have them.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

constexpr long long TIMEOUT = 8000000000ll;                  // clocks, several seconds: a longer wait traps

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ float widen(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ float low(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(u32 w) { return __uint_as_float(w & 0xffff0000u); }

__device__ __forceinline__ u32 pack(float first, float second) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Only the calling thread waits.
__device__ __forceinline__ void wait_alone(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done, lost;\n.reg .b64 start, now;\nmov.u64 start, %%clock64;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\n"
                 "mov.u64 now, %%clock64;\nsub.u64 now, now, start;\nsetp.gt.u64 lost, now, %2;\n@lost trap;\n"
                 "bra again;\nover:\n}"
                 ::"r"(barrier), "r"(parity), "l"(TIMEOUT) : "memory");
}

// All threads of a warp call it.
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    wait_alone(barrier, parity);
    __syncwarp();
}

__device__ __forceinline__ void cluster_sync() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

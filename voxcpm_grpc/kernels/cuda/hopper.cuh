// The kernels written for Hopper share this: number formats, and barriers in shared memory.
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

// Only the calling thread waits. Most waits end at once, so the clock is read only if one does not.
__device__ __forceinline__ void wait_alone(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done, lost;\n.reg .b64 start, now;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nmov.u64 start, %%clock64;\n"
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

// Both parts of a barrier over the cluster that orders no writes. All threads of a warp call them together.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// The other blocks of the cluster and copies see the barriers that this thread has initialized.
__device__ __forceinline__ void fence_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
}

__device__ __forceinline__ void sync_threads(int name, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(count) : "memory");
}

// Counts the calling threads among those of the barrier without waiting for the others.
__device__ __forceinline__ void arrive_threads(int name, int count) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(count) : "memory");
}

__device__ __forceinline__ u32 clocks() {
    u32 now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

__device__ __forceinline__ const void* shared_pointer(u32 address) { return __cvta_shared_to_generic(address); }

// A launch may overlap with the previous one: see kernels/launch.py.
__device__ __forceinline__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void await_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The address of this block's shared memory in the block `rank` of the cluster.
__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Describes rows of 128 bytes in shared memory, with their 16-byte parts exchanged, to the matrix unit.
__device__ __forceinline__ u64 matrix(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The descriptor of the same rows from `bytes` on. Only its lower word differs, so it costs one addition of 32 bits.
__device__ __forceinline__ u64 matrix_from(u64 matrix, u32 bytes) {
    return matrix & ~0xffffffffull | (u32)((u32)matrix + bytes / 16);
}

// A group of four warps calls these before and after the products that it gives to the matrix unit.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Copies global memory to shared memory; the barrier expects the bytes. The cache drops the lines first: what is copied
// is too large to be found there when it is needed again.
__device__ __forceinline__ void copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

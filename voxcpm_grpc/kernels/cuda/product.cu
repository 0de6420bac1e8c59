// A matrix product of activations with a large weight, fused with what surrounds it in a transformer layer.
//
// out [rows, outputs] = x [rows, inputs] times weight [outputs, inputs], both as they lie. A block makes a tile of BM
// outputs x BN rows: the weights take the matrix unit's first side, which comes in 64s, and the rows its second, which
// comes in 8s, so that little of it is padding. One warp copies slabs of 64 inputs of both into a ring of slots in
// shared memory, groups of four warps multiply them. The first weights are asked for before the kernel ahead has ended.
//
// SPLITS blocks of a cluster share the inputs of a tile and add up through their shared memories, in a fixed order.
// SHARE neighbours of a cluster have the same rows: each copies a part of them for all.
//
// Compiled with BM, BN, STAGES, SPLITS, SHARE, RESIDENT (blocks of a multiprocessor) and ROLE; `multiply`, the
// instruction that is BN wide, precedes this text.

constexpr int LINEAR = 0, GATED = 1, ADD = 2;
constexpr int DEPTH = 64;                                        // inputs of a slab: a row of it is 128 bytes
constexpr int WARPGROUPS = BM > 64 ? 2 : 1, WM = BM / WARPGROUPS, ATOMS = WM / 64;
constexpr bool LARGE = ATOMS * BN > 256;                         // sums that need the registers of who copies, too
constexpr int CONSUMERS = 128 * WARPGROUPS, THREADS = CONSUMERS + (LARGE ? 128 : 32);
constexpr int WEIGHT_BYTES = BM * 128, X_BYTES = BN * 128, SLOT = WEIGHT_BYTES + X_BYTES;
constexpr int OUTPUTS = ROLE == GATED ? BM / 2 : BM, OWN = OUTPUTS / WARPGROUPS;      // of a tile, of a group of warps
constexpr bool LATE = SPLITS > 1 || ROLE == ADD;                 // sums are finished row by row, not where they were made
constexpr int PITCH = OWN * 2 + 16, SUM_PITCH = BM + 4;          // bytes, floats: rows that avoid each other's banks
constexpr int SHARED_ROWS = BN / SPLITS;                         // rows of a tile that a block finishes
constexpr int EIGHTS = OUTPUTS / 8, UNITS = (SHARED_ROWS * EIGHTS + CONSUMERS - 1) / CONSUMERS;

struct alignas(64) TensorMap { u64 words[16]; };

struct Arguments {
    const u16* residual;     // [rows, outputs]
    u16* out;                // [rows, outputs]
    const float* squares;    // [parts, rows]: of x, to be divided by their root mean; null where parts is 0
    float* made;             // [outputs / BM, rows]: of out
    int rows, inputs, outputs, parts, tiles;
    float eps, scale;
};

struct Shared {
    u64 full[STAGES], empty[STAGES];
    alignas(16) float factor[BN];
};

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ float4 read(u32 cluster_address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(cluster_address) : "memory");
    return v;
}

__device__ __forceinline__ void sync_threads(int name, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(count) : "memory");
}

__device__ __forceinline__ void await_kernel_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// How the matrix unit finds rows of 128 bytes that were copied with their 16-byte parts exchanged.
__device__ __forceinline__ u64 matrix(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

struct Block {
    const TensorMap &weight, &x;
    const Arguments& a;
    Shared& s;
    const u32 ring;
    char* const memory;      // the ring, and behind it what the groups of warps hand out
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = blockIdx.y * BN;
    const int slabs = a.inputs / (DEPTH * SPLITS);
    const u32 rank = SPLITS * SHARE > 1 ? cluster_rank() : 0;

    // Barriers, and the first weights, which no kernel ahead writes.
    __device__ void start() const {
        if (threadIdx.x == CONSUMERS) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&weight) : "memory");
            asm volatile("prefetch.tensormap [%0];" ::"l"(&x) : "memory");
            for (int i = 0; i < STAGES; i++) {
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(s.full + i)) : "memory");
                asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                             ::"r"(shared_address(s.empty + i)), "n"(CONSUMERS / 32 * SHARE) : "memory");
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            fence_async();
            for (int i = 0; i < ahead(); i++) copy_weight(i);
        }
        __syncwarp();
        if (SPLITS * SHARE > 1) cluster_sync(); else __syncthreads();
    }

    // ---- the warp that copies

    __device__ __forceinline__ int copies() const {      // slabs of all tiles of this block
        return (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * slabs;
    }

    __device__ __forceinline__ int ahead() const { return min(copies(), STAGES); }

    __device__ __forceinline__ void copy_weight(int i) const {
        const u32 slot = i % STAGES, barrier = shared_address(s.full + slot), to = ring + slot * SLOT;
        const int tile = blockIdx.x + i / slabs * gridDim.x, k = (blockIdx.z * slabs + i % slabs) * DEPTH;
        expect(barrier, SLOT);
        if (ROLE == GATED) {      // 8 gates, the 8 values that they gate, and so on
            asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1, {%2, %3, %3, %4}], [%5];"
                         ::"r"(to), "l"(&weight), "r"(k), "r"(0), "r"(tile * (BM / 16)), "r"(barrier) : "memory");
        } else {
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1, {%2, %3}], [%4];"
                         ::"r"(to), "l"(&weight), "r"(k), "r"(tile * BM), "r"(barrier) : "memory");
        }
    }

    __device__ __forceinline__ void copy_rows(int i) const {
        const u32 slot = i % STAGES, barrier = shared_address(s.full + slot), to = ring + slot * SLOT + WEIGHT_BYTES;
        const int k = (blockIdx.z * slabs + i % slabs) * DEPTH;
        if (SHARE > 1) {
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                         ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                         ::"r"(to + rank * (X_BYTES / SHARE)), "l"(&x), "r"(k), "r"(first_row + (int)rank * (BN / SHARE)),
                         "r"(barrier), "h"((u16)((1 << SHARE) - 1)) : "memory");
        } else {
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1, {%2, %3}], [%4];"
                         ::"r"(to), "l"(&x), "r"(k), "r"(first_row), "r"(barrier) : "memory");
        }
    }

    __device__ void copy() const {
        await_kernel_ahead();
        for (int i = 0; i < ahead(); i++) copy_rows(i);
        for (int i = STAGES; i < copies(); i++) {
            wait_alone(shared_address(s.empty + i % STAGES), i / STAGES + 1 & 1);
            copy_weight(i);
            copy_rows(i);
        }
    }

    // ---- the groups of warps that multiply

    __device__ __forceinline__ void release(u32 slot, bool when = true) const {
        const u32 barrier = shared_address(s.empty + slot);
        const u32 one = when && lane < SHARE;      // a warp tells every block that copies into this slot
        if constexpr (SHARE == 1)
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }"
                         ::"r"(barrier), "r"(one) : "memory");
        else
            asm volatile("{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, %1, 0; @p mapa.shared::cluster.u32 there, %0, %2; "
                         "@p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
                         ::"r"(barrier), "r"(one), "r"(lane) : "memory");
    }

    __device__ __forceinline__ void sum(float (&acc)[ATOMS][BN / 2], u32& slot, u32& parity) const {
        const int group = warp / 4;
        for (int k = 0; k < slabs; k++) {
            wait(shared_address(s.full + slot), parity);
            const u64 w = matrix(ring + slot * SLOT + group * WM * 128), y = matrix(ring + slot * SLOT + WEIGHT_BYTES);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++)
#pragma unroll
                for (int m = 0; m < ATOMS; m++) multiply(acc[m], w + m * (64 * 128 / 16) + 2 * i, y + 2 * i, k + i > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            release(slot ? slot - 1 : STAGES - 1, k > 0);
            if (++slot == STAGES) slot = 0, parity ^= 1;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int m = 0; m < ATOMS; m++)
#pragma unroll
            for (int i = 0; i < BN / 2; i++) asm volatile("" : "+f"(acc[m][i]) :: "memory");
        release(slot ? slot - 1 : STAGES - 1);
    }

    // What each row of the product is multiplied with, so that it is that of the normalized row.
    __device__ __forceinline__ void find_factors() const {
        for (int n = threadIdx.x; n < BN; n += CONSUMERS) {
            float squares = 0;
            if (first_row + n < a.rows)
                for (int p = 0; p < a.parts; p++) squares += a.squares[(size_t)p * a.rows + first_row + n];
            s.factor[n] = a.parts ? rsqrtf(squares / a.inputs + a.eps) : 1;
        }
    }

    __device__ __forceinline__ static float gated(float gate, float up) { return gate / (1 + __expf(-gate)) * up; }

    // Rounded where they were made, turned round on the way through shared memory, and written out in rows.
    __device__ __forceinline__ void finish(const float (&acc)[ATOMS][BN / 2], int tile) const {
        const int group = warp / 4;
        char* const own = memory + STAGES * SLOT + group * BN * PITCH;
        sync_threads(2 + group, 128);      // what lay here is written out
#pragma unroll
        for (int m = 0; m < ATOMS; m++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                const float2 f = *(const float2*)(s.factor + 8 * j + lane % 4 * 2);
                const float* d = acc[m] + 4 * j;
                const float lower[2] = {d[0] * f.x, d[1] * f.y}, upper[2] = {d[2] * f.x, d[3] * f.y};
                const u32 row = shared_address(own + (8 * j + lane % 8) * PITCH);
                if (ROLE == GATED) {
                    const u32 word = pack(gated(lower[0], upper[0]), gated(lower[1], upper[1]));
                    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                                 ::"r"(row + (m * 32 + warp % 4 * 8) * 2), "r"(word) : "memory");
                } else {
                    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                                 ::"r"(row + (m * 64 + warp % 4 * 16 + lane / 8 % 2 * 8) * 2),
                                 "r"(pack(lower[0], lower[1])), "r"(pack(upper[0], upper[1])) : "memory");
                }
            }
        sync_threads(2 + group, 128);
        for (int u = threadIdx.x % 128; u < BN * (OWN / 8); u += 128) {
            const int n = u / (OWN / 8), o = u % (OWN / 8) * 8;
            if (first_row + n < a.rows)
                *(uint4*)(a.out + (size_t)(first_row + n) * a.outputs + tile * OUTPUTS + group * OWN + o) =
                    *(const uint4*)(own + n * PITCH + o * 2);
        }
    }

    // The rows that this block finishes, eight outputs of a row at a time; false past the end.
    __device__ __forceinline__ bool unit(int i, int& n, int& o) const {
        const int u = i * CONSUMERS + threadIdx.x;
        n = (SPLITS > 1 ? rank * SHARED_ROWS : 0) + u / EIGHTS, o = u % EIGHTS * 8;
        return u < SHARED_ROWS * EIGHTS && first_row + n < a.rows;
    }

    __device__ __forceinline__ uint4* place(void* base, int n, int o) const {
        return (uint4*)((u16*)base + (size_t)(first_row + n) * a.outputs + blockIdx.x * OUTPUTS + o);
    }

    __device__ __forceinline__ void put_sums(const float (&acc)[ATOMS][BN / 2]) const {
        sync_threads(1, CONSUMERS);        // nobody reads the ring any more
#pragma unroll
        for (int m = 0; m < ATOMS; m++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                float* at = (float*)memory + (8 * j + lane % 4 * 2) * SUM_PITCH + warp / 4 * WM + m * 64 + warp % 4 * 16 + lane / 4;
                const float* d = acc[m] + 4 * j;
                at[0] = d[0], at[SUM_PITCH] = d[1], at[8] = d[2], at[SUM_PITCH + 8] = d[3];
            }
    }

    // Eight sums of a row from `at` on, over all splits.
    __device__ __forceinline__ void take(int n, int at, float (&y)[8]) const {
        const u32 here = ring + (n * SUM_PITCH + at) * 4;
#pragma unroll
        for (int r = 0; r < SPLITS; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float4 v = SPLITS > 1 ? read(in_block(here + 16 * half, r))
                                            : *(const float4*)((const float*)memory + n * SUM_PITCH + at + 4 * half);
                float* to = y + 4 * half;
                if (r == 0) to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
                else to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w;
            }
    }

    __device__ __forceinline__ void finish_rows(const uint4 (&before)[UNITS]) const {
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            int n, o;
            const bool here = unit(i, n, o);
            float y[8] = {};
            if (here && ROLE == GATED) {
                float up[8];
                take(n, 2 * o, y);
                take(n, 2 * o + 8, up);
#pragma unroll
                for (int c = 0; c < 8; c++) y[c] = gated(y[c] * s.factor[n], up[c] * s.factor[n]);
            } else if (here) {
                take(n, o, y);
                const u32 words[4] = {before[i].x, before[i].y, before[i].z, before[i].w};
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    if (ROLE == ADD) y[c] = y[c] * a.scale + (c % 2 ? high(words[c / 2]) : low(words[c / 2]));
                    else y[c] *= s.factor[n];
                }
            }
            const uint4 v = make_uint4(pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7]));
            if (here) *place(a.out, n, o) = v;
            if (ROLE == ADD) {             // of what is written: the norm is that of the rounded row
                float squares = low(v.x) * low(v.x) + high(v.x) * high(v.x) + low(v.y) * low(v.y) + high(v.y) * high(v.y);
                squares += low(v.z) * low(v.z) + high(v.z) * high(v.z) + low(v.w) * low(v.w) + high(v.w) * high(v.w);
#pragma unroll
                for (int step = 1; step < EIGHTS; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
                if (here && o == 0) a.made[(size_t)blockIdx.x * a.rows + first_row + n] = squares;
            }
        }
    }

    __device__ void multiply_tiles() const {
        await_kernel_ahead();
        if (ROLE != ADD) find_factors();
        uint4 before[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            int n, o;
            if (ROLE == ADD && unit(i, n, o)) before[i] = *place((void*)a.residual, n, o);
        }
        sync_threads(1, CONSUMERS);
        u32 slot = 0, parity = 0;
        float acc[ATOMS][BN / 2];
        for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
            sum(acc, slot, parity);
            if (LATE) put_sums(acc); else finish(acc, tile);
        }
        if (!LATE) return;
        if (SPLITS > 1) cluster_sync(); else sync_threads(1, CONSUMERS);
        finish_rows(before);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
product(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    __shared__ Shared s;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    char* const memory = dynamic + (-shared_address(dynamic) & 1023);
    Block block{weight, x, a, s, shared_address(memory), memory};
    block.start();
    if (block.warp < CONSUMERS / 32) {
        if (LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        block.multiply_tiles();
    } else {
        if (LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == CONSUMERS) block.copy();
        __syncwarp();
        if (SPLITS > 1) cluster_sync();
    }
    if (SPLITS * SHARE > 1) cluster_sync();      // nobody leaves whose memory the others may still use
}

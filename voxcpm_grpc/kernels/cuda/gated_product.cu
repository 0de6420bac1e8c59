// Gate, up and SwiGLU of a transformer layer in one product, with the norm before it.
//
// out [rows, outputs] = silu(g) * u, where g and u are the first and the second half of x [rows, INPUTS] times weight
// [2 outputs, INPUTS], divided by the root mean square of each row of x. All matrices are bfloat16 and row-major.
//
// A block computes tiles of WEIGHTS weights x ROWS rows. The weights are the first operand of the matrix unit, whose
// side is 64, and the rows are the second, whose side is a multiple of 8, so that little of it is padding. All tiles of
// a block have the same rows. One warp copies slabs of 64 inputs of both operands to a ring of slots in shared memory.
// Two groups of four warps multiply them. Three more warps add up squares of rows and
// exchange the sums with the blocks that have the same rows. The copies of the next tile run during the SwiGLU of a tile.
//
// A tile has 8 gates, the 8 weights of up that belong to them, and so on, so that a thread has both sums of an output.
//
// The blocks of a pair (a cluster) have the same weights and different rows. Each copies half of the weights for both.
//
// The program is compiled with INPUTS, WEIGHTS, ROWS and STAGES (slots). `multiply`, the matrix instruction for ROWS rows,
// precedes this text.

constexpr int DEPTH = 64, SLABS = INPUTS / DEPTH;      // inputs of a slab: 128 bytes of a row
constexpr int PAIR = 2;                                // blocks of a cluster
constexpr int ATOMS = WEIGHTS / 128;                   // matrix instructions of a group for 16 inputs
constexpr int CONSUMERS = 8, MEASURERS = 3;            // warps
constexpr int THREADS = 32 * (CONSUMERS + 1 + MEASURERS);
constexpr int HALF_BYTES = ATOMS * 64 * 128, WEIGHT_BYTES = 2 * HALF_BYTES, X_BYTES = ROWS * 128;
constexpr int SLOT = WEIGHT_BYTES + X_BYTES;
constexpr long long PATIENCE = 50000;                  // clocks until a block measures a row of another one
constexpr int STAGING = 512;                           // bytes of four 8 x 8 matrices; a warp has two of these
constexpr bool WHOLE = SLABS % STAGES == 0;            // every tile begins with the first slot
constexpr bool LARGE = ATOMS * ROWS / 2 > 112;         // sums that need registers of the other warps

struct alignas(64) TensorMap { u64 words[16]; };

struct Arguments {
    u16* out;                // [rows, outputs]
    const u16* x;
    u64* packets;            // [1 + rows]: two counters, the tag of the last launch and zero; each row's scale below its tag
    int rows, outputs, tiles;
    float eps;
};

struct Shared {
    u64 full[STAGES], empty[STAGES], scaled;
    alignas(16) float2 scale[ROWS];      // the scale is that of the exponent of 2 in silu, and of gate times up
    alignas(16) char staging[CONSUMERS][2][STAGING];
};

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Unlike `cluster_sync` it does not publish stores.
__device__ __forceinline__ void sync_pair() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// silu(gate) * up of two outputs, rounded. `scale` has those of both rows. They share one reciprocal, because the unit for
// it is the slowest part of a SwiGLU. The limit of the exponent keeps the product of the denominators finite; silu is 0
// there.
__device__ __forceinline__ u32 swiglu(float gate0, float up0, float gate1, float up1, const float4& scale) {
    const float d0 = 1 + power_of_two(fminf(gate0 * scale.x, 60)), d1 = 1 + power_of_two(fminf(gate1 * scale.z, 60));
    const float r = reciprocal(d0 * d1);
    return pack(gate0 * up0 * scale.y * (r * d1), gate1 * up1 * scale.w * (r * d0));
}

struct Block {
    const TensorMap &weight, &x;
    const Arguments& a;
    Shared& s;
    const u32 ring;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = blockIdx.y * ROWS;
    const u32 rank = cluster_rank();

    __device__ void start() const {
        if (threadIdx.x == 32 * CONSUMERS) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&weight) : "memory");
            asm volatile("prefetch.tensormap [%0];" ::"l"(&x) : "memory");
            for (int i = 0; i < STAGES; i++) {
                init_barrier(shared_address(&s.full[i]), 1);
                init_barrier(shared_address(&s.empty[i]), PAIR * CONSUMERS);
            }
            init_barrier(shared_address(&s.scaled), MEASURERS);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        sync_pair();
    }

    __device__ __forceinline__ int copies() const {      // slabs of all tiles of this block
        return (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * SLABS;
    }

    // Tells both blocks, which copy to this slot, that a warp does not read it any more. Nothing was written, so the
    // arrival has the scope of the block: that of the cluster would wait for all stores of the warp.
    __device__ __forceinline__ void release(u32 slot) const {
        asm volatile("{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, %1, 0; @p mapa.shared::cluster.u32 there, %0, %2; "
                     "@p mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                     ::"r"(shared_address(s.empty + slot)), "r"((u32)(lane < PAIR)), "r"(lane) : "memory");
    }

    // ---- the warp that copies

    __device__ __forceinline__ void copy_weights(int i) const {
        const u32 slot = i % STAGES, barrier = shared_address(s.full + slot);
        const u32 to = ring + slot * SLOT + rank * HALF_BYTES;
        const int half = 2 * (blockIdx.x + i / SLABS * gridDim.x) + rank;
        expect(barrier, SLOT);      // bytes of both halves
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%2, %3, %3, %4, %3}], [%5], %6;"
                     ::"r"(to), "l"(&weight), "r"(i % SLABS * DEPTH), "r"(0), "r"(half * 4), "r"(barrier), "h"((u16)3)
                     : "memory");
    }

    __device__ __forceinline__ void copy_rows(int i) const {
        const u32 slot = i % STAGES, to = ring + slot * SLOT + WEIGHT_BYTES;
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to), "l"(&x), "r"(i % SLABS * DEPTH), "r"(first_row), "r"(shared_address(s.full + slot))
                     : "memory");
    }

    // No kernel writes weights, so the first ones are copied before the previous kernel has ended.
    __device__ void copy() const {
        const int total = copies(), ahead = min(total, STAGES);
        for (int i = 0; i < ahead && lane == 0; i++) copy_weights(i);
        await_previous_kernel();
        for (int i = 0; i < ahead && lane == 0; i++) copy_rows(i);
        __syncwarp();
        for (int i = STAGES; i < total; i++) {
            wait(shared_address(s.empty + i % STAGES), i / STAGES + 1 & 1);
            if (lane == 0) {
                copy_weights(i);
                copy_rows(i);
            }
            __syncwarp();
        }
    }

    // ---- the warps that add up squares

    // The scale of the product that normalizes a row of x.
    __device__ float scale_of(int row) const {
        const u16* x = a.x + (size_t)row * INPUTS;
        float squares = 0;
#pragma unroll 4
        for (int part = lane; part < INPUTS / 8; part += 32) {
            uint4 v;
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(x + part * 8) : "memory");
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int w = 0; w < 4; w++) squares += low(words[w]) * low(words[w]) + high(words[w]) * high(words[w]);
        }
#pragma unroll
        for (int distance = 16; distance; distance /= 2) squares += __shfl_xor_sync(~0u, squares, distance);
        return rsqrtf(squares / INPUTS + a.eps);
    }

    // The result is false if the packet of a row does not come.
    __device__ bool receive(int row, u32 tag, float& scale) const {
        const long long start = clock64();
        u64 packet;
        do {
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(packet) : "l"(a.packets + 1 + row) : "memory");
            if (packet >> 32 == tag) {
                scale = __uint_as_float((u32)packet);
                return true;
            }
        } while (clock64() - start < PATIENCE);
        return false;
    }

    // Blocks beside each other have the same rows. Each measures its share of them and hands the scales to the others. If
    // one of them has not started, because other work of the GPU is in its place, its rows are measured here: no block
    // depends on another one.
    __device__ void measure() const {
        await_previous_kernel();
        u32* counters = (u32*)a.packets;
        u32 tag;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(tag) : "l"(counters) : "memory");
        tag++;
        const int rows = min(ROWS, a.rows - first_row);
        for (int n = blockIdx.x + (warp - CONSUMERS - 1) * gridDim.x; n < rows; n += MEASURERS * gridDim.x) {
            const u64 packet = (u64)tag << 32 | __float_as_uint(scale_of(first_row + n));
            if (lane == 0)
                asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(a.packets + 1 + first_row + n), "l"(packet) : "memory");
        }
        for (int first = (warp - CONSUMERS - 1) * 32; first < ROWS; first += MEASURERS * 32) {
            const int n = first + lane;
            float scale = 0;
            bool missing = n < rows && !receive(first_row + n, tag, scale);
            for (u32 lanes = __ballot_sync(~0u, missing); lanes; lanes &= lanes - 1) {
                const int from = __ffs(lanes) - 1;
                const float own = scale_of(first_row + first + from);
                if (lane == from) scale = own;
            }
            if (n < ROWS) s.scale[n] = make_float2(scale * -1.4426950408889634f, scale * scale);
        }
        __syncwarp();
        if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&s.scaled)) : "memory");
        // All blocks have read the tag when the last one writes the next.
        asm volatile("bar.sync 1, %0;" ::"n"(32 * MEASURERS) : "memory");
        if (threadIdx.x == 32 * (CONSUMERS + 1) && atomicAdd(counters + 1, 1) == gridDim.x * gridDim.y - 1) {
            counters[1] = 0;
            counters[0] = tag;
        }
    }

    // ---- the groups of warps that multiply

    // `taken` slabs were multiplied before. With few sums the loop is unrolled, so that the places of slabs are constants.
    __device__ __forceinline__ void sum(float (&acc)[ATOMS][ROWS / 2], u32 taken) const {
        const u32 own = ring + __shfl_sync(~0u, warp / 4, 0) * HALF_BYTES;      // the compiler sees that all lanes have the same
#pragma unroll ATOMS == 1 ? SLABS : 1
        for (u32 k = 0; k < SLABS; k++) {
            const u32 slot = WHOLE ? k % STAGES : (taken + k) % STAGES;
            wait(shared_address(s.full + slot), WHOLE ? taken / STAGES + k / STAGES & 1 : (taken + k) / STAGES & 1);
            const u64 w = matrix(own + slot * SLOT), y = matrix(ring + slot * SLOT + WEIGHT_BYTES);
            begin_products();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++)
#pragma unroll
                for (int m = 0; m < ATOMS; m++)
                    multiply(acc[m], matrix_from(w, m * 64 * 128 + 32 * i), matrix_from(y, 32 * i), k + i > 0);
            commit_products();
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (k > 0) release(slot ? slot - 1 : STAGES - 1);
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int m = 0; m < ATOMS; m++)
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(acc[m][i]) :: "memory");
        release((taken + SLABS - 1) % STAGES);
    }

    // A warp has 8 * ATOMS consecutive outputs of each row. It transposes four 8 x 8 matrices at a time through shared
    // memory, so that each thread stores 16 bytes of a row. The next four are computed before these are read.
    __device__ __forceinline__ void finish(const float (&acc)[ATOMS][ROWS / 2], int tile) const {
        constexpr int AT_ONCE = 32 / ATOMS, STEPS = (ROWS + AT_ONCE - 1) / AT_ONCE;      // rows
        u32 scale = shared_address(s.scale) + lane % 4 * 16;
        asm volatile("" : "+r"(scale) :: "memory");      // it is read after the wait for it
        const u32 staging = shared_address(s.staging[warp]);
        const u32 put = staging + lane / 8 * 128 + (lane % 8 ^ (ATOMS == 2 ? lane / 8 % 2 * 4 : 0)) * 16;
        const int row = lane / ATOMS, part = lane % ATOMS;
        const u32 get = staging + (row / 8 * ATOMS + part) * 128 + (row % 8 ^ part * 4) * 16;
        u16* to = a.out + (size_t)(first_row + row) * a.outputs + tile * (WEIGHTS / 2) + warp * (8 * ATOMS) + part * 8;
        const int rows = min(ROWS, a.rows - first_row) - row;      // rows of this tile, from this thread's first one on
#pragma unroll
        for (int c = 0; c <= STEPS; c++) {
            u32 words[4] = {};
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int j = c * (AT_ONCE / 8) + q / ATOMS;
                if (j >= ROWS / 8) continue;
                float4 f;
                asm("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                    : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w) : "r"(scale + j * 64));
                const float* d = acc[q % ATOMS] + 4 * j;      // the lower 8 rows of the result are gates
                words[q] = swiglu(d[0], d[2], d[1], d[3], f);
            }
            if (c > 0) {
                uint4 v;
                __syncwarp();
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(get + (c - 1) % 2 * STAGING));
                asm volatile("{ .reg .pred p; setp.gt.s32 p, %5, %6; @p st.global.v4.u32 [%4], {%0, %1, %2, %3}; }"
                             ::"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(to), "r"(rows), "r"((c - 1) * AT_ONCE) : "memory");
                to += (size_t)AT_ONCE * a.outputs;
            }
            if (c < STEPS)
                asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                             ::"r"(put + c % 2 * STAGING), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]));
        }
        __syncwarp();      // all have read before the next tile's first matrices are written
    }

    __device__ void multiply_tiles() const {
        await_previous_kernel();
        u32 taken = 0;
        float acc[ATOMS][ROWS / 2];
        for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, taken += SLABS) {
            sum(acc, taken);
            wait(shared_address(&s.scaled), 0);      // passes at once after the first tile
            finish(acc, tile);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gated_product(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    __shared__ Shared s;
    let_next_kernel_start();
    const u32 memory = shared_address(dynamic);
    Block block{weight, x, a, s, memory + (-memory & 1023)};
    block.start();
    if (block.warp < CONSUMERS) {
        if (LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        block.multiply_tiles();
    } else {
        if (LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (block.warp == CONSUMERS) block.copy(); else block.measure();
    }
    sync_pair();      // a block must not exit while the other one can still write to its memory
}

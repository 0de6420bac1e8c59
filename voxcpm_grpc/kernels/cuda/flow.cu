// The whole Euler loop of one stream in one launch: all evaluations of the diffusion transformer of a patch.
//
// 128 blocks, one on each multiprocessor, compute the layers together; a barrier over the grid ends each of the four
// phases of a layer. Four blocks form a group: each computes a quarter of the inputs of what is added to the residual.
// (Clusters of four could do that in shared memory, but an H200 runs only 30 of them at the same time. It runs enough
// pairs, which share copies.) The weights of a block are one sequence of slots of 16 KB, packed at load in the order of
// use, so that copies run ahead through a ring in shared memory independently of the phases.
//
// Rows: 2 halves (conditional, unconditional) of 12 rows, of which 11 are tokens and the last is padding: 24 = 3 x 8,
// the columns of three matrix instructions. The weights are their 16 rows. Between phases activations are stored in
// global memory in the operand order of the matrix unit ("fragments"), so one bulk copy loads the input of a phase.

constexpr int HIDDEN = 1024, HEAD = 128, PATCH = 4, LATENT = 64, TOKENS = 11;
constexpr int HALF = 12, ROWS = 24;
constexpr int CTAS = 128, RANKS = 4, CLUSTER = 2, THREADS = 256, WARPS = 8;
constexpr int SLOT = 16384, SLOTS = 11, SLOT_STEPS = 32;     // a slot: a tile of 16 outputs x 32 steps of 16 inputs
constexpr int INPUT = 49152;                                 // bytes of the activations that a phase reads
constexpr int FIRST_LATENT = TOKENS - PATCH, FIRST_CONDITION = FIRST_LATENT - PATCH, TIME = FIRST_CONDITION - 1;

struct Arguments {
    const char* weights;    // slots, block after block
    u32 *q, *kv, *mlp, *x;  // fragments; the padding of q and kv is zero
    const float* noise;     // [PATCH, LATENT]
    const u16* mu;          // [2, HIDDEN]
    const u16* condition;   // [PATCH, LATENT]
    const float* cfg;       // [1]
    const u16* time;        // [evaluations, HIDDEN]
    const float* size;      // [evaluations]
    const u16 *in_weight, *in_bias, *condition_weight, *condition_bias;  // [HIDDEN, LATENT], [HIDDEN]
    const u16* out_bias;    // [LATENT]
    const float2* rotation; // [HALF, HEAD / 2] cosine, sine
    float* out;             // [PATCH, LATENT]
    uint4* received;        // [groups, RANKS, RANKS, 4, ROWS] packets to a block, from a block
    uint2* velocity;        // [groups, 2, PATCH * LATENT] packets
    u32* counters;          // [3]: two counters, zero before and after; the tag of the last packet
    int layers, evaluations;
    float eps;
};

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The index of the word that holds inputs k and k + 1 (k even) of row n in the fragments of an input.
__device__ __forceinline__ int word_of(int k, int n) {
    return ((k / 16) * 3 + n / 8) * 64 + ((n % 8) * 4 + (k % 8) / 2) * 2 + (k % 16) / 8;
}

__device__ __forceinline__ void copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

__device__ __forceinline__ void copy_to_cluster(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"((u16)((1 << CLUSTER) - 1)) : "memory");
}

// A packet has a tag beside each value, so that its reader can detect its arrival. 8 bytes arrive together.
__device__ __forceinline__ void send(uint4* to, float first, float second, u32 tag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};"
                 ::"l"(to), "r"(__float_as_uint(first)), "r"(__float_as_uint(second)), "r"(tag) : "memory");
}

__device__ __forceinline__ void send(uint2* to, float value, u32 tag) {
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(__float_as_uint(value)), "r"(tag) : "memory");
}

__device__ __forceinline__ bool receive(const uint4* from, float& first, float& second, u32 tag) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    first = __uint_as_float(v.x), second = __uint_as_float(v.z);
    return v.y == tag && v.w == tag;
}

__device__ __forceinline__ bool receive(const uint2* from, float& value, u32 tag) {
    uint2 v;
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    value = __uint_as_float(v.x);
    return v.y == tag;
}

struct Shared {
    unsigned long long full[SLOTS], input;
    float squares[WARPS][ROWS];
    alignas(16) float latents[PATCH * LATENT];
    float dots[WARPS][2];
};

struct Block {
    const Arguments& a;
    Shared& s;
    char* ring;
    char* input;
    const int thread = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int cta = blockIdx.x, rank = blockIdx.x % RANKS, group = blockIdx.x / RANKS;
    const bool two_tiles = rank == 0;      // 160 tiles of q, k, v for 128 blocks: one block of a group has two
    const int pair = threadIdx.x % 4, row = threadIdx.x / 4;      // threads below 96: two channels of a row of the residual
    const int channel = 32 * group + 8 * rank + 2 * pair;
    const char* stream;                    // this block's weights
    u32 length, total, taken = 0, issued = 0, cursor = 0;         // slots
    u32 inputs = 0, target = 0, tag;
    float residual[2];
    float2 turn[2];                        // rotation of the channels that this thread rotates, in any tile

    __device__ Block(const Arguments& a, Shared& s, char* memory) : a(a), s(s), ring(memory), input(memory + SLOTS * SLOT) {
        const u32 lean = 16 * a.layers + 2, more = 2 * a.layers;
        length = lean + (two_tiles ? more : 0);
        total = length * a.evaluations;
        stream = a.weights + ((size_t)lean * cta + (size_t)more * ((cta + RANKS - 1) / RANKS)) * SLOT;
    }

    // Copies weights into free slots of the ring. All threads count, one thread issues the copies.
    __device__ __forceinline__ void refill(int most = SLOTS) {
        for (; most > 0 && issued < total && issued < taken + SLOTS; issued++, most--) {
            if (thread == 0) {
                const u32 slot = issued % SLOTS, barrier = shared_address(&s.full[slot]);
                expect(barrier, SLOT);
                copy(shared_address(ring + slot * SLOT), stream + (size_t)cursor * SLOT, SLOT, barrier);
            }
            cursor = cursor + 1 == length ? 0 : cursor + 1;
        }
        __syncwarp();
    }

    // Barrier over the grid. All earlier writes of all blocks are visible to `load`, with which thread 0 fetches the next
    // input. One copy of weights is issued before the wait and the others after the input: if they were issued before the
    // fence, it would wait for them; if all were issued before the input, it would queue behind them; if all were issued
    // after it, the memory would idle while blocks wait for each other.
    template <class Load> __device__ __forceinline__ void sync_grid(Load load) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        target += CTAS;
        if (thread == 0) {
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.counters) : "memory");
        }
        refill(1);
        if (thread == 0) {
            const long long start = clock64();
            for (u32 seen = 0; seen < target;) {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(a.counters) : "memory");
                if (clock64() - start > TIMEOUT) __trap();
            }
            asm volatile("fence.proxy.async.global;" ::: "memory");      // the copies see the stores of other blocks
            expect(shared_address(&s.input), INPUT);
            load(shared_address(input), shared_address(&s.input));
        }
        __syncwarp();
        refill();
    }

    __device__ __forceinline__ void wait_input() { wait(shared_address(&s.input), inputs++ & 1); }

    // All blocks read the same input: each block of a cluster copies a part to the whole cluster.
    __device__ __forceinline__ void sync_residual() {
        sync_grid([&](u32 to, u32 barrier) {
            const int part = INPUT / CLUSTER, at = cta % CLUSTER * part;
            copy_to_cluster(to + at, (const char*)a.x + at, part, barrier);
        });
    }

    // TILES x 16 outputs; each warp computes an eighth of the inputs, STEPS x 16. The partial sums overwrite the input.
    template <int TILES, int STEPS, bool NORM> __device__ __forceinline__ void multiply() {
        constexpr int DEPTH = STEPS * WARPS / SLOT_STEPS;      // slots of a tile
        const int first = warp * STEPS;
        const uint4* weight[TILES];
        float sum[TILES][3][4] = {}, squares[3] = {};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u32 n = taken + t * DEPTH + first / SLOT_STEPS;
            wait(shared_address(&s.full[n % SLOTS]), (n / SLOTS) & 1);
            weight[t] = (const uint4*)(ring + (n % SLOTS) * SLOT) + (first % SLOT_STEPS) * 32 + lane;
        }
        const uint2* x = (const uint2*)input + first * 96 + lane;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint2 b[3];
#pragma unroll
            for (int n = 0; n < 3; n++) {
                b[n] = x[k * 96 + n * 32];
                if (NORM) {
                    squares[n] += low(b[n].x) * low(b[n].x) + high(b[n].x) * high(b[n].x);
                    squares[n] += low(b[n].y) * low(b[n].y) + high(b[n].y) * high(b[n].y);
                }
            }
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 w = weight[t][k * 32];
#pragma unroll
                for (int n = 0; n < 3; n++) mma(sum[t][n], w, b[n].x, b[n].y);
            }
        }
        __syncthreads();
        taken += TILES * DEPTH;
        float* parts = (float*)input + warp * TILES * 16 * ROWS;
        const int r = lane / 4, c = lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < 3; n++) {
                float* at = parts + (t * 16 + r) * ROWS + n * 8 + c;
                *(float2*)at = make_float2(sum[t][n][0], sum[t][n][1]);
                *(float2*)(at + 8 * ROWS) = make_float2(sum[t][n][2], sum[t][n][3]);
            }
        if (NORM) {
#pragma unroll
            for (int n = 0; n < 3; n++) {
                squares[n] += __shfl_xor_sync(~0u, squares[n], 1);
                squares[n] += __shfl_xor_sync(~0u, squares[n], 2);
                if (lane % 4 == 0) s.squares[warp][n * 8 + r] = squares[n];
            }
        }
        __syncthreads();
    }

    template <int TILES> __device__ __forceinline__ float total_of(int tile, int output, int n) const {
        const float* at = (const float*)input + (tile * 16 + output) * ROWS + n;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += at[w * TILES * 16 * ROWS];
        return sum;
    }

    __device__ __forceinline__ float scale_of(int n) const {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += s.squares[w][n];
        return rsqrtf(sum / HIDDEN + a.eps);
    }

    // A tile of q or k has 8 channels and the 8 channels they are rotated with; a tile of v has 16 consecutive channels.
    template <int TILES> __device__ __forceinline__ void project() {
        multiply<TILES, 8, true>();
        if (thread < TILES * 96) {
            const int tile = thread / 96, id = tile ? CTAS + group : cta, v = thread % 96;
            if (id >= 144) {
                const int r = v % 8, n = v / 8 * 2, half = n / HALF, p = n % HALF / 2;
                const int kv_head = (id - 144) / 8;
                u32* to = a.kv + (kv_head * 2 + half) * 2048 + 1024;
                const float s0 = scale_of(n), s1 = scale_of(n + 1);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int o = r + 8 * i, d = (id - 144) % 8 * 16 + o;
                    const float first = total_of<TILES>(tile, o, n) * s0, second = total_of<TILES>(tile, o, n + 1) * s1;
                    to[d / 16 * 128 + (d % 8 * 4 + p % 4) * 4 + d / 8 % 2 * 2 + p / 4] = pack(first, second);
                }
                return;
            }
            const int j = v % 4, n = v / 4, half = n / HALF, m = n % HALF;
            const int head = id / 8, d = id % 8 * 8 + 2 * j;
            const float scale = scale_of(n);
            float lower[2], upper[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float x = total_of<TILES>(tile, 2 * j + i, n) * scale;
                const float y = total_of<TILES>(tile, 2 * j + i + 8, n) * scale;
                lower[i] = x * turn[i].x - y * turn[i].y;
                upper[i] = y * turn[i].x + x * turn[i].y;
            }
            const bool key = id >= CTAS;
            u32* to = key ? a.kv + ((head - 16) * 2 + half) * 2048 : a.q + (head * 2 + half) * 1024;
            const int word = d / 16 * 128 + (m % 8 * 4 + j) * 4 + (key ? m / 8 * 2 + d / 8 % 2 : d / 8 % 2 * 2 + m / 8);
            to[word] = pack(lower[0], lower[1]);
            to[word + 4 * 128] = pack(upper[0], upper[1]);
        }
    }

    // A block computes attention for the four heads whose output it maps: a warp for each head and half. The output
    // overwrites the input.
    __device__ __forceinline__ void attend() {
        const int head = warp / 2, half = warp % 2;
        const uint4* q = (const uint4*)input + warp * 256 + lane;
        const uint4* k = (const uint4*)input + 2048 + half * 512 + lane;
        const uint4* v = k + 256;
        float score[2][4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 x = q[i * 32], y = k[i * 32];
            mma(score[0], x, y.x, y.y);
            mma(score[1], x, y.z, y.w);
        }
        const float factor = 1.4426950408889634f * 0.08838834764831845f;      // log2(e) / sqrt(HEAD)
        float sum[2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = -1e30f;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i / 2 * 8 + lane % 4 * 2 + i % 2 < TOKENS) top = fmaxf(top, score[i / 2][r * 2 + i % 2]);
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float& x = score[i / 2][r * 2 + i % 2];
                x = i / 2 * 8 + lane % 4 * 2 + i % 2 < TOKENS ? exp2f((x - top) * factor) : 0;
                sum[r] += x;
            }
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
            sum[r] = 1 / sum[r];
        }
        const uint4 weights = make_uint4(pack(score[0][0], score[0][1]), pack(score[0][2], score[0][3]),
                                         pack(score[1][0], score[1][1]), pack(score[1][2], score[1][3]));
        float mixed[16][4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 y = v[i * 32];
            mma(mixed[2 * i], weights, y.x, y.y);
            mma(mixed[2 * i + 1], weights, y.z, y.w);
        }
        __syncthreads();
        u32* to = (u32*)input;
        const int m = lane / 4, c = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int d = head * HEAD + i * 8 + c;
            to[word_of(d, half * HALF + m)] = pack(mixed[i][0] * sum[0], mixed[i][1] * sum[0]);
            if (m + 8 < HALF) to[word_of(d, half * HALF + m + 8)] = pack(mixed[i][2] * sum[1], mixed[i][3] * sum[1]);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void store_residual() {
        if (thread < 96) a.x[word_of(channel, row)] = pack(residual[0], residual[1]);
    }

    // Each block of a group computes 32 channels from a quarter of the inputs, and adds up 8 of them in a fixed order.
    template <int STEPS> __device__ __forceinline__ void map_and_add() {
        multiply<2, STEPS, false>();
        uint4* packets = a.received + group * RANKS * RANKS * 96;
        tag++;
        for (int u = thread; u < 16 * ROWS; u += THREADS) {
            const int c = u / ROWS, n = u % ROWS, tile = c / 8, o = c % 8 * 2;
            send(packets + (c / 4 * RANKS + rank) * 96 + c % 4 * ROWS + n,
                 total_of<2>(tile, o, n), total_of<2>(tile, o + 1, n), tag);
        }
        if (thread < 96) {
            const uint4* from = packets + rank * RANKS * 96 + pair * ROWS + row;
            float parts[RANKS][2];
            const long long start = clock64();
            for (bool all = false; !all;) {
                all = true;
#pragma unroll
                for (int r = 0; r < RANKS; r++) all &= receive(from + r * 96, parts[r][0], parts[r][1], tag);
                if (!all && clock64() - start > TIMEOUT) __trap();
            }
#pragma unroll
            for (int r = 0; r < RANKS; r++) residual[0] += parts[r][0], residual[1] += parts[r][1];
        }
        store_residual();
    }

    __device__ __forceinline__ void gate() {
        multiply<4, 8, true>();
        for (int u = thread; u < 4 * 96; u += THREADS) {
            const int tile = u / 96, j = u % 4, n = u % 96 / 4;
            const float scale = scale_of(n);
            float y[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float g = total_of<4>(tile, 2 * j + i, n) * scale;
                y[i] = g / (1 + __expf(-g)) * (total_of<4>(tile, 2 * j + i + 8, n) * scale);
            }
            a.mlp[word_of(32 * cta + 8 * tile + 2 * j, n)] = pack(y[0], y[1]);
        }
    }

    __device__ __forceinline__ void layer() {
        wait_input();
        if (two_tiles) project<2>(); else project<1>();
        sync_grid([&](u32 to, u32 barrier) {
            copy(to, a.q + rank * 8192, 32768, barrier);
            copy(to + 32768, a.kv + rank / 2 * 4096, 16384, barrier);
        });
        wait_input();
        attend();
        map_and_add<4>();
        sync_residual();
        wait_input();
        gate();
        sync_grid([&](u32 to, u32 barrier) { copy(to, (const char*)a.mlp + rank * INPUT, INPUT, barrier); });
        wait_input();
        map_and_add<8>();
        sync_residual();
    }

    // Channel c at frame p of the linear map of the latents.
    __device__ __forceinline__ float lift(const u16* weight, const u16* bias, int c, int p) const {
        float sum = widen(bias[c]);
        const uint4* w = (const uint4*)(weight + c * LATENT);
        const float* x = s.latents + p * LATENT;
#pragma unroll
        for (int i = 0; i < LATENT / 8; i++) {
            const uint4 v = w[i];
            const float4 y = *(const float4*)(x + 8 * i), z = *(const float4*)(x + 8 * i + 4);
            sum += low(v.x) * y.x + high(v.x) * y.y + low(v.y) * y.z + high(v.y) * y.w;
            sum += low(v.z) * z.x + high(v.z) * z.y + low(v.w) * z.z + high(v.w) * z.w;
        }
        return sum;
    }

    // Every block computes the same latents: thread 64 p + d has latent d of frame p, and then its velocities c and u.
    __device__ __forceinline__ float guide(float x, float size, float cfg) {
        multiply<1, 8, true>();
        uint2* packets = a.velocity + group * 2 * PATCH * LATENT;
        tag++;
        for (int v = thread; v < 16 * ROWS; v += THREADS) {
            const int o = v / ROWS, n = v % ROWS, p = n % HALF - FIRST_LATENT;
            if (p < 0 || p >= PATCH) continue;
            const float y = total_of<1>(0, o, n) * scale_of(n) + widen(a.out_bias[16 * rank + o]);
            send(packets + n / HALF * PATCH * LATENT + p * LATENT + 16 * rank + o, y, tag);
        }
        float c, u;
        const long long start = clock64();
        while (!(receive(packets + thread, c, tag) & receive(packets + PATCH * LATENT + thread, u, tag)))
            if (clock64() - start > TIMEOUT) __trap();
        __syncwarp();
        float cu = c * u, uu = u * u;
#pragma unroll
        for (int i = 16; i; i /= 2) {
            cu += __shfl_xor_sync(~0u, cu, i);
            uu += __shfl_xor_sync(~0u, uu, i);
        }
        if (lane == 0) s.dots[warp][0] = cu, s.dots[warp][1] = uu;
        __syncthreads();
        cu = uu = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) cu += s.dots[w][0], uu += s.dots[w][1];
        const float fitted = u * (cu / (uu + 1e-8f));
        return x - size * (fitted + cfg * (c - fitted));
    }

    __device__ void run() {
        if (thread == 0) {
            for (int i = 0; i <= SLOTS; i++) {      // the barrier `input` follows those of the slots
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&s.full[0] + i)) : "memory");
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            fence_async();
        }
        __syncthreads();
        refill();
        s.latents[thread] = widen(a.condition[thread]);
        __syncthreads();
        const int half = row / HALF, token = row % HALF;
        float fixed[2] = {};
        for (int i = 0; i < 2 && thread < 96; i++) {
            if (token < TIME && half == 0) fixed[i] = widen(a.mu[token * HIDDEN + channel + i]);
            if (token >= FIRST_CONDITION && token < FIRST_LATENT)
                fixed[i] = lift(a.condition_weight, a.condition_bias, channel + i, token - FIRST_CONDITION);
        }
        tag = a.counters[2];
        for (int i = 0; i < 2 && thread < 192; i++) {
            const int tile = thread < 96 ? cta : CTAS + group, v = thread % 96;
            turn[i] = a.rotation[v / 4 % HALF * (HEAD / 2) + tile % 8 * 8 + v % 4 * 2 + i];
        }
        float x = a.noise[thread];
        const float cfg = a.cfg[0];
        for (int e = 0; e < a.evaluations; e++) {
            __syncthreads();
            s.latents[thread] = low(pack(x, x));
            __syncthreads();
            for (int i = 0; i < 2 && thread < 96; i++) {
                residual[i] = fixed[i];
                if (token == TIME) residual[i] = widen(a.time[e * HIDDEN + channel + i]);
                if (token >= FIRST_LATENT && token < TOKENS)
                    residual[i] = lift(a.in_weight, a.in_bias, channel + i, token - FIRST_LATENT);
            }
            store_residual();
            sync_residual();
            for (int l = 0; l < a.layers; l++) layer();
            wait_input();
            x = guide(x, a.size[e], cfg);
        }
        if (cta == 0) a.out[thread] = x;
        cluster_sync();      // a block must not exit while the other one can still write to its memory
        if (thread == 0 && atomicAdd(a.counters + 1, 1) == CTAS - 1) {
            a.counters[0] = a.counters[1] = 0;
            a.counters[2] = tag;
            __threadfence();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) char memory[];
    __shared__ Shared s;
    Block block(a, s, memory);
    block.run();
}

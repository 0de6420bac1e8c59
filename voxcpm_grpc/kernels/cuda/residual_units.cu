// The residual units of a block of the codec's decoder for a patch of every stream, without storing what lies between.
//
// A group of SPLIT x 4 warps computes a segment of a stream, 64 x TILES samples at a time. The sum y of the residual
// units stays in registers, as the sums of the matrix unit. The input of a unit, the snake of y, goes through shared
// memory, where the last inputs of each unit are kept for the next samples. A segment that is not the first one of its
// stream starts HISTORY samples early, with zeros as the past, and discards what it computes of them.
//
// The weights stay in shared memory, or, with STAGES, each four warps copy theirs again and again to a ring of slots.
// With PAIRS the block's upsampling by two is computed here too, from the samples before it.
//
// A thread has sums of pairs of channels. So that they are 8 contiguous channels, the rows of a weight are exchanged.
//
// Compiled with C channels, TILES, GROUPS of a block, SPLIT (the channels of a sample have so many parts of a group),
// STAGES, PAIRS and SHARED (bytes). The functions `multiply` for C / SPLIT columns precede this text.

#include "codec.cuh"

constexpr int UNITS = 3;
constexpr int TAPS = 7;
__device__ constexpr int dilation(int unit) { return unit == 0 ? 1 : unit == 1 ? 3 : 9; }
__device__ constexpr int reach(int unit) { return (TAPS - 1) * dilation(unit); }
__device__ constexpr int before(int unit) { return unit ? before(unit - 1) + reach(unit - 1) : 0; }
constexpr int HISTORY = before(UNITS);
constexpr int ROWS = 64 * TILES, N = C / SPLIT, REGISTERS = N / 2;
constexpr int GROUP_THREADS = 128 * SPLIT, THREADS = GROUP_THREADS * GROUPS;
constexpr int WIDTH = 4;                                               // channels that a thread convolves at a time
constexpr int DEPTHS = (C + 63) / 64;                                  // parts of 64 inputs of a unit's product
constexpr int UNIT_BYTES = DEPTHS * C * 128, UP_BYTES = PAIRS ? 4 * C / 64 * 2 * C * 128 : 0;
constexpr int RING = STAGES ? STAGES : 1;
constexpr int STAGE_BYTES = N * 128;                                   // RING: a part of 64 inputs, for one warp group
constexpr int WEIGHT_BYTES = STAGES ? SPLIT * STAGES * STAGE_BYTES : UP_BYTES + UNITS * UNIT_BYTES;
constexpr int TILE_BYTES = DEPTHS * 64 * 128, PITCH = C * 2;
constexpr int SPARE = 8;                                               // rows that convolutions read and do not use
constexpr int GROUP_BYTES = (TILES * TILE_BYTES + (HISTORY + ROWS + SPARE) * PITCH + 1023) / 1024 * 1024;
constexpr int SHARED_BYTES = WEIGHT_BYTES + GROUPS * GROUP_BYTES + 16 * SPLIT * STAGES;
static_assert(SHARED_BYTES == SHARED, "the launch has another size of shared memory");
constexpr int ENTRY = 3 * C, UNIT = 13 * C;                            // floats: of the entry, of a unit

struct Arguments {
    const u16* x;            // y [streams, samples, C]; with PAIRS the input of y [streams, 1 + samples / 2, 2 C]
    const char* weights;     // as they lie in shared memory
    const float* values;     // bias of y, then alpha and inverse; of each unit taps, bias, alpha, inverse, bias of the
                             // product, alpha and inverse of what follows; scale and shift
    const u16* before;       // [streams, HISTORY, C] the last inputs of each unit before this patch
    u16* after;              // [streams, HISTORY, C] and at its end
    u16* out;                // [streams, samples, C]
    long long x_stride, history_stride, out_stride;
    int samples, segments, length, items;      // `length` samples are computed for each segment
};

struct Group {
    const Arguments& a;
    const u32 memory;                          // of the group, in shared memory: tiles of products, then rows
    const u32 weights;
    const int group, thread;
    const int stream, begin, end, start;       // samples begin..end are written, start.. are computed
    const int warp = thread / 32 % 4, g = thread % 32 / 4, t = thread % 4;
    const int first_column = thread / 128 * N;
    int stage = 0;                             // weights that were multiplied with, if they are copied in stages

    // ---- where things lie

    __device__ static __forceinline__ u32 row_part(int row, int column) {      // row 0 is the first of the history
        const int flip = C >= 64 ? (row >> (TILES - 1) & 1) << 6 : 0;
        return TILES * TILE_BYTES + row * PITCH + (column * 2 ^ flip);
    }

    __device__ static __forceinline__ u32 tile_part(int row, int column) {
        const int r = row / TILES;
        return row % TILES * TILE_BYTES + column / 64 * 8192 + r * 128 + ((column % 64 / 8 ^ (r & 7)) << 4) + column % 8 * 2;
    }

    // ---- depthwise convolution and snake, from rows to tiles

    struct Runs { int parts, length; };        // a residue of the dilation has so many runs of so many outputs

    __device__ static constexpr Runs runs(int dilation) {
        Runs best{1, 1};
        int least = 1 << 30;
        const int outputs = (ROWS + dilation - 1) / dilation;
        for (int parts = 1; parts <= 16; parts++) {
            const int length = (outputs + parts - 1) / parts;
            const int rounds = (C / WIDTH * dilation * parts + GROUP_THREADS - 1) / GROUP_THREADS;
            const int cost = rounds * (length * 14 + (length + 6) * 4 + 30);
            const bool fits = parts * length * dilation <= ROWS + SPARE;
            if (fits && length <= 22 && cost < least) least = cost, best = Runs{parts, length};
        }
        return best;
    }

    template <int U>
    __device__ __forceinline__ void convolve() const {
        constexpr int D = dilation(U), PARTS = runs(D).parts, LENGTH = runs(D).length;
        constexpr int TASKS = C / WIDTH * D * PARTS, GAP = HISTORY - before(U) - reach(U);
        const float* v = a.values + ENTRY + U * UNIT;
#pragma unroll 1
        for (int task = thread; task < TASKS; task += GROUP_THREADS) {
            const int column = task % (C / WIDTH) * WIDTH, run = task / (C / WIDTH), from = run % D + run / D * LENGTH * D;
            float taps[TAPS][WIDTH], past[TAPS][WIDTH], bias[WIDTH], alpha[WIDTH], inverse[WIDTH];
#pragma unroll
            for (int k = 0; k < TAPS; k++) load_values(taps[k], v + k * C + column);
            load_values(bias, v + 7 * C + column);
            load_values(alpha, v + 8 * C + column);
            load_values(inverse, v + 9 * C + column);
#pragma unroll
            for (int k = 0; k < TAPS - 1; k++) load_row(past[k], from + (k - 6) * D, GAP, column);
#pragma unroll
            for (int i = 0; i < LENGTH; i++) {
                const int row = from + i * D;
                load_row(past[(i + 6) % TAPS], row, GAP, column);
                float h[WIDTH];
#pragma unroll
                for (int c = 0; c < WIDTH; c++) {
                    h[c] = bias[c];
#pragma unroll
                    for (int k = 0; k < TAPS; k++) h[c] += past[(i + k) % TAPS][c] * taps[k][c];
                    h[c] = snake(h[c], alpha[c], inverse[c]);
                }
                u32 words[WIDTH / 2];
#pragma unroll
                for (int c = 0; c < WIDTH / 2; c++) words[c] = pack_half(h[2 * c], h[2 * c + 1]);
                if (row < ROWS) store_shared(memory + tile_part(row, column), words);
            }
        }
    }

    __device__ __forceinline__ void load_row(float (&x)[WIDTH], int row, int gap, int column) const {
        u32 words[WIDTH / 2];
        load_shared(words, memory + row_part(HISTORY + (row < 0 ? row - gap : row), column));
#pragma unroll
        for (int c = 0; c < WIDTH / 2; c++) unpack_half(words[c], x[2 * c], x[2 * c + 1]);
    }

    // ---- products

    template <int U>
    __device__ __forceinline__ void multiply_tiles(float (&y)[TILES][REGISTERS]) {
        if constexpr (STAGES) {
#pragma unroll
            for (int part = 0; part < DEPTHS; part++) {
                const u32 slot = stage % RING;
                wait(full(slot), stage / RING & 1);
                begin_products();
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++)
                        multiply(y[tile], matrix(memory + tile * TILE_BYTES + part * 8192) + k * 2,
                                 matrix(weights + slot * STAGE_BYTES) + k * 2, 1);
                commit_products();
                if (part) {
                    multiply_wait_but_one();
                    release(stage - 1);
                }
                stage++;
            }
            return;
        }
        begin_products();
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int k = 0; k < C / 16; k++)
                multiply(y[tile], matrix(memory + tile * TILE_BYTES + k / 4 * 8192) + k % 4 * 2,
                         matrix(weights + UP_BYTES + U * UNIT_BYTES + k / 4 * (C * 128) + first_column * 128) + k % 4 * 2, 1);
        commit_products();
    }

    // ---- weights in stages, of each warp group by itself

    __device__ __forceinline__ u32 full(u32 slot) const {
        return weights + (SPLIT - thread / 128) * STAGES * STAGE_BYTES + GROUP_BYTES + (thread / 128 * STAGES + slot) * 16;
    }

    __device__ __forceinline__ void copy_weights(int index) const {      // one thread
        const int unit = index / DEPTHS % UNITS, part = index % DEPTHS, slot = index % RING;
        expect(full(slot), STAGE_BYTES);
        copy_bulk(weights + slot * STAGE_BYTES, a.weights + unit * UNIT_BYTES + (part * C + first_column) * 128, STAGE_BYTES,
                  full(slot));
    }

    __device__ __forceinline__ int copies() const { return (end - start + ROWS - 1) / ROWS * UNITS * DEPTHS; }

    __device__ __forceinline__ void start_copies() const {
        if (thread % 128 == 0)
            for (int i = 0; i < STAGES; i++) copy_weights(i);
    }

    __device__ __forceinline__ void release(int index) const {           // all threads, when the product is complete
        const u32 empty = full(index % RING) + 8;
        if (thread % 32 == 0) arrive(empty);
        if (warp == 0 && index + STAGES < copies()) {
            wait(empty, index / RING & 1);
            if (thread % 32 == 0) copy_weights(index + STAGES);
        }
        __syncwarp();
    }

    // y of samples `at`.. : the product of each pair of input samples with the weights of each of the two outputs
    __device__ __forceinline__ void multiply_pairs(float (&y)[TILES][REGISTERS], int at) const {
        constexpr int PARTS = 4 * C / 32;
        u32 words[2][PARTS][4];
        const u16* x = a.x + stream * a.x_stride + t * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int pair = min(at / 2 + warp * 16 + g + half * 8, a.samples / 2 - 1);
#pragma unroll
            for (int part = 0; part < PARTS; part++) load_global(words[half][part], x + (long long)pair * (2 * C) + part * 32);
        }
        begin_products();
#pragma unroll
        for (int k = 0; k < 4 * C / 16; k++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const u32 x[4] = {words[0][k / 2][k % 2 * 2], words[1][k / 2][k % 2 * 2], words[0][k / 2][k % 2 * 2 + 1],
                                  words[1][k / 2][k % 2 * 2 + 1]};
                multiply(y[tile], x, matrix(weights + k / 4 * (2 * C * 128) + (tile * C + first_column) * 128) + k % 4 * 2,
                         k > 0);
            }
        commit_products();
        multiply_wait(y);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int i = 0; i < 4; i++) keep(words[half][part][i]);
    }

    __device__ __forceinline__ void load_sums(float (&y)[TILES][REGISTERS], int at) const {
        const u16* x = a.x + stream * a.x_stride + first_column + t * 8;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = min(at + TILES * (warp * 16 + g + half * 8) + tile, a.samples - 1);
#pragma unroll
                for (int part = 0; part < N / 32; part++) {
                    u32 words[4];
                    load_global(words, x + (long long)row * C + part * 32);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        unpack_half(words[i], y[tile][part * 16 + i * 4 + half * 2], y[tile][part * 16 + i * 4 + half * 2 + 1]);
                }
            }
    }

    // ---- from sums to the input of unit U, or to the output if U is UNITS

    template <int U>
    __device__ __forceinline__ void finish(float (&y)[TILES][REGISTERS], int at) const {
        const float* v = a.values + (U ? ENTRY + (U - 1) * UNIT + 10 * C : 0);
#pragma unroll
        for (int part = 0; part < N / 32; part++) {
            const int column = first_column + part * 32 + t * 8;
            float bias[8], alpha[8], inverse[8], scale[8], shift[8];
            load_values(bias, v + column);
            load_values(alpha, v + C + column);
            load_values(inverse, v + 2 * C + column);
            if (U == UNITS) {
                load_values(scale, a.values + ENTRY + UNITS * UNIT + column);
                load_values(shift, a.values + ENTRY + UNITS * UNIT + C + column);
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = TILES * (warp * 16 + g + half * 8) + tile, sample = at + row;
                    u32 words[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float h[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            float& sum = y[tile][part * 16 + i * 4 + half * 2 + e];
                            sum += bias[2 * i + e];
                            h[e] = U == UNITS ? sum * scale[2 * i + e] + shift[2 * i + e] : sum;
                            h[e] = snake(h[e], alpha[2 * i + e], inverse[2 * i + e]);
                        }
                        words[i] = pack_half(h[0], h[1]);
                    }
                    if constexpr (U == UNITS) {
                        if (sample >= begin && sample < end)
                            store_global(a.out + stream * a.out_stride + (long long)sample * C + column, words);
                    } else {
                        store_shared(memory + row_part(HISTORY + row, column), words);
                        const int kept = sample - (a.samples - reach(U));
                        if (end == a.samples && kept >= 0 && kept < reach(U))
                            store_global(a.after + stream * a.history_stride + (before(U) + kept) * C + column, words);
                    }
                }
        }
    }

    // ---- history

    __device__ __forceinline__ void load_history() const {
        for (int i = thread; i < HISTORY * C / 8; i += GROUP_THREADS) {
            u32 words[4] = {0, 0, 0, 0};
            if (start == 0) load_global(words, a.before + stream * a.history_stride + i * 8);
            store_shared(memory + row_part(i / (C / 8), i % (C / 8) * 8), words);
        }
    }

    template <int U>
    __device__ __forceinline__ void keep_history() const {
        for (int i = thread; i < reach(U) * C / 8; i += GROUP_THREADS) {
            const int row = i / (C / 8), column = i % (C / 8) * 8;
            u32 words[4];
            load_shared(words, memory + row_part(HISTORY + ROWS - reach(U) + row, column));
            store_shared(memory + row_part(before(U) + row, column), words);
        }
    }

    // ---- a unit

    template <int U>
    __device__ __forceinline__ void compute(float (&y)[TILES][REGISTERS], int at) {
        sync_threads(group + 1, GROUP_THREADS);                     // the unit's input is complete
        convolve<U>();
        fence_async();
        sync_threads(group + 1, GROUP_THREADS);                     // the tiles are complete, the input has been read
        multiply_tiles<U>(y);
        keep_history<U>();
        sync_threads(group + 1, GROUP_THREADS);                     // the history has been read
        multiply_wait(y);
        if (STAGES) release(stage - 1);
        finish<U + 1>(y, at);
    }

    __device__ void run() {
        if (STAGES) start_copies();
        load_history();
        for (int at = start; at < end; at += ROWS) {
            float y[TILES][REGISTERS];
            if constexpr (PAIRS) multiply_pairs(y, at);
            else load_sums(y, at);
            finish<0>(y, at);
            compute<0>(y, at);
            compute<1>(y, at);
            compute<2>(y, at);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) residual_units(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(1024) char memory[];
    const u32 base = shared_address(memory);
    if constexpr (STAGES) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < SPLIT * STAGES; i++) {
                init_barrier(base + WEIGHT_BYTES + GROUP_BYTES + i * 16, 1);
                init_barrier(base + WEIGHT_BYTES + GROUP_BYTES + i * 16 + 8, 4);
            }
            fence_barriers();
        }
    } else {
        for (int i = threadIdx.x; i < WEIGHT_BYTES / 16; i += THREADS) {
            u32 words[4];
            load_global(words, (const u16*)(a.weights + i * 16));
            store_shared(base + i * 16, words);
        }
        fence_async();
    }
    __syncthreads();
    const int group = threadIdx.x / GROUP_THREADS, item = blockIdx.x * GROUPS + group;
    if (item >= a.items) return;
    const int stream = item / a.segments, segment = item % a.segments;
    const int begin = segment ? a.length + (segment - 1) * (a.length - HISTORY) : 0;
    const int start = segment ? begin - HISTORY : 0, end = min(start + a.length, a.samples);
    const int thread = threadIdx.x % GROUP_THREADS;
    const u32 weights = base + thread / 128 * STAGES * STAGE_BYTES;
    Group{a, base + WEIGHT_BYTES + group * GROUP_BYTES, weights, group, thread, stream, begin, end, start}.run();
}

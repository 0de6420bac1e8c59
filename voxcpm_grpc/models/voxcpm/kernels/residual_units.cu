// This runs the residual units of a block of the codec's decoder for a patch of every stream. Nothing between is stored.
//
// A group of PARTS x 4 warps computes a segment of a stream, 64 x TILES x PARTS samples at a time. The sum y of the
// residual units stays in registers, as the sums of the matrix unit. The input of a unit, the snake of y, goes through
// shared memory, where the last inputs of each unit are kept for the next samples. A segment that is not the first one of
// its stream starts HISTORY samples early, with zeros as the past, and discards what it computes of them.
//
// The depthwise convolution is a product too, of the inputs of eight channels at two samples and a diagonal matrix of taps
// for each. Its sums lie in registers as the unit's product reads its input.
//
// The weights stay in shared memory, or, with STAGES, are copied again and again to a ring of slots. With PAIRS the
// block's upsampling by two is computed here too, from the samples before it.
//
// A thread has sums of pairs of channels. So that they are 8 contiguous channels, the rows of a weight are exchanged.
//
// The program is compiled with C channels, TILES, PARTS of a group, GROUPS of a block, STAGES, PAIRS and SHARED (bytes). The
// function `multiply` for C columns precedes this text.

#include "codec.cuh"

constexpr int UNITS = 3;
constexpr int TAPS = 7;
__device__ constexpr int dilation(int unit) { return unit == 0 ? 1 : unit == 1 ? 3 : 9; }
__device__ constexpr int reach(int unit) { return (TAPS - 1) * dilation(unit); }
// Samples that the units ahead reach.
__device__ constexpr int offset(int unit) { return (TAPS - 1) / 2 * (dilation(unit) - 1); }
constexpr int REACH = reach(UNITS - 1), HISTORY = offset(UNITS - 1) + REACH;
constexpr int ROWS = 64 * TILES * PARTS, REGISTERS = C / 2;
constexpr int GROUP_THREADS = 128 * PARTS, THREADS = GROUP_THREADS * GROUPS;
constexpr int STEPS = C < 128 ? C / 32 : 4, SPANS = C / 16 / STEPS;    // instructions of a span's product, spans
constexpr int BUFFERS = 2;                                             // buffers of inputs of products that are kept
constexpr int DEPTHS = (C + 63) / 64;                                  // slabs of 64 inputs of a product
constexpr int SLAB_BYTES = C * 128, UNIT_BYTES = DEPTHS * SLAB_BYTES;  // bytes of the weights of a part, and of a unit
constexpr int UP_BYTES = PAIRS ? 4 * C / 64 * 2 * SLAB_BYTES : 0;
constexpr int RING = STAGES ? STAGES : 1;
constexpr int WEIGHT_BYTES = STAGES ? STAGES * SLAB_BYTES : UP_BYTES + UNITS * UNIT_BYTES;
constexpr int PITCH = C * 2 + 16;                                      // bytes: 8 rows lie in different banks
constexpr int GROUP_BYTES = ((HISTORY + ROWS) * PITCH + 1023) / 1024 * 1024;
constexpr int SHARED_BYTES = WEIGHT_BYTES + GROUPS * GROUP_BYTES + 16 * RING;
static_assert(SHARED_BYTES == SHARED, "the launch has another size of shared memory");
static_assert(!STAGES || (GROUPS == 1 && STEPS == 4), "the warps of a group release a slot of the ring with each span");
constexpr int ENTRY = 4 * C, UNIT = 12 * C;                            // words of the entry, and of a unit

struct Arguments {
    const u16* x;            // y [streams, samples, C]; with PAIRS the input of y [streams, 1 + samples / 2, 2 C]
    const char* weights;     // they are as they lie in shared memory
    const float* values;     // scale, shift, alpha and inverse of what follows y; of each unit for each 8 channels eight taps
                             // of a channel, in half precision, and for each two channels their biases, twice, alphas and
                             // inverses; then scale, shift, alpha and inverse of what follows the unit
    const u16* before;       // [streams, HISTORY, C] the last inputs of each unit before this patch
    u16* after;              // [streams, HISTORY, C] those at its end
    u16* out;                // [streams, samples, C]
    long long x_stride, history_stride, out_stride;
    int samples, segments, length, items;      // `length` samples are computed for each segment
};

struct Group {
    const Arguments& a;
    const u32 memory;                          // the group's rows of inputs lie here, in shared memory
    const u32 weights;
    const int group, thread;
    const int stream, begin, end, start;       // samples begin..end are written, start.. are computed
    const int g = thread % 32 / 4, t = thread % 4;
    const int first = thread / 32 * 16;        // this warp has the rows of a tile from here on
    int stage = 0;                             // weights that were multiplied with, if they are copied in stages

    // ---- addresses

    __device__ static __forceinline__ u32 row_start(int row) {                 // row 0 is the first of the history
        return (row % TILES * ((HISTORY + ROWS) / TILES) + row / TILES) * PITCH;
    }

    __device__ static __forceinline__ u32 input_start(int unit, int row) {     // the past rows of a unit are negative
        return row_start(row < 0 ? row + offset(unit) + reach(unit) : row + HISTORY);
    }

    // ---- depthwise convolution and snake, from rows to registers

    __device__ __forceinline__ void sources(u32 (&from)[TILES][TAPS / 2 + 1], int unit) const {
        const int lane = thread % 32;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int pair = 0; pair <= TAPS / 2; pair++) {
                const int tap = 2 * pair + (pair < TAPS / 2 ? lane / 16 : 0);
                const int row = TILES * (first + lane % 16) + tile + (tap - TAPS + 1) * dilation(unit);
                from[tile][pair] = memory + input_start(unit, row);
            }
    }

    __device__ __forceinline__ void convolve(u32 (&x)[TILES][STEPS][4], const u32 (&from)[TILES][TAPS / 2 + 1], int unit,
                                             int span) const {
        const float* v = a.values + ENTRY + unit * UNIT;
        const u32 even = g / 2 != t ? 0x4444 : g % 2 ? 0x1044 : 0x4410, odd = g / 2 != t ? 0x4444 : g % 2 ? 0x3244 : 0x4432;
#pragma unroll
        for (int octet = 0; octet < 2 * STEPS; octet++) {
            const int column = span * STEPS * 16 + octet * 8;
            float taps[4], bias[4], others[4];
            load_values(taps, v + column * 8 + g * 4);
            load_values(bias, v + column * 8 + 32 + t * 8);
            load_values(others, v + column * 8 + 36 + t * 8);
            u32 diagonal[TAPS];
#pragma unroll
            for (int k = 0; k < TAPS; k++) diagonal[k] = __byte_perm(__float_as_uint(taps[k / 2]), 0, k % 2 ? odd : even);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                float h[4];
#pragma unroll
                for (int pair = 0; pair < TAPS / 2; pair++) {
                    u32 rows[4];
                    load_matrices(rows, from[tile][pair] + column * 2);
                    multiply_small(h, rows, diagonal[2 * pair], diagonal[2 * pair + 1], pair ? h : bias);
                }
                u32 rows[2];
                load_matrices(rows, from[tile][TAPS / 2] + column * 2);
                multiply_small(h, rows, diagonal[TAPS - 1], h);
#pragma unroll
                for (int i = 0; i < 4; i++) h[i] = snake(h[i], others[i % 2], others[2 + i % 2]);
#pragma unroll
                for (int half = 0; half < 2; half++)
                    x[tile][octet / 2][octet % 2 * 2 + half] = pack_half(h[2 * half], h[2 * half + 1]);
            }
        }
    }

    // ---- products

    __device__ __forceinline__ void convolve_and_multiply(float (&y)[TILES][REGISTERS], u32 (&x)[BUFFERS][TILES][STEPS][4],
                                                          int unit) {
        u32 from[TILES][TAPS / 2 + 1];
        sources(from, unit);
        if (!STAGES) wait(full(0), 0);
#pragma unroll
        for (int span = 0; span < SPANS; span++) {
            const int step = span * STEPS;
            u32 (&part)[TILES][STEPS][4] = x[span % BUFFERS];
            convolve(part, from, unit, span);
            u32 slab = weights + UP_BYTES + unit * UNIT_BYTES + step / 4 * SLAB_BYTES + step % 4 * 32;
            if constexpr (STAGES) {
                const u32 slot = stage % RING;
                wait(full(slot), stage / RING & 1);
                slab = weights + slot * SLAB_BYTES;
            }
            settle(part);
            begin_products();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) multiply(y[tile], part[tile][k], matrix_from(matrix(slab), k * 32), 1);
            commit_products();
            if constexpr (SPANS > BUFFERS || STAGES) {
                multiply_wait_but<BUFFERS - 1>();                       // the words of the next part are free
                keep(x[(span + 1) % BUFFERS]);
            }
            if constexpr (STAGES) {
                if (span) release(stage - 1);
                stage++;
            }
        }
    }

    // ---- weights in stages

    __device__ __forceinline__ u32 full(u32 slot) const { return weights + WEIGHT_BYTES + GROUPS * GROUP_BYTES + slot * 16; }

    __device__ __forceinline__ void copy_weights(int index) const {      // one thread calls it
        const u32 slot = index % RING;
        expect(full(slot), SLAB_BYTES);
        copy_bulk(weights + slot * SLAB_BYTES, a.weights + index % (UNITS * DEPTHS) * SLAB_BYTES, SLAB_BYTES, full(slot));
    }

    __device__ __forceinline__ int copies() const { return (end - start + ROWS - 1) / ROWS * UNITS * DEPTHS; }

    __device__ __forceinline__ void start_copies() const {
        if (thread == 0)
            for (int i = 0; i < STAGES; i++) copy_weights(i);
    }

    __device__ __forceinline__ void release(int index) const {  // all threads call it, when the product is complete
        const u32 empty = full(index % RING) + 8;
        if (thread % 32 == 0) arrive(empty);
        if (first == 0 && index + STAGES < copies()) {
            wait(empty, index / RING & 1);
            if (thread == 0) copy_weights(index + STAGES);
        }
        __syncwarp();
    }

    // y of samples from `at` on is the product of each pair of input samples with the weights of each of the two outputs
    __device__ __forceinline__ void multiply_pairs(float (&y)[TILES][REGISTERS], int at) const {
        constexpr int WORDS = 4 * C / 32;
        u32 words[2][WORDS][4];
        const u16* x = a.x + stream * a.x_stride + t * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int pair = min(at / 2 + first + g + half * 8, a.samples / 2 - 1);
#pragma unroll
            for (int part = 0; part < WORDS; part++) load_global(words[half][part], x + (long long)pair * (2 * C) + part * 32);
        }
        wait(full(0), 0);
        begin_products();
#pragma unroll
        for (int i = 0; i < 2 * WORDS; i++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const int e = i % 2 * 2;
                const u32 x[4] = {words[0][i / 2][e], words[1][i / 2][e], words[0][i / 2][e + 1], words[1][i / 2][e + 1]};
                multiply(y[tile], x, matrix_from(matrix(weights + (i / 4 * 2 + tile) * SLAB_BYTES), i % 4 * 32), i > 0);
            }
        commit_products();
        multiply_wait(y);
        keep(words);
    }

    __device__ __forceinline__ void load_sums(float (&y)[TILES][REGISTERS], int at) const {
        const u16* x = a.x + stream * a.x_stride + t * 8;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = min(at + TILES * (first + g + half * 8) + tile, a.samples - 1);
#pragma unroll
                for (int part = 0; part < C / 32; part++) {
                    u32 words[4];
                    load_global(words, x + (long long)row * C + part * 32);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        unpack_half(words[i], y[tile][part * 16 + i * 4 + half * 2], y[tile][part * 16 + i * 4 + half * 2 + 1]);
                }
            }
    }

    // ---- from sums to the input of a unit, or to the output behind the last one

    __device__ __forceinline__ void finish(const float (&y)[TILES][REGISTERS], int unit, int at) const {
        const float* v = a.values + unit * UNIT;
#pragma unroll
        for (int part = 0; part < C / 32; part++) {
            const int column = part * 32 + t * 8;
            float scale[8], shift[8], alpha[8], inverse[8];
            load_values(scale, v + column);
            load_values(shift, v + C + column);
            load_values(alpha, v + 2 * C + column);
            load_values(inverse, v + 3 * C + column);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = TILES * (first + g + half * 8) + tile, sample = at + row;
                    u32 words[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float h[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const int c = 2 * i + e;
                            h[e] = fmaf(y[tile][part * 16 + i * 4 + half * 2 + e], scale[c], shift[c]);
                            h[e] = snake(h[e], alpha[c], inverse[c]);
                        }
                        words[i] = pack_half(h[0], h[1]);
                    }
                    store_shared(memory + row_start(HISTORY + row) + column * 2, words, unit < UNITS);
                    store_global(a.out + stream * a.out_stride + (long long)sample * C + column, words,
                                 unit == UNITS && sample >= begin && sample < end);
                }
        }
    }

    // ---- history

    __device__ __forceinline__ u32 octet(int row, int index) const {          // the octets of channels begin at a row
        return memory + row_start(row + index / (C / 8)) + index % (C / 8) * 16;
    }

    __device__ __forceinline__ void load_history() const {
        for (int i = thread; i < HISTORY * C / 8; i += GROUP_THREADS) {
            u32 words[4] = {0, 0, 0, 0};
            if (start == 0) load_global(words, a.before + stream * a.history_stride + i * 8);
            store_shared(octet(0, i), words);
        }
    }

    // The last inputs of a unit are kept for the next samples of the stream, `samples` behind the first row.
    __device__ __forceinline__ void store_history(int unit, int samples) const {
        for (int i = thread; i < reach(unit) * C / 8; i += GROUP_THREADS) {
            u32 words[4];
            load_shared(words, memory + input_start(unit, samples - reach(unit) + i / (C / 8)) + i % (C / 8) * 16);
            store_global(a.after + stream * a.history_stride + offset(unit) * C + i * 8, words);
        }
    }

    // ---- a unit

    __device__ __forceinline__ void compute(float (&y)[TILES][REGISTERS], int unit, int at) {
        constexpr int TIMES = (REACH * C / 8 + GROUP_THREADS - 1) / GROUP_THREADS;
        const int size = reach(unit) * C / 8;
        u32 x[BUFFERS][TILES][STEPS][4], kept[TIMES][4];
        sync_threads(group + 1, GROUP_THREADS);                     // the unit's input is complete
        convolve_and_multiply(y, x, unit);
#pragma unroll
        for (int i = 0; i < TIMES; i++)
            if (thread + i * GROUP_THREADS < size)
                load_shared(kept[i], octet(HISTORY + ROWS - reach(unit), thread + i * GROUP_THREADS));
        if (at + ROWS >= a.samples) store_history(unit, a.samples - at);
        sync_threads(group + 1, GROUP_THREADS);                     // the input has been read
#pragma unroll
        for (int i = 0; i < TIMES; i++)
            if (thread + i * GROUP_THREADS < size) store_shared(octet(offset(unit), thread + i * GROUP_THREADS), kept[i]);
        multiply_wait(y);
        keep(x);
        if (STAGES) release(stage - 1);
    }

    __device__ void run() {
        if (STAGES) start_copies();
        load_history();
        for (int at = start; at < end; at += ROWS) {
            float y[TILES][REGISTERS];
            if constexpr (PAIRS) multiply_pairs(y, at);
            else load_sums(y, at);
            // A loop compiles the code of a unit once and not three times.
#pragma unroll 1
            for (int unit = 0;; unit++) {
                finish(y, unit, at);
                if (unit == UNITS) break;
                compute(y, unit, at);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) residual_units(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(1024) char memory[];
    const u32 base = shared_address(memory);
    // The barriers of the weights are here, and of the ring's empty slots.
    const u32 full = base + WEIGHT_BYTES + GROUPS * GROUP_BYTES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) {
            init_barrier(full + i * 16, 1);
            init_barrier(full + i * 16 + 8, 4 * PARTS);
        }
        fence_barriers();
        if (!STAGES) {
            expect(full, WEIGHT_BYTES);
            for (int i = 0; i < WEIGHT_BYTES; i += SLAB_BYTES) copy_bulk(base + i, a.weights + i, SLAB_BYTES, full);
        }
    }
    __syncthreads();
    const int group = threadIdx.x / GROUP_THREADS, item = blockIdx.x + group * gridDim.x;
    if (item >= a.items) return;
    const int stream = item / a.segments, segment = item % a.segments;
    const int begin = segment ? a.length + (segment - 1) * (a.length - HISTORY) : 0;
    const int start = segment ? begin - HISTORY : 0, end = min(start + a.length, a.samples);
    const int thread = threadIdx.x % GROUP_THREADS;
    Group{a, base + WEIGHT_BYTES + group * GROUP_BYTES, base, group, thread, stream, begin, end, start}.run();
}

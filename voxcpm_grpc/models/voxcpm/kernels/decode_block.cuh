// A block of decode_layers.cu: its copies of weights, its products, and its packets.

#include "language_layer.cuh"

constexpr u32 PARTS = CTAS / KV_HEADS;                      // parts of a context
constexpr u32 INPUTS = HIDDEN / WARPS, STEPS = INPUTS / 32;             // inputs of a warp in a slot
constexpr u32 ROW = HIDDEN * 2, ROWS = 8, ODD = ROWS / 2 * ROW + 64, SLOT = ODD + ROWS / 2 * ROW + 64;
constexpr u32 SLOTS = 6, PIECES = 2, PIECE = ROWS / PIECES;             // a slot is copied in pieces of so many rows
constexpr u32 SPAN = 512;               // keys, at most, in a part of the context
constexpr u32 COPIES = 4;  // copies of packets that all blocks read: with one, a part of the cache delays all

struct Arguments {
    const Layer* layers;
    uint4* x;               // [COPIES, CTAS, 4] the residual stream
    uint4* q;               // [CTAS, 4]
    uint4* kv;              // [2, KV_HEADS, HEAD / 4]
    uint4* parts;           // [PARTS, KV_HEADS, GROUP, HEAD / 4, 2] attention over a part of the context, and its weight
    uint4* mixed;           // [COPIES, CTAS, 4] attention
    uint4* gated;           // [COPIES, CTAS, 8]
    u32* tags;              // [CTAS] the tag of the last packets
    const u16 *input, *norm;    // [HIDDEN]
    u16* output;            // [HIDDEN]
    const float *cos, *sin; // [HEAD / 2]; null: no rotation
    u16 *keys, *values;     // [layers, pages, page_size, KV_HEADS, HEAD]
    const int *context, *table;
    const long long* write;
    long long layer_stride; // elements
    u32 count, page_size, capacity;     // capacity: positions of the table
    float eps, scale;
};

struct Shared {
    u64 full[SLOTS][PIECES], empty[SLOTS];
    alignas(16) u32 operand[WARPS][SEGMENTS * INPUTS / 2];      // inputs of a warp
    float sums[2][WARPS][4 * SEGMENTS * ROWS];
    float squares[WARPS];
    float4 mixed[WARPS][4];
    float2 weight[WARPS];       // each part of a warp has its largest exponent and its sum
    u32 slots[SPAN];            // slots of the keys of this block's part
};
constexpr u32 RING = (sizeof(Shared) + 127) / 128 * 128;
static_assert(127 + RING + SLOTS * SLOT <= 220 * 1024, "decode_layers.py gives a block this much");

struct DecodeBlock {
    const Arguments& a;
    Shared& s;
    const u32 memory;           // address of the ring
    u32 thread, warp, lane, cta;
    u32 taken = 0;              // slots before this phase
    u32 tag;

    __device__ DecodeBlock(const Arguments& a, Shared& s, u32 memory) : a(a), s(s), memory(memory) {
        thread = threadIdx.x, warp = thread / 32, lane = thread % 32, cta = blockIdx.x;
    }

    // ---- weights

    // The first row of slot `at` of a layer, and the bytes between its rows.
    __device__ __forceinline__ const char* source(const Layer& layer, u32 at, u32& rows, u32& stride) const {
        rows = ROWS, stride = ROW;
        if (at < OUT - 1) return layer.qkv + (size_t)(OWN * cta + ROWS * at) * ROW;
        if (at < OUT) {
            rows = 4;
            return layer.qkv + (size_t)(HIDDEN + 4 * cta) * ROW;
        }
        if (at < GATE) return layer.out + (size_t)(OWN * cta + ROWS * (at - OUT)) * ROW;
        if (at < DOWN) {
            const u32 tile = (at - GATE) / 2, up = (at - GATE) % 2;
            return layer.gate_up + (size_t)(up * FFN + tile / 2 * HIDDEN + OWN * cta + tile % 2 * ROWS) * ROW;
        }
        stride = SEGMENTS * ROW;
        const u32 segment = (at - DOWN) / 2, half = (at - DOWN) % 2;
        return layer.down + (size_t)(OWN * cta + ROWS * half) * stride + segment * ROW;
    }

    // Row r of a slot. Rows of even and odd number are apart, so that eight threads that read 64 bytes of two use all banks.
    __device__ __forceinline__ u32 row(u32 slot, u32 r) const { return memory + slot * SLOT + r / 2 * ROW + r % 2 * ODD; }

    // Pieces that are copied at the same time. Four keep the memory busy, and more would only delay the packets. The slots
    // that fill the ring before gate have time until attention is computed, and two delay its packets less.
    __device__ __forceinline__ static u32 copies(u32 at) { return at < GATE + SLOTS ? 2 : 4; }

    // One thread runs it.
    __device__ void copy_weights() {
        u32 n = 0, piece = 0;
        for (u32 l = 0; l < a.count; l++) {
            const Layer layer = a.layers[l];
            for (u32 at = 0; at < LAYER; at++, n++) {
                const u32 slot = n % SLOTS;
                u32 rows, stride;
                const char* from = source(layer, at, rows, stride);
                if (n >= SLOTS) wait_alone(shared_address(&s.empty[slot]), (n / SLOTS - 1) & 1);
#pragma unroll
                for (u32 i = 0; i < ROWS; i += PIECE, piece++) {
                    const u32 barrier = shared_address(&s.full[slot][i / PIECE]);
                    const u32 end = rows < i + PIECE ? rows : i + PIECE;
                    if (piece >= copies(at)) wait_piece(piece - copies(at));
                    expect(barrier, end > i ? (end - i) * ROW : 0);
#pragma unroll
                    for (u32 r = i; r < i + PIECE; r++)
                        if (r < end) copy(row(slot, r), from + (size_t)r * stride, ROW, barrier);
                }
            }
        }
    }

    __device__ __forceinline__ static void arrive(const u64& barrier) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
    }

    __device__ __forceinline__ void wait_piece(u32 piece) {
        const u32 n = piece / PIECES;
        wait_alone(shared_address(&s.full[n % SLOTS][piece % PIECES]), n / SLOTS & 1);
    }

    // Loads this warp's part of a slot: lane l has the inputs 32 * i + 8 * (l % 4) to + 7 of row l / 4.
    __device__ __forceinline__ void take(uint4 (&weight)[STEPS], u32 at) {
        const u32 n = taken + at, slot = n % SLOTS;
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) wait_piece(n * PIECES + i);
        __syncwarp();
        const uint4* from = (const uint4*)shared_pointer(row(slot, lane / 4) + warp * (INPUTS * 2)) + lane % 4;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) weight[i] = from[4 * i];
        fence_async_shared();
        __syncwarp();
        if (lane == 0) arrive(s.empty[slot]);
    }

    // ---- products

    // This warp's inputs as second operand. The order of inputs in a step is that of `take`.
    __device__ __forceinline__ void load_operand(uint4 (&x)[STEPS], u32 segment = 0) {
        const uint4* from = (const uint4*)(s.operand[warp] + segment * (INPUTS / 2)) + lane % 4;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) x[i] = from[4 * i];
    }

    __device__ __forceinline__ void multiply_slots(float (&sum)[2][4], u32 at, const uint4 (&x)[STEPS]) {
        uint4 first[STEPS], second[STEPS];
        take(first, at);
        take(second, at + 1);
        multiply(sum, first, second, x);
    }

    __device__ __forceinline__ void store_sums(const float (&sum)[2][4], u32 buffer, u32 tile) {
        if (lane % 4) return;
        s.sums[buffer][warp][tile * 16 + lane / 4] = sum[0][0] + sum[1][0];
        s.sums[buffer][warp][tile * 16 + 8 + lane / 4] = sum[0][2] + sum[1][2];
    }

    __device__ __forceinline__ void meet() { sync_threads(1, 32 * WARPS); }

    __device__ __forceinline__ float add_sums(u32 buffer, u32 output) const {
        float sum = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) sum += s.sums[buffer][w][output];
        return sum;
    }

    // ---- exchange

    // Four neighbouring values in a packet: lane l has value l. Lanes below `count` have one.
    __device__ __forceinline__ void send_values(uint4* packets, float value, u32 count = OWN) {
        const u32 word = pack(value, __shfl_down_sync(~0u, value, 1)), next = __shfl_down_sync(~0u, word, 2);
        if (lane % 4 == 0 && lane < count) send(packets + lane / 4, word, next, 0, tag + 1);
    }

    // This is `send_values` to all copies of [CTAS, 4]: lanes l and OWN + l have the same value, for half of the copies each.
    __device__ __forceinline__ void send_copies(uint4* packets, float value) {
        const u32 word = pack(value, __shfl_down_sync(~0u, value, 1)), next = __shfl_down_sync(~0u, word, 2);
#pragma unroll
        for (u32 c = 0; c < COPIES; c += 2)
            if (lane % 4 == 0) send(packets + (c + lane / OWN) * (CTAS * 4) + lane % OWN / 4, word, next, 0, tag + 1);
    }

    // This block reads this copy.
    __device__ __forceinline__ u32 own_copy() const { return cta / 2 % COPIES; }

    __device__ __forceinline__ void receive_values(const uint4* packets, bool norm) {
        uint4 v[2];
        receive<2, 32>(v, packets + own_copy() * (CTAS * 4) + 64 * warp + lane, tag);
        uint2* to = (uint2*)s.operand[warp];
        __syncwarp();
        to[lane] = make_uint2(v[0].x, v[0].y), to[32 + lane] = make_uint2(v[1].x, v[1].y);
        __syncwarp();
        if (!norm) return;
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            sum += low(v[i].x) * low(v[i].x) + high(v[i].x) * high(v[i].x) + low(v[i].y) * low(v[i].y) +
                   high(v[i].y) * high(v[i].y);
#pragma unroll
        for (u32 i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
        if (lane == 0) s.squares[warp] = sum;
    }

    __device__ __forceinline__ float norm_factor() const {
        float sum = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) sum += s.squares[w];
        return rsqrtf(sum / HIDDEN + a.eps);
    }
};

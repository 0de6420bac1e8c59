// A block of decode_rows.cu: its copies of weights, its products, and its exchanges.
//
// The program is compiled with SEQUENCES, an even number of rows, and with SLOTS of weights.

#include "language_layer.cuh"

constexpr u32 CLUSTER = 2;
constexpr u32 TEAMS = WARPS / CLUSTER;                      // a team has a warp for each block of the cluster
constexpr u32 INPUTS = HIDDEN / CLUSTER / TEAMS, STEPS = INPUTS / 32;   // inputs of a team
// Blocks whose values a team and a warp receive.
constexpr u32 TEAM_CTAS = INPUTS / OWN, WARP_CTAS = TEAM_CTAS / CLUSTER;
constexpr u32 PARTS = CTAS / KV_HEADS / SEQUENCES;          // parts of a context
constexpr u32 PAIRS = SEQUENCES / 2;
constexpr u32 FULL_ROW = HIDDEN * 2, ROW = FULL_ROW / CLUSTER;
constexpr u32 ODD = 4 * CLUSTER * ROW + 64, SLOT = 2 * ODD;     // a slot has 8 rows for each block of the cluster
constexpr u32 PIECES = 2, PIECE = 8 / PIECES;               // a slot is copied in pieces of so many rows for each block
constexpr u32 SPAN = 32768 / PARTS;     // keys, at most, in a part of the context
constexpr u32 TILE_BYTES = WARPS * 8 * PAIRS * 16, SQUARES_BYTES = SEQUENCES * CLUSTER * WARPS * 4;

struct Arguments {
    const Layer* layers;
    uint4* x;               // [CTAS, SEQUENCES, 4] the residual stream
    uint4* q;               // [CTAS, SEQUENCES, 4]
    uint4* kv;              // [2, KV_HEADS, HEAD / 4, SEQUENCES]
    uint4* parts;           // [PARTS, SEQUENCES, KV_HEADS, GROUP, HEAD / 2] attention over a part of the context
    uint4* mixed;           // [CTAS, SEQUENCES, 4] attention
    uint4* gated;           // [CTAS, SEQUENCES, 8]
    u32* tags;              // [CTAS] the tag of the last packets
    const u16 *input, *norm;    // [SEQUENCES, HIDDEN], [HIDDEN]
    u16* output;            // [SEQUENCES, HIDDEN]
    const float *cos, *sin; // [SEQUENCES, HEAD / 2]; null: no rotation
    u16 *keys, *values;     // [layers, pages, page_size, KV_HEADS, HEAD]; a page has a multiple of 16 positions
    const int *context, *table;     // [SEQUENCES], [SEQUENCES, pages of a sequence]
    const long long* write;         // [SEQUENCES]
    long long layer_stride; // elements
    u32 count, page_size, pages, capacity;    // capacity: positions of a sequence
    float eps, scale;
};

struct Attention {
    u32 q[GROUP][HEAD / 2];             // bfloat16, rotated
    u32 weights[2][WARPS][2][32];       // weights of 16 keys of a warp, as second operand
    float tops[2][WARPS][GROUP], totals[2][WARPS][GROUP];
    float fresh[GROUP];                 // exponents of the new position
    u32 value[HEAD / 2];                // its value
};

struct Shared {
    u64 full[SLOTS][PIECES], empty[SLOTS], arrived[2];
    alignas(128) u32 stream[TEAMS][SEQUENCES][INPUTS / 2];      // inputs, as second operand
    union {
        alignas(128) u32 wide[SEGMENTS][TEAMS][SEQUENCES][INPUTS / 2];
        Attention attention;
    };
    float4 sums[2 * SEGMENTS][WARPS][8 * PAIRS];    // products of the norm
    float4 added[WARPS][8 * PAIRS];                 // products that are added to the residual stream
    alignas(16) float squares[SEQUENCES][CLUSTER * WARPS];
    float2 mixed[WARPS][8];
    float2 weight[WARPS];       // each part of a warp has its largest exponent and its sum
    u32 slots[SPAN / 16];       // slots of every 16th key of this block's part
};
constexpr u32 RING = (sizeof(Shared) + 127) / 128 * 128;
static_assert(127 + RING + SLOTS * SLOT <= 227 * 1024, "a block has no more memory");

struct RowsBlock {
    const Arguments& a;
    Shared& s;
    const u32 memory;           // address of the ring
    u32 thread, warp, lane, cta, rank;
    u32 owner, team;            // this warp multiplies for the block `owner` of the cluster
    u32 group, pair;            // lane / 4, lane % 4
    u32 taken = 0;              // slots before this phase
    u32 tag;

    __device__ RowsBlock(const Arguments& a, Shared& s, u32 memory) : a(a), s(s), memory(memory) {
        thread = threadIdx.x, warp = thread / 32, lane = thread % 32, cta = blockIdx.x, rank = cta % CLUSTER;
        owner = warp % CLUSTER, team = warp / CLUSTER, group = lane / 4, pair = lane % 4;
    }

    // ---- weights

    // Slot `at` of a layer begins here for a block of the cluster: the first of `rows` rows, `stride` bytes apart.
    __device__ __forceinline__ const char* source(const Layer& layer, u32 at, u32 to, u32& rows, u32& stride) const {
        const u32 block = cta - rank + to;
        rows = 8, stride = 2 * FULL_ROW;
        if (at < OUT - 1) return layer.qkv + (size_t)(OWN * block + at) * FULL_ROW;
        if (at >= DOWN) {
            stride = 2 * SEGMENTS * FULL_ROW;
            return layer.down + (size_t)(OWN * block + (at - DOWN) % 2) * (SEGMENTS * FULL_ROW) + (at - DOWN) / 2 * FULL_ROW;
        }
        if (at >= OUT && at < GATE) return layer.out + (size_t)(OWN * block + at - OUT) * FULL_ROW;
        stride = FULL_ROW;
        if (at < OUT) {
            rows = 4;
            return layer.qkv + (size_t)(HIDDEN + 4 * block) * FULL_ROW;
        }
        const u32 tile = (at - GATE) / 2, up = (at - GATE) % 2;
        return layer.gate_up + (size_t)(up * FFN + tile / 2 * HIDDEN + OWN * block + tile % 2 * 8) * FULL_ROW;
    }

    // Row r of a slot. Rows of even and odd number are apart, so that eight threads that read 64 bytes of two use all banks.
    __device__ __forceinline__ u32 row(u32 slot, u32 r) const { return memory + slot * SLOT + r / 2 * ROW + r % 2 * ODD; }

    // Pieces that are copied at the same time. Four keep the memory busy, and more would only delay the packets. The slots
    // that fill the ring before gate have time until attention is computed, and two delay its packets less.
    __device__ __forceinline__ static u32 copies(u32 at) { return at < GATE + SLOTS ? 2 : 4; }

    // One warp runs it.
    __device__ void copy_weights() {
        u32 n = 0, piece = 0;
        for (u32 l = 0; l < a.count; l++) {
            const Layer layer = a.layers[l];
            for (u32 at = 0; at < LAYER; at++, n++) {
                const u32 slot = n % SLOTS;
                u32 rows, stride;
                const char* from = source(layer, at, lane / 4 % CLUSTER, rows, stride) + rank * ROW;
                if (n >= SLOTS) wait(shared_address(&s.empty[slot]), (n / SLOTS - 1) & 1);
#pragma unroll
                for (u32 i = 0; i < 8; i += PIECE, piece++) {
                    const u32 barrier = shared_address(&s.full[slot][i / PIECE]);
                    const u32 r = i + lane % 4;
                    if (piece >= copies(at)) wait_piece(piece - copies(at));
                    if (lane == 0) expect(barrier, rows > i ? PIECE * FULL_ROW : 0);
                    __syncwarp();
                    if (lane / 4 < CLUSTER && r < rows)
                        copy(row(slot, lane / 4 * 8 + r), from + (size_t)r * stride, ROW, barrier);
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
        const uint4* from = (const uint4*)shared_pointer(row(slot, owner * 8 + group) + team * (INPUTS * 2)) + pair;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) weight[i] = from[4 * i];
        fence_async_shared();
        __syncwarp();
        if (lane == 0) arrive(s.empty[slot]);
    }

    // ---- products

    // Second operands lie in rows of 16-byte parts. Rows of odd number exchange their parts, so that two rows use all banks.
    __device__ __forceinline__ static u32 part(u32 r, u32 at) { return at ^ (r & 1) << 2; }

    // The inputs are those of this warp's team. The order of inputs in a step is that of `take`.
    __device__ __forceinline__ void load_operand(uint4 (&x)[STEPS], const u32 (&from)[SEQUENCES][INPUTS / 2]) const {
        const u32 r = group % SEQUENCES;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) x[i] = ((const uint4*)from[r])[part(r, 4 * i + pair)];
    }

    __device__ __forceinline__ void multiply_slots(float (&sum)[2][4], u32 at, const uint4 (&x)[STEPS]) {
        uint4 first[STEPS], second[STEPS];
        take(first, at);
        take(second, at + 1);
        multiply(sum, first, second, x);
    }

    // Gives the sums of 16 outputs to their block: lane l has outputs l / 4 and l / 4 + 8 of rows 2 * (l % 4) and + 1.
    __device__ __forceinline__ void deliver_sums(const float (&sum)[2][4], float4 (&to)[WARPS][8 * PAIRS], u32 buffer,
                                                 u32 outputs = 8) {
        if (pair < PAIRS && group < outputs)
            deliver(in_block(shared_address(&to[rank * TEAMS + team][group * PAIRS + pair]), owner), sum[0][0] + sum[1][0],
                    sum[0][1] + sum[1][1], sum[0][2] + sum[1][2], sum[0][3] + sum[1][3],
                    in_block(shared_address(&s.arrived[buffer]), owner));
    }

    // The threads of a warp wait until sums have been delivered for the first or second time in a layer.
    __device__ __forceinline__ void await_sums(u32 buffer, u32 bytes, u32 parity) {
        if (thread == 0) expect(shared_address(&s.arrived[buffer]), bytes);
        wait(shared_address(&s.arrived[buffer]), parity);
    }

    __device__ __forceinline__ float4 add_sums(const float4 (&from)[WARPS][8 * PAIRS]) const {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            const float4 v = from[w][group * PAIRS + pair % PAIRS];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        return sum;
    }

    // ---- exchange

    __device__ __forceinline__ void meet() { sync_threads(1, 32 * WARPS); }
    __device__ __forceinline__ void meet_team() { sync_threads(2 + team, 32 * CLUSTER); }

    // Sends the values of this block's channels: the outputs of `deliver_sums` are channels 2 * (l / 4) and + 1.
    // A packet has four channels of a row.
    __device__ __forceinline__ void send_values(uint4* packets, float4 v) const {
        const u32 first = pack(v.x, v.z), second = pack(v.y, v.w), odd = group % 2, r = 2 * pair + odd;
        const u32 other = __shfl_xor_sync(~0u, odd ? first : second, 4);
        if (r < SEQUENCES)
            send(packets + (cta * SEQUENCES + r) * 4 + group / 2, odd ? other : first, odd ? second : other, 0, tag + 1);
    }

    // Precedes the loads of packets that all blocks send. Loads of packets that are not there yet delay those that are on
    // their way. Other blocks send at about the same time as this one, so its warps load when it has sent its own.
    __device__ __forceinline__ void await_sent() {
        meet();
        await_travel(clocks());
    }

    // Receives this warp's share of the inputs of its team, and waits for the team.
    __device__ __forceinline__ void receive_values(const uint4* packets, u32 (&to)[SEQUENCES][INPUTS / 2], bool norm) {
        constexpr u32 COUNT = WARP_CTAS * SEQUENCES * 4 / 32;
        const u32 first = rank * (CTAS / CLUSTER) + team * TEAM_CTAS + owner * WARP_CTAS;
        uint4 v[COUNT];
        await_sent();
        receive<COUNT, 32>(v, packets + first * SEQUENCES * 4 + lane, tag);
        float sum = 0;
        const u32 r = lane / 4 % SEQUENCES;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            const u32 channel = (owner * WARP_CTAS + (32 * i + lane) / (4 * SEQUENCES)) * OWN + 4 * (lane % 4);
            *(uint2*)(to[r] + 4 * part(r, channel / 8) + channel % 8 / 2) = make_uint2(v[i].x, v[i].y);
            sum += low(v[i].x) * low(v[i].x) + high(v[i].x) * high(v[i].x) + low(v[i].y) * low(v[i].y) +
                   high(v[i].y) * high(v[i].y);
        }
        meet_team();
        if (!norm) return;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
#pragma unroll
        for (u32 i = 4 * SEQUENCES; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
        if (lane < 4 * SEQUENCES && pair < CLUSTER)
            deliver_one(in_block(shared_address(&s.squares[r][rank * WARPS + warp]), pair), sum,
                        in_block(shared_address(&s.arrived[0]), pair));
    }

    // The factors of the norm are those for rows 2 * (l % 4) and + 1.
    __device__ __forceinline__ float2 norm_factors() const {
        float2 sum = make_float2(0, 0);
        const u32 r = 2 * (pair % PAIRS);
#pragma unroll
        for (u32 i = 0; i < CLUSTER; i++)
            sum.x += s.squares[r][8 * i + group], sum.y += s.squares[r + 1][8 * i + group];
#pragma unroll
        for (u32 i = 4; i < 32; i *= 2) sum.x += __shfl_xor_sync(~0u, sum.x, i), sum.y += __shfl_xor_sync(~0u, sum.y, i);
        return make_float2(rsqrtf(sum.x / HIDDEN + a.eps), rsqrtf(sum.y / HIDDEN + a.eps));
    }
};

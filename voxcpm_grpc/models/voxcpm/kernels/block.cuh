// A block is one of the 128 that compute a transformer's layers together (stack.cuh).
//
// The weights of a block are a sequence of slots of 4 KB in the order of use, packed at load. Each slot has the weights
// of one warp. While a warp would otherwise wait for packets, it loads its slots from a ring in shared memory to
// registers. Later it refills them with what follows SLOTS slots on, so copies from memory run ahead of the phases. The
// weights are the first operand of the matrix unit. The second operand is the rows, 3 x 8: a packet has two neighbouring
// channels of the rows n, n + 8 and n + 16. 32 packets have 8 channels: those of lane l of a warp have row n = l / 4,
// channels 2 * (l % 4), + 1.

constexpr u32 HIDDEN = 1024, HEAD = 128, HEADS = 16, KV_HEADS = 2, HALF = 12, GROUPS = 3;
constexpr u32 CTAS = 128, CLUSTER = 2, RANKS = 16, THREADS = 256, WARPS = 8;
constexpr u32 SLOT = 4096, SLOT_STEPS = 8, SLOTS = 42;                  // a slot: 16 outputs x 8 steps of 16 inputs
constexpr u32 QKV = 0, OUT = 10, GATE = 18, DOWN = 50, LAYER = 66;      // slots of a layer
// Shared memory: second operands, first half of the residual stream, then of both branches; the ring; `Shared`.
constexpr u32 BRANCH = 8 * SLAB, RING = BRANCH + 4 * SLAB, RING_END = RING + SLOTS * SLOT;
constexpr u32 OCTET = 32, HEAD_PACKETS = HEAD / 8 * OCTET;              // packets of 8 channels, of a head
constexpr u32 STREAM = HIDDEN / 8 * OCTET;
constexpr u32 SENT = 3;                // the barrier of the block between the sending of packets and the receiving

struct Packets {
    uint4* x;       // [2, HIDDEN / 8, 32] the residual stream
    uint4* q;       // [HEADS, HEAD / 8, 32]
    uint4* k;       // [KV_HEADS, HEAD / 8, 32]
    uint4* v;       // [KV_HEADS, HEAD / 8, 32] two neighbouring rows of a channel, in place of two channels of a row
    uint4* mlp;     // [FFN / 8, 32]
    uint4* sums;    // [CTAS, RANKS, 2, 32] float32: the rows n, n + 8, n + 16 of a channel
    u32* tags;      // [CTAS] the tag of the last packets
};

struct Shared {
    u64 full[SLOTS], inbox_full[WARPS], squares_full;
    alignas(16) float4 squares[CLUSTER * WARPS][8];       // sums of squares of the rows n, n + 8, n + 16
    float4 inbox[6][3][32];                               // sums of other warps
    uint4 mixture[2][32];                                 // attention weights of a half
    float2 turn[2][6][32];                                // cosine and sine for q, for k
};

// These are the weights and what surrounds the layers.
struct Model {
    const char* weights;      // slots of the layers, block after block
    const char* tail;         // slots of what follows the layers of an evaluation, side after side
    u32 layers, tail_slots, evaluations, tokens;
    float eps;
};

// A block does this in all phases: it takes weights, receives the residual stream, multiplies, and adds up with its
// neighbour, the other block of the cluster.
struct Block {
    const Model& model;
    const Packets& to;
    Shared& s;
    const u32 memory;
    u32 thread, warp, lane, row, pair, cta, side, cluster, rank, group, team, tile, half_tile;
    bool owner, value;
    u32 taken = 0, place = 0;              // slots before this layer: of all, of this evaluation
    u32 phases = 0, sums = 0;              // how often `squares_full` was filled, and this warp has waited for its inbox
    u32 tag;
    u32 stream = 0;                        // this buffer has the residual stream
    bool sender = false;                   // this warp has sent packets that the block has not yet awaited
    u32 sent;                              // at this clock it had sent some, or learned that others had
    float residual[GROUPS];                // owners own these

    __device__ Block(const Model& model, const Packets& to, Shared& s, u32 memory)
        : model(model), to(to), s(s), memory(memory) {}

    // The place of this thread is found anew in each phase, or the compiler would hold what follows from it in registers.
    __device__ __forceinline__ void locate() {
        thread = threadIdx.x, cta = blockIdx.x;
        asm volatile("" : "+r"(thread), "+r"(cta));
        warp = thread / 32, lane = thread % 32, row = lane / 4, pair = lane % 4;
        side = cta % CLUSTER, cluster = cta / CLUSTER, rank = cta % RANKS, group = cta / RANKS;
        team = warp / 4, tile = warp % 4;      // four warps that multiply together
        owner = warp < 2;                      // its lanes own channel 8 * cta + row of the rows 8 * j + 2 * pair + warp
        value = cluster >= 32;                 // the half tile of this cluster is one of v, not of k
        half_tile = cluster % 32;
    }

    // The barriers and the first copies are set up. `rotation` is [HALF, HEAD / 2] cosine, sine.
    __device__ void start(const float2* rotation) {
        locate();
        if (thread == 0) {
            for (u32 i = 0; i < SLOTS; i++) init_barrier(shared_address(&s.full[i]), 1);
            for (u32 i = 0; i < WARPS; i++) init_barrier(shared_address(&s.inbox_full[i]), 1);
            init_barrier(shared_address(&s.squares_full), WARPS);
            fence_barriers();
        }
        for (u32 i = warp; i < 12; i += WARPS) {
            const u32 n = i % 6 / 2 * 8 + 2 * pair + i % 2;
            const u32 channel = i < 6 ? (2 * cluster + side) % 8 * 8 + row : half_tile % 16 * 4 + row % 4;
            s.turn[i / 6][i % 6][lane] = rotation[n % HALF * (HEAD / 2) + channel];
        }
        tag = to.tags[cta];
        cluster_sync();
        if (lane == 0)
            for (u32 n = warp; n < SLOTS; n += WARPS) fetch(n, n);
        __syncwarp();
    }

    // No block exits while its neighbour may still send to it.
    __device__ void finish() {
        if (thread == 0) to.tags[cta] = tag;
        cluster_sync();
    }

    // ---- weights

    // Copies slot n of all into the ring, the one at `from` of an evaluation, if there is one. One thread calls it.
    __device__ __forceinline__ void fetch(u32 n, u32 from) {
        const u32 layers = model.layers * LAYER, length = layers + model.tail_slots;
        if (n >= length * model.evaluations) return;
        while (from >= length) from -= length;
        const char* at = from < layers ? model.weights + (size_t)(cta * layers + from) * SLOT
                                       : model.tail + (side * model.tail_slots + from - layers) * SLOT;
        const u32 barrier = shared_address(&s.full[n % SLOTS]);
        expect(barrier, SLOT);
        copy(memory + RING + n % SLOTS * SLOT, at, SLOT, barrier);
    }

    // Waits for the slot at `at` of this layer.
    __device__ __forceinline__ const uint4* wait_slot(u32 at) {
        const u32 n = taken + at;
        wait(shared_address(&s.full[n % SLOTS]), n / SLOTS & 1);
        return (const uint4*)shared_pointer(memory + RING + n % SLOTS * SLOT);
    }

    // Refills `count` slots of this warp, which it has loaded to registers.
    __device__ __forceinline__ void refill(u32 at, u32 count) {
        __syncwarp();
        if (lane < count) {
            fence_async_shared();
            fetch(taken + at + lane + SLOTS, place + at + lane + SLOTS);
        }
        __syncwarp();
    }

    // Refills one of the two slots of down that this warp has loaded in the layer before, if there was one in this evaluation.
    __device__ __forceinline__ void refill_down(u32 which) {
        if (place) refill(DOWN + 2 * warp + which - LAYER, 1);
    }

    template <u32 COUNT> __device__ __forceinline__ void take(uint4 (&weight)[COUNT * SLOT_STEPS], u32 at) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            const uint4* from = wait_slot(at + i) + lane;
#pragma unroll
            for (u32 k = 0; k < SLOT_STEPS; k++) weight[i * SLOT_STEPS + k] = from[k * 32];
        }
    }

    // A half tile has 8 outputs, those of lanes 0 to 15. What the other lanes load makes outputs that nobody uses.
    __device__ __forceinline__ void take_half(uint4 (&weight)[2 * SLOT_STEPS], u32 at) {
        const uint4* from = wait_slot(at) + lane % 16;
#pragma unroll
        for (u32 k = 0; k < 2 * SLOT_STEPS; k++) weight[k] = from[k * 16];
    }

    // ---- packets

    // Loads of packets that are not there yet delay those that are on their way. Other blocks send at about the same time
    // as this one, so its warps load when it has sent its own, and TRAVEL clocks have passed since. Between two sendings a
    // warp meets warps at another barrier that have awaited the first, so it arrives once for each.

    // Follows the packets of a warp that the next phase awaits.
    __device__ __forceinline__ void tell_sent() {
        __syncwarp();
        arrive_threads(SENT, THREADS);
        sender = true, sent = clocks();
    }

    // Precedes the loads. All warps call it, or have called `tell_sent` and call it.
    __device__ __forceinline__ void await_sent() {
        if (!sender) {
            sync_threads(SENT, THREADS);
            sent = clocks();
        }
        sender = false;
        await_travel(sent);
    }

    // ---- products

    template <u32 STEPS> __device__ __forceinline__ void multiply(float (&sum)[12], const uint4 (&weight)[STEPS], u32 slab) {
        begin_products();
#pragma unroll
        for (u32 k = 0; k < STEPS; k++) multiply_wide(sum, weight[k], operand(slab + k / 4 * SLAB, k % 4), k > 0);
        commit_products();
    }

    __device__ __forceinline__ const uint4* stream_packets() const {
        return to.x + stream * STREAM + (64 * side + 8 * warp) * OCTET + lane;
    }

    // This side's half of the residual stream as second operand. Each warp receives a slab.
    __device__ __forceinline__ void receive_stream(uint4 (&x)[8]) {
        await_sent();
        receive<8, OCTET>(x, stream_packets(), tag);
#pragma unroll
        for (u32 i = 0; i < 8; i++) store_operand(memory + warp * SLAB, i, lane, x[i].x, x[i].y, x[i].z);
        fence_async_shared();
    }

    // 64 outputs of a team; each team multiplies the inputs that its own warps receive. The weights were `count` slots.
    __device__ __forceinline__ void multiply_part(float (&sum)[12], const uint4 (&weight)[16], u32 at, u32 count) {
        uint4 x[8];
        receive_stream(x);
        refill(at, count);
        refill_down(1);
        sync_threads(1 + team, 128);
        multiply<16>(sum, weight, memory + team * 4 * SLAB);
        send_squares(x);
        wait_wide(sum);
    }

    // What this warp has received is squared and added up while the matrix unit works on it.
    __device__ __forceinline__ void send_squares(const uint4 (&x)[8]) {
        float sum[GROUPS] = {};
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 words[GROUPS] = {x[i].x, x[i].y, x[i].z};
#pragma unroll
            for (u32 j = 0; j < GROUPS; j++) sum[j] += low(words[j]) * low(words[j]) + high(words[j]) * high(words[j]);
        }
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++) {
            sum[j] += __shfl_xor_sync(~0u, sum[j], 1);
            sum[j] += __shfl_xor_sync(~0u, sum[j], 2);
        }
        float4& at = s.squares[side * WARPS + warp][row];
        if (pair == 0) {
            at = make_float4(sum[0], sum[1], sum[2], 0);
            deliver(in_block(shared_address(&at), side ^ 1), sum[0], sum[1], sum[2], 0,
                    in_block(shared_address(&s.squares_full), side ^ 1));
        }
        __syncwarp();
        if (lane == 0) expect(shared_address(&s.squares_full), 8 * 16);      // bytes that the neighbour's warp sends
        phases++;
    }

    // The factors that normalize the rows 8 * j + lane % 8.
    __device__ __forceinline__ void row_factors(float (&factor)[GROUPS]) {
        wait(shared_address(&s.squares_full), (phases - 1) & 1);
        float sum[GROUPS] = {};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float4 v = s.squares[lane / 8 * 4 + i][lane % 8];
            sum[0] += v.x, sum[1] += v.y, sum[2] += v.z;
        }
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++) {
            sum[j] += __shfl_xor_sync(~0u, sum[j], 8);
            sum[j] += __shfl_xor_sync(~0u, sum[j], 16);
            factor[j] = rsqrtf(sum[j] / HIDDEN + model.eps);
        }
    }

    // Multiplies the columns of a product, rows 8 * j + 2 * pair + i, by their factors.
    __device__ __forceinline__ void normalize(float (&sum)[12]) {
        float factor[GROUPS];
        row_factors(factor);
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float f = __shfl_sync(~0u, factor[j], 2 * pair + i);
                sum[4 * j + i] *= f, sum[4 * j + 2 + i] *= f;
            }
    }

    // Sends the sums of this warp to a warp of the block `target` of the cluster, which adds what lies in `at`.
    __device__ __forceinline__ void deliver_sums(const float (&sum)[12], u32 target, u32 to_warp, u32 at) {
        const u32 barrier = in_block(shared_address(&s.inbox_full[to_warp]), target);
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++)
            deliver(in_block(shared_address(&s.inbox[at][j][lane]), target), sum[4 * j], sum[4 * j + 1], sum[4 * j + 2],
                    sum[4 * j + 3], barrier);
    }

    __device__ __forceinline__ void wait_inbox(u32 bytes) {
        const u32 barrier = shared_address(&s.inbox_full[warp]);
        if (lane == 0) expect(barrier, bytes);
        wait(barrier, sums++ & 1);
    }

    template <u32 COUNT> __device__ __forceinline__ void collect_sums(float (&sum)[12], u32 at) {
        wait_inbox(COUNT * GROUPS * 32 * 16);
#pragma unroll
        for (u32 i = 0; i < COUNT; i++)
#pragma unroll
            for (u32 j = 0; j < GROUPS; j++) {
                const float4 v = s.inbox[at + i][j][lane];
                sum[4 * j] += v.x, sum[4 * j + 1] += v.y, sum[4 * j + 2] += v.z, sum[4 * j + 3] += v.w;
            }
    }

    // Lanes of even and odd `row` have neighbouring channels, each at rows 8 * j + 2 * pair + i. A packet has both channels
    // at one row, so the lane of even `row` sends that of i = 0 and its partner that of i = 1. 4 packets are apart.
    __device__ __forceinline__ void send_channels(const float (&x)[GROUPS][2], uint4* packets, bool send_them = true) {
        const bool odd = row & 1;
        u32 words[GROUPS];
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++) {
            const float other = __shfl_xor_sync(~0u, odd ? x[j][0] : x[j][1], 4);
            words[j] = odd ? pack(other, x[j][1]) : pack(x[j][0], other);
        }
        if (send_them) send(packets + (2 * pair + odd) * 4 + row / 2, words[0], words[1], words[2], tag);
    }
};

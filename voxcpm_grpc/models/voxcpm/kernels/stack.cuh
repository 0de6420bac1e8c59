// The layers of a small transformer are computed by 128 blocks together. They serve 24 rows: 2 sequences of at most 11
// tokens, the conditional and the unconditional half, each in 12 rows. The encoder of patches has one sequence.
//
// Work is divided so that blocks exchange little. A pair of blocks (a cluster) computes 40 outputs of q, k, v or 64 of
// gate and up. Each block of it multiplies half of the inputs, so it reads half of the residual stream only, and the
// sums of the pair are added through shared memory. A group of 16 blocks computes 128 outputs of the two products that
// are added to the residual stream. Each block multiplies a sixteenth of the inputs, which for attention is a head, and
// adds up the sums of 8 channels, which it owns. Blocks of different pairs exchange packets (exchange.cuh).
//
// Packets may be overwritten under this rule. A packet is sent only after its readers have received the one before it:
// * A block sends q, k, v and the outputs of gate and up after it and its neighbour have received the residual stream,
//   each one half of it, so the packets of all owners.
// * The residual stream alternates between two buffers. An owner sends it after attention when the 16 ranks of its group
//   have sent sums; together they have waited for q of all heads, which all blocks sent after receiving the stream
//   before. After the MLP likewise: the 16 ranks have waited for the outputs of gate and up of all blocks. Only from one
//   evaluation to the next does a block send it without waiting for others in between, hence the second buffer: all
//   blocks had received the stream that it overwrites before they sent the last outputs of gate and up.
// * q, k, v: the residual stream that a block has received followed the outputs of gate and up of all blocks of the
//   layer before, and these followed attention. Outputs of gate and up: likewise, q, k, v of this layer followed the
//   sums of the MLP before.
// * Sums: a sender has waited for the residual stream of all owners, which they sent after receiving the sums before.
// * Shared memory of the neighbour (`inbox`, `squares`): in a layer as for sums, because packets of all blocks depend on all
//   uses of it. But the stream that starts an evaluation depends on no other block, and the neighbour waits only for the
//   owners of its half, so what follows the layers ends with a barrier over the pair.
//
// Slots are refilled so. Copies of weights delay packets, so a warp refills its slots after it has received packets of
// the phase. Most warps spread the four of gate and up until the layer ends, and all refill the two of down in the next
// layer. A slot that a phase takes was copied by the refill of the slot SLOTS before it. If that refill followed the take,
// the block would wait for itself, so it has to precede the phase. Each refill waits only for its own phase and those
// before.
// * No phase takes more than SLOTS slots, so the refill is one of a slot of an earlier phase. Those of q, k, v and of the
//   output of attention are refilled in the phase that takes them.
// * Those of gate and up are refilled by the end of the phase after, so only that phase, the last of the layer, could
//   take what is still to be copied. With 42 slots it takes, at DOWN to LAYER - 1, what the slots 8 to 23 of the layer
//   were refilled with: QKV + 8, QKV + 9, those at OUT and the first 6 at GATE. The first 4 * EARLY at GATE belong to the
//   warps that refill all four at once.
// * Those of down are refilled before gate of the next layer, which is the first to take what they are refilled with. What
//   follows the layers takes none of it, and refills them as q, k, v and attention do.
// * The barrier of a slot tells only an even refill from an odd one, so nobody may wait for a slot before the content
//   before it has arrived. Its warp took that in an earlier phase, and since then all warps have met at a barrier of the
//   block, which every phase has after its takes but q, k, v. The phase after that takes no slot that q, k, v refill.

constexpr u32 EARLY = 2;               // warps that refill their slots of gate and up at once
static_assert(DOWN - GATE <= SLOTS && LAYER - SLOTS <= GATE + 4 * EARLY && GATE - QKV <= SLOTS && DOWN + SLOTS >= LAYER + GATE);

struct Stack : Block {
    __device__ Stack(const Model& model, const Packets& to, Shared& s, u32 memory) : Block(model, to, s, memory) {}

    // ---- q, k, v

    // In a tile of q or a half tile of k, output `row` + 8 is the channel that `row` is rotated with.
    __device__ __forceinline__ void send_rotated(const float (&sum)[12], u32 table, uint4* packets, bool send_them = true) {
        float lower[GROUPS][2], upper[GROUPS][2];
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float2 turn = s.turn[table][2 * j + i][lane];
                lower[j][i] = sum[4 * j + i] * turn.x - sum[4 * j + 2 + i] * turn.y;
                upper[j][i] = sum[4 * j + 2 + i] * turn.x + sum[4 * j + i] * turn.y;
            }
        send_channels(lower, packets, send_them);
        send_channels(upper, packets + 8 * OCTET, send_them);
    }

    // The teams multiply different inputs. Of both, warps 0 and 1 have tiles of q and warp 2 the half tile of k or v. The
    // first team of side 0 adds up tile 0 and the half tile, that of side 1 tile 1.
    __device__ __forceinline__ void project() {
        locate();
        uint4 weight[16];
        const u32 at = QKV + team * 5 + tile * 2;
        if (tile < 2) {
            take<2>(weight, at);
        } else if (tile == 2) {
            take_half(weight, at);
        } else {
#pragma unroll
            for (u32 k = 0; k < 16; k++) weight[k] = make_uint4(0, 0, 0, 0);
        }
        float sum[12];
        multiply_part(sum, weight, at, tile < 2 ? 2 : tile == 2 ? 1 : 0);
        tag++;
        if (tile == 3) return;
        const u32 target = tile == 1, from = tile == 2 ? 3 : 0;
        if (team || side != target) {
            deliver_sums(sum, target, tile, from + (side == target ? 0 : 1 + team));
            return;
        }
        collect_sums<3>(sum, from);
        normalize(sum);
        if (tile < 2) {
            const u32 id = 2 * cluster + tile;      // the number among 8 tiles of a head
            send_rotated(sum, 0, to.q + id / 8 * HEAD_PACKETS + id % 8 * OCTET);
        } else if (!value) {
            uint4* packets = to.k + half_tile / 16 * HEAD_PACKETS + half_tile % 16 / 2 * OCTET + half_tile % 2 * 2;
            send_rotated(sum, 1, packets, lane < 16);
        } else if (lane < 16) {
            uint4* packets = to.v + half_tile / 16 * HEAD_PACKETS + half_tile % 16 * OCTET + lane;
            send(packets, pack(sum[0], sum[1]), pack(sum[4], sum[5]), pack(sum[8], sum[9]), tag);
            send(packets + 16, pack(sum[2], sum[3]), pack(sum[6], sum[7]), pack(sum[10], sum[11]), tag);
        }
        tell_sent();
    }

    // ---- attention

    // A half has the rows 8 * half + m, m from 4 * half to 4 * half + 11: 16 rows of the matrix unit. Each team refills its
    // slots while it would wait for the other.
    __device__ __forceinline__ void attend() {
        const u32 kv_head = rank / (HEADS / KV_HEADS);
        uint4 v[4];
        await_sent();
        if (team == 0) {
            score(kv_head);
            sync_threads(1, 128);
            if (warp < 2) weigh(warp);
        } else {
            receive<4, OCTET>(v, to.v + kv_head * HEAD_PACKETS + tile * 4 * OCTET + lane, tag);
            refill(OUT + warp, 1);
        }
        __syncthreads();
        if (team) {
            mix(v);
        } else {
            refill(OUT + warp, 1);
        }
        fence_async_shared();
        __syncthreads();
    }

    // Scores by a quarter of the channels, for a half and 8 keys. They lie where the output of attention follows: packets of
    // q depend on all sums of the MLP before, so the matrix unit has read what lay there.
    __device__ __forceinline__ float4& scores(u32 quarter, u32 half, u32 keys) const {
        return ((float4*)shared_pointer(memory + BRANCH))[((quarter * 2 + half) * 2 + keys) * 32 + lane];
    }

    // Each warp of the first team multiplies a quarter of the channels.
    __device__ __forceinline__ void score(u32 kv_head) {
        uint4 q[4], k[4];
        receive<4, OCTET>(q, to.q + rank * HEAD_PACKETS + warp * 4 * OCTET + lane, tag);
        receive<4, OCTET>(k, to.k + kv_head * HEAD_PACKETS + warp * 4 * OCTET + lane, tag);
        float score[2][2][4] = {};
#pragma unroll
        for (u32 i = 0; i < 4; i += 2) {
            const u32 lower[GROUPS] = {k[i].x, k[i].y, k[i].z}, upper[GROUPS] = {k[i + 1].x, k[i + 1].y, k[i + 1].z};
            const uint4 first = make_uint4(q[i].x, q[i].y, q[i + 1].x, q[i + 1].y);
            const uint4 second = make_uint4(q[i].y, q[i].z, q[i + 1].y, q[i + 1].z);
#pragma unroll
            for (u32 b = 0; b < 2; b++) {
                mma(score[0][b], first, lower[b], upper[b]);
                mma(score[1][b], second, lower[1 + b], upper[1 + b]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float* x = score[i / 2][i % 2];
            scores(warp, i / 2, i % 2) = make_float4(x[0], x[1], x[2], x[3]);
        }
    }

    __device__ __forceinline__ void weigh(u32 half) {
        float score[2][4];
#pragma unroll
        for (u32 b = 0; b < 2; b++) {
            float4 sum = scores(0, half, b);
#pragma unroll
            for (u32 w = 1; w < 4; w++) {
                const float4 x = scores(w, half, b);
                sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
            }
            score[b][0] = sum.x, score[b][1] = sum.y, score[b][2] = sum.z, score[b][3] = sum.w;
        }
        const float factor = 1.4426950408889634f * 0.08838834764831845f;      // log2(e) / sqrt(HEAD)
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float top = -1e30f, sum = 0;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 key = i / 2 * 8 + 2 * pair + i % 2 - 4 * half;
                float& x = score[i / 2][2 * r + i % 2];
                x = key < model.tokens ? x * factor : -1e30f;
                top = fmaxf(top, x);
            }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float& x = score[i / 2][2 * r + i % 2];
                x = exp2f(x - top);
                sum += x;
            }
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            sum = 1 / sum;
#pragma unroll
            for (u32 i = 0; i < 4; i++) score[i / 2][2 * r + i % 2] *= sum;
        }
        s.mixture[half][lane] = make_uint4(pack(score[0][0], score[0][1]), pack(score[0][2], score[0][3]),
                                           pack(score[1][0], score[1][1]), pack(score[1][2], score[1][3]));
    }

    // Each warp of the second team mixes a quarter of the channels.
    __device__ __forceinline__ void mix(const uint4 (&v)[4]) {
        const uint4 first = s.mixture[0][lane], second = s.mixture[1][lane];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float x[4] = {}, y[4] = {};
            mma(x, first, v[i].x, v[i].y);
            mma(y, second, v[i].y, v[i].z);
            const u32 middle = row < 4 ? pack(x[2], x[3]) : pack(y[0], y[1]);
            const u32 part = tile * 4 + i;
            store_operand(memory + BRANCH + part / 8 * SLAB, part % 8, lane, pack(x[0], x[1]), middle, pack(y[2], y[3]));
        }
    }

    // ---- the residual stream

    // A warp has the sums of 16 channels of its group, which belong to two owners.
    __device__ __forceinline__ void send_sums(const float (&sum)[12]) {
        tag++;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            uint4* packets = to.sums + ((group * RANKS + 2 * warp + r) * RANKS + rank) * 2 * OCTET + lane;
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                send(packets + i * OCTET, __float_as_uint(sum[2 * r + i]), __float_as_uint(sum[4 + 2 * r + i]),
                     __float_as_uint(sum[8 + 2 * r + i]), tag);
        }
        sent = clocks();
    }

    __device__ __forceinline__ void add_sums() {
        locate();
        if (owner) {
            uint4 parts[RANKS];
            await_travel(sent);
            receive<RANKS, 2 * OCTET>(parts, to.sums + (cta * RANKS * 2 + warp) * OCTET + lane, tag);
#pragma unroll
            for (u32 i = 0; i < RANKS; i++) {
                residual[0] += __uint_as_float(parts[i].x);
                residual[1] += __uint_as_float(parts[i].y);
                residual[2] += __uint_as_float(parts[i].z);
            }
        }
        send_stream();
    }

    __device__ __forceinline__ void send_stream() {
        tag++;
        stream ^= 1;
        if (owner) {
            u32 words[GROUPS];
#pragma unroll
            for (u32 j = 0; j < GROUPS; j++)
                words[j] = pack(residual[j], __shfl_xor_sync(~0u, residual[j], 4));
            uint4* packets = to.x + stream * STREAM + cta * OCTET + (2 * pair + warp) * 4 + row / 2;
            if (row % 2 == 0) send(packets, words[0], words[1], words[2], tag);
            tell_sent();
        }
    }

    // ---- layers

    __device__ __forceinline__ void map_attention() {
        locate();
        uint4 weight[8];
        take<1>(weight, OUT + warp);
        attend();
        float sum[12];
        multiply<8>(sum, weight, memory + BRANCH);
        wait_wide(sum);
        send_sums(sum);
        refill_down(0);
        add_sums();
    }

    // A tile has 8 gates and the 8 values that they gate. The team of this block's side is added up here.
    __device__ __forceinline__ void gate() {
        locate();
        uint4 weight[32], x[8];
        take<4>(weight, GATE + 4 * warp);
        receive_stream(x);
        refill(GATE + 4 * warp, warp < EARLY ? 4 : 1);
        __syncthreads();
        float sum[12];
        multiply<32>(sum, weight, memory);
        send_squares(x);
        wait_wide(sum);
        tag++;
        if (team != side) {
            deliver_sums(sum, side ^ 1, warp, tile);
            return;
        }
        collect_sums<1>(sum, tile);
        normalize(sum);
        float y[GROUPS][2];
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float g = sum[4 * j + i];
                y[j][i] = __fdividef(g, 1 + __expf(-g)) * sum[4 * j + 2 + i];
            }
        send_channels(y, to.mlp + (8 * cluster + warp) * OCTET);
        tell_sent();
    }

    __device__ __forceinline__ void map_mlp() {
        locate();
        uint4 weight[16], x[4];
        const u32 gated = GATE + 4 * warp;
        take<2>(weight, DOWN + 2 * warp);
        if (warp >= EARLY) refill(gated + 1, 1);
        await_sent();
        receive<4, OCTET>(x, to.mlp + (32 * rank + 4 * warp) * OCTET + lane, tag);
#pragma unroll
        for (u32 i = 0; i < 4; i++) store_operand(memory + BRANCH + warp / 2 * SLAB, warp % 2 * 4 + i, lane, x[i].x, x[i].y, x[i].z);
        fence_async_shared();
        if (warp >= EARLY) refill(gated + 2, 1);
        __syncthreads();
        float sum[12];
        multiply<16>(sum, weight, memory + BRANCH);
        wait_wide(sum);
        send_sums(sum);
        if (warp >= EARLY) refill(gated + 3, 1);
        add_sums();
    }

    __device__ __forceinline__ void layer() {
        project();
        map_attention();
        gate();
        map_mlp();
        taken += LAYER, place += LAYER;
    }
};

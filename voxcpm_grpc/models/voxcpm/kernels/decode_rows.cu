// This computes the layers of a language model for the new positions of two, four or eight sequences, in one launch.
//
// As in decode_layers.cu, a block owns 20 outputs of q, k and v, 16 of each product that is added to the residual stream,
// and 48 of gate and up, and one warp copies weights to a ring of slots, ahead of their use. But the two blocks of a
// cluster divide the inputs of a product: each has half of the inputs of the outputs of both, so it receives half of the
// values of all sequences. A warp multiplies an eighth of the cluster's inputs for one of the blocks and delivers the sums
// to it, which adds those of 8 warps. In attention, a block has a part of the context of one sequence, and the heads of a
// KV head.
//
// Blocks exchange packets (exchange.cuh), six times a layer. In each exchange but those of attention the two blocks of a
// cluster together receive from all blocks, and what either sends next depends on the sums of both. A packet is sent only
// after its readers have received the one before it:
// * The residual stream: before a block sends it after attention, its cluster has received the mixed values of all blocks,
//   which they sent after receiving the stream before. After the MLP likewise, with the gated values.
// * All others are sent once a layer. In between, the cluster of the sender has received the residual stream of all blocks,
//   which they sent after receiving the packets before.
// A barrier of its warps or the sums of all precede what a block sends after a phase, so all of them have received the
// packets of the phase. The sums and inputs of a phase in shared memory have two buffers, which the phases use by turns: a
// block fills one again only after packets that all blocks sent after they had read it. Attention uses the second one.
//
// The kernels for other numbers of sequences use the same packets: the tags count on from launch to launch.

#include "rows_attention.cuh"

struct RowsDecoder : RowsAttention {
    using RowsAttention::RowsAttention;

    float4 residual;                // warp 0 has it, as in send_values

    __device__ __forceinline__ void project() {
        uint4 x[STEPS], first[STEPS], second[STEPS];
        float tile[2][4] = {}, rest[2][4] = {};
        receive_values(a.x, s.stream[team], true);
        load_operand(x, s.stream[team]);
        multiply_slots(tile, 0, x);
        deliver_sums(tile, s.sums[0], 0);
        take(first, 2);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) second[i] = make_uint4(0, 0, 0, 0);
        multiply(rest, first, second, x);
        deliver_sums(rest, s.sums[1], 0, 4);
        if (warp < 2) {
            await_sums(0, TILE_BYTES + TILE_BYTES / 2 + SQUARES_BYTES, 0);
            const float2 factor = norm_factors();
            float4 sum = add_sums(s.sums[warp]);
            sum.x *= factor.x, sum.y *= factor.y, sum.z *= factor.x, sum.w *= factor.y;
            if (warp == 0) {
                send_values(a.q, sum);
            } else {
                const u32 word = pair_channels(sum.x, sum.y), next = __shfl_xor_sync(~0u, word, 8), r = 2 * pair + group;
                if (group < 2 && r < SEQUENCES) send(a.kv + cta * SEQUENCES + r, word, next, 0, tag + 1);
            }
        }
        tag++;
    }

    // Lane l has values of channel l / 4 of rows 2 * (l % 4) and + 1. In even groups of lanes they become two channels of
    // the first row, in odd ones of the second.
    __device__ __forceinline__ u32 pair_channels(float one, float two) const {
        const bool odd = group % 2;
        const float other = __shfl_xor_sync(~0u, odd ? one : two, 4);
        return odd ? pack(other, two) : pack(one, other);
    }

    __device__ __forceinline__ void add_to_stream(u32 parity) {
        if (warp == 0) {
            await_sums(1, TILE_BYTES, parity);
            const float4 sum = add_sums(s.added);
            residual.x += a.scale * sum.x, residual.y += a.scale * sum.y;
            residual.z += a.scale * sum.z, residual.w += a.scale * sum.w;
            send_values(a.x, residual);
        }
        tag++;
    }

    __device__ __forceinline__ void map_attention() {
        uint4 x[STEPS];
        float sum[2][4] = {};
        receive_values(a.mixed, s.wide[0][team], false);
        load_operand(x, s.wide[0][team]);
        multiply_slots(sum, OUT, x);
        deliver_sums(sum, s.added, 1);
        add_to_stream(0);
    }

    __device__ __forceinline__ void gate() {
        uint4 x[STEPS];
        receive_values(a.x, s.stream[team], true);
        load_operand(x, s.stream[team]);
#pragma unroll 1
        for (u32 tile = 0; tile < 2 * SEGMENTS; tile++) {
            float sum[2][4] = {};
            multiply_slots(sum, GATE + 2 * tile, x);
            deliver_sums(sum, s.sums[tile], 0);
        }
        if (warp < 2) {         // channels 8 * warp to + 7 of each segment
            await_sums(0, 2 * SEGMENTS * TILE_BYTES + SQUARES_BYTES, 1);
            const float2 factor = norm_factors();
            u32 word[SEGMENTS];
#pragma unroll
            for (u32 i = 0; i < SEGMENTS; i++) {
                const float4 sum = add_sums(s.sums[2 * i + warp]);
                const float one = sum.x * factor.x, two = sum.y * factor.y;
                word[i] = pair_channels(__fdividef(one, 1 + __expf(-one)) * (sum.z * factor.x),
                                        __fdividef(two, 1 + __expf(-two)) * (sum.w * factor.y));
            }
            const u32 r = 2 * pair + group % 2;
            if (r < SEQUENCES)
                send(a.gated + (cta * SEQUENCES + r) * 8 + 4 * warp + group / 2, word[0], word[1], word[2], tag + 1);
        }
        tag++;
    }

    __device__ __forceinline__ void map_mlp() {
        constexpr u32 COUNT = WARP_CTAS * SEQUENCES * 8 / 32;
        const u32 first = rank * (CTAS / CLUSTER) + team * TEAM_CTAS + owner * WARP_CTAS;
        uint4 v[COUNT];
        await_sent();
        receive<COUNT, 32>(v, a.gated + first * SEQUENCES * 8 + lane, tag);
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            const u32 at = 32 * i + lane, r = at / 8 % SEQUENCES;
            const u32 channel = (owner * WARP_CTAS + at / (8 * SEQUENCES)) * OWN + at % 8 * 2;
            const u32 to = 4 * part(r, channel / 8) + channel % 8 / 2;
            s.wide[0][team][r][to] = v[i].x, s.wide[1][team][r][to] = v[i].y, s.wide[2][team][r][to] = v[i].z;
        }
        meet_team();
        float sum[2][4] = {};
#pragma unroll 1
        for (u32 segment = 0; segment < SEGMENTS; segment++) {
            uint4 x[STEPS];
            load_operand(x, s.wide[segment][team]);
            multiply_slots(sum, DOWN + 2 * segment, x);
        }
        deliver_sums(sum, s.added, 1);
        add_to_stream(1);
    }

    // ---- all layers

    // Channels 2 * (l / 4) and + 1 of this block are set.
    __device__ __forceinline__ u32 channel() const { return OWN * cta + 2 * group; }

    __device__ __forceinline__ void load_stream() {
        u32 word[2] = {};
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            if (2 * pair + i < SEQUENCES) word[i] = *(const u32*)(a.input + (2 * pair + i) * HIDDEN + channel());
        residual = make_float4(low(word[0]), low(word[1]), high(word[0]), high(word[1]));
    }

    __device__ __forceinline__ void store_output() {
        await_sums(0, SQUARES_BYTES, 0);
        const float2 factor = norm_factors();
        const u32 weight = *(const u32*)(a.norm + channel()), first = pack(residual.x, residual.z),
                  second = pack(residual.y, residual.w);
        if (2 * pair < SEQUENCES)
            *(u32*)(a.output + 2 * pair * HIDDEN + channel()) =
                pack(low(first) * factor.x * low(weight), high(first) * factor.x * high(weight));
        if (2 * pair + 1 < SEQUENCES)
            *(u32*)(a.output + (2 * pair + 1) * HIDDEN + channel()) =
                pack(low(second) * factor.y * low(weight), high(second) * factor.y * high(weight));
    }

    __device__ void compute() {
        if (warp == 0) {
            load_stream();
            send_values(a.x, residual);
        }
        tag++;
        for (u32 l = 0; l < a.count; l++) {
            u16* const keys = a.keys + l * a.layer_stride + kv_head * HEAD;
            u16* const values = a.values + l * a.layer_stride + kv_head * HEAD;
            project();
            if (cta / (KV_HEADS * SEQUENCES) < parts) attend(keys, values);
            tag++;
            mix();
            map_attention();
            gate();
            map_mlp();
            taken += LAYER;
        }
        receive_values(a.x, s.stream[team], true);
        if (warp == 0) store_output();
        if (thread == 0) a.tags[cta] = tag;
    }

    // Positions of earlier steps; keys of a part, parts with keys.
    __device__ __forceinline__ void divide(u32 r, u32& old, u32& span, u32& count) const {
        old = a.context[r] > 1 ? a.context[r] - 1 : 0;
        if (old >= a.capacity) old = a.capacity - 1;    // a wrong context must not lead out of the cache
        span = (old + 16 * PARTS - 1) / (16 * PARTS) * 16;
        count = old ? (old + span - 1) / span : 1;
    }

    __device__ void run() {
        u32 old, span;
        divide(warp % WARPS / (WARPS / SEQUENCES), old, span, mix_parts);
        kv_head = cta % KV_HEADS, sequence = cta / KV_HEADS % SEQUENCES;
        divide(sequence, old, span, parts);
        first = cta / (KV_HEADS * SEQUENCES) * span, end = first + span;
        if (first > old) first = old;
        if (end > old) end = old;
        for (u32 i = thread; i < (end - first + 15) / 16; i += THREADS) {
            const u32 position = first + 16 * i;
            s.slots[i] = a.table[sequence * a.pages + position / a.page_size] * a.page_size + position % a.page_size;
        }
        cos = make_float4(1, 1, 1, 1), sin = make_float4(0, 0, 0, 0);
        if (a.cos) {
            cos = ((const float4*)a.cos)[sequence * (HEAD / 8) + lane % 16];
            sin = ((const float4*)a.sin)[sequence * (HEAD / 8) + lane % 16];
            if (lane < 16) sin = make_float4(-sin.x, -sin.y, -sin.z, -sin.w);
        }
        tag = a.tags[cta];
        if (thread == 0) {
            for (u32 i = 0; i < SLOTS; i++) {
                for (u32 j = 0; j < PIECES; j++) init_barrier(shared_address(&s.full[i][j]), 1);
                init_barrier(shared_address(&s.empty[i]), WARPS);
            }
            for (u32 i = 0; i < 2; i++) init_barrier(shared_address(&s.arrived[i]), 1);
            fence_barriers();
        }
        __syncthreads();
        cluster_sync();
        if (warp == WARPS) {
            copy_weights();
        } else {
            compute();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_rows(const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    char* const memory = dynamic + (-shared_address(dynamic) & 127);
    RowsDecoder block(a, *(Shared*)memory, shared_address(memory) + RING);
    block.run();
}

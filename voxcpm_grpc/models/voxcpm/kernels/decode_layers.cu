// This computes the layers of a language model for the new position of one sequence, in one launch.
//
// A block computes 20 outputs of q, k, v, 16 of each product that is added to the residual stream, and 48 of gate and up.
// It reads whole rows of the weights, where they are, so a weight is read once and the matrices have no second copy. One
// warp copies the rows to a ring of slots in shared memory, ahead of their use across all phases. The other warps
// multiply: each has an eighth of the inputs of all rows, and the sums of the warps are added at the end of a phase.
// A product has one row only; the matrix unit computes it eight times, which costs nothing.
//
// Blocks exchange packets (exchange.cuh), six times a layer. In each exchange but those of attention all blocks receive
// from all blocks. A packet is sent only after its readers have received the one before it:
// * The residual stream: before a block sends it after attention, it has received the mixed values of all blocks, which
//   they sent after receiving the stream before. After the MLP likewise, with the gated values.
// * All others are sent once a layer. In between, the sender has received the residual stream of all blocks, which they
//   sent after receiving the packets before.
// A barrier of its warps precedes what a block sends after a phase, so all of them have received the packets of the phase.

#include "decode_block.cuh"

constexpr u32 KEYS = 8;             // keys at a time

struct Decoder : DecodeBlock {
    using DecodeBlock::DecodeBlock;

    u32 span, parts, first, end;    // keys of a part, parts with keys, keys of this block's part
    float residual = 0;             // the first half of warp 0 has channel OWN * cta + lane
    float4 cos, sin;                // the channels 4 * lane to 4 * lane + 3 of a head have these

    __device__ __forceinline__ void project() {
        uint4 x[STEPS], first[STEPS], second[STEPS];
        float tile[2][4] = {}, rest[2][4] = {};
        receive_values(a.x, true);
        load_operand(x);
        multiply_slots(tile, 0, x);
        store_sums(tile, 0, 0);
        take(first, 2);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) second[i] = make_uint4(0, 0, 0, 0);
        multiply(rest, first, second, x);
        store_sums(rest, 0, 1);
        meet();
        if (warp == 0) {
            const float value = add_sums(0, lane) * norm_factor();
            send_values(a.q + 4 * cta, value);
            const u32 word = pack(value, __shfl_down_sync(~0u, value, 1)), next = __shfl_down_sync(~0u, word, 2);
            if (lane == OWN) send(a.kv + cta, word, next, 0, tag + 1);
        }
        tag++;
    }

    // Channels 4 * lane to + 3 of the keys or values from `start` on; zeros behind the part.
    __device__ __forceinline__ void load_keys(uint2 (&to)[KEYS], const u16* from, u32 start) const {
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            to[i] = make_uint2(0, 0);
            if (start + i < end) to[i] = *(const uint2*)(from + (size_t)s.slots[start + i - first] * (KV_HEADS * HEAD));
        }
    }

    // Attention of the head `warp` of this block's KV head over its part of the context.
    __device__ __forceinline__ void attend(u16* keys, u16* values, uint2 (&k)[KEYS], uint2 (&v)[KEYS]) {
        const u32 kv_head = cta % KV_HEADS;
        uint4 packet[1];
        receive<1, 32>(packet, a.q + (kv_head * GROUP + warp) * (HEAD / 4) + lane, tag);
        float q[4], sums[4] = {}, top = NONE, total = 0;
        widen4(q, make_uint2(packet[0].x, packet[0].y));
        rotate(q, cos, sin);
        const float factor = 1.4426950408889634f * 0.08838834764831845f;    // log2(e) / sqrt(HEAD)
#pragma unroll
        for (u32 i = 0; i < 4; i++) q[i] *= factor;
        if (cta < KV_HEADS) {       // the first part has the new position, too
            uint4 fresh[2];
            receive<2, KV_HEADS * HEAD / 4>(fresh, a.kv + kv_head * (HEAD / 4) + lane, tag);
            float key[4];
            widen4(key, make_uint2(fresh[0].x, fresh[0].y));
            rotate(key, cos, sin);
            const uint2 rounded = make_uint2(pack(key[0], key[1]), pack(key[2], key[3]));
            widen4(key, rounded);
            widen4(sums, make_uint2(fresh[1].x, fresh[1].y));
            if (warp == 0) {
                const size_t at = (size_t)a.write[0] * (KV_HEADS * HEAD);
                *(uint2*)(keys + at) = rounded;
                *(uint2*)(values + at) = make_uint2(fresh[1].x, fresh[1].y);
            }
            top = q[0] * key[0] + q[1] * key[1] + q[2] * key[2] + q[3] * key[3];
#pragma unroll
            for (u32 i = 16; i; i /= 2) top += __shfl_xor_sync(~0u, top, i);
            total = lane < 4;
        }
        for (u32 start = first; start < end; start += KEYS) {
            uint2 next_k[KEYS], next_v[KEYS];
            load_keys(next_k, keys, start + KEYS);
            load_keys(next_v, values, start + KEYS);
            float score[KEYS];
#pragma unroll
            for (u32 i = 0; i < KEYS; i++)
                score[i] = q[0] * low(k[i].x) + q[1] * high(k[i].x) + q[2] * low(k[i].y) + q[3] * high(k[i].y);
            // Lane l gets the sum of key l / 4.
#pragma unroll
            for (u32 half = KEYS / 2, bit = 16; half; half /= 2, bit /= 2)
#pragma unroll
                for (u32 i = 0; i < half; i++) {
                    const bool upper = lane & bit;
                    const float other = __shfl_xor_sync(~0u, upper ? score[i] : score[i + half], bit);
                    score[i] = (upper ? score[i + half] : score[i]) + other;
                }
            score[0] += __shfl_xor_sync(~0u, score[0], 2);
            score[0] += __shfl_xor_sync(~0u, score[0], 1);
            if (start + lane / 4 >= end) score[0] = NONE;
            float best = fmaxf(top, score[0]);
#pragma unroll
            for (u32 i = 16; i > 2; i /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, i));
            const float decay = exp2f(top - best), weight = exp2f(score[0] - best);
            top = best, total = total * decay + weight;
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[i] *= decay;
#pragma unroll
            for (u32 i = 0; i < KEYS; i++) {
                const float w = __shfl_sync(~0u, weight, 4 * i);
                sums[0] += w * low(v[i].x), sums[1] += w * high(v[i].x);
                sums[2] += w * low(v[i].y), sums[3] += w * high(v[i].y);
            }
#pragma unroll
            for (u32 i = 0; i < KEYS; i++) k[i] = next_k[i], v[i] = next_v[i];
        }
#pragma unroll
        for (u32 i = 16; i > 2; i /= 2) total += __shfl_xor_sync(~0u, total, i);
        const float share = 1 / total;
#pragma unroll
        for (u32 i = 0; i < 4; i++) sums[i] *= share;
        uint4* to = a.parts + ((cta * GROUP + warp) * (HEAD / 4) + lane) * 2;
        send(to, __float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]), tag + 1);
        send(to + 1, __float_as_uint(sums[3]), __float_as_uint(top + __log2f(total)), 0, tag + 1);
    }

    // Adds the parts up for the 16 channels of attention that this block owns. A warp adds up eight parts.
    __device__ __forceinline__ void mix() {
        const u32 part = 8 * warp + lane / 4, head = cta / 8;
        float4 sum = make_float4(0, 0, 0, 0);
        float top = NONE, weight = 0;
        if (8 * warp < parts) {
            const bool present = part < parts;
            const u32 group = (present ? part : 0) * KV_HEADS + head / GROUP;
            uint4 v[2];
            receive<2, 1>(v, a.parts + ((group * GROUP + head % GROUP) * (HEAD / 4) + cta % 8 * 4 + lane % 4) * 2, tag);
            const float own = present ? __uint_as_float(v[1].y) : NONE;
            top = own;
#pragma unroll
            for (u32 i = 16; i > 2; i /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
            weight = exp2f(own - top);
            sum = make_float4(weight * __uint_as_float(v[0].x), weight * __uint_as_float(v[0].y),
                              weight * __uint_as_float(v[0].z), weight * __uint_as_float(v[1].x));
#pragma unroll
            for (u32 i = 16; i > 2; i /= 2) {
                weight += __shfl_xor_sync(~0u, weight, i);
                sum.x += __shfl_xor_sync(~0u, sum.x, i), sum.y += __shfl_xor_sync(~0u, sum.y, i);
                sum.z += __shfl_xor_sync(~0u, sum.z, i), sum.w += __shfl_xor_sync(~0u, sum.w, i);
            }
        }
        if (lane < 4) s.mixed[warp][lane] = sum;
        if (lane == 0) s.weight[warp] = make_float2(top, weight);
        meet();
        if (warp == 0) {
            const u32 channel = lane % OWN;
            float best = s.weight[0].x, value = 0, total = 0;       // the first warp always has a part
#pragma unroll
            for (u32 w = 1; w < WARPS; w++) best = fmaxf(best, s.weight[w].x);
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                const float factor = exp2f(s.weight[w].x - best);
                total += factor * s.weight[w].y;
                value += factor * ((const float*)s.mixed[w])[channel];
            }
            send_copies(a.mixed + 4 * cta, value / total);
        }
        tag++;
    }

    __device__ __forceinline__ void add_to_stream(u32 buffer) {
        if (warp == 0) {
            residual += a.scale * add_sums(buffer, lane % OWN);
            send_copies(a.x + 4 * cta, residual);
        }
        tag++;
    }

    __device__ __forceinline__ void map_attention() {
        uint4 x[STEPS];
        float sum[2][4] = {};
        receive_values(a.mixed, false);
        load_operand(x);
        multiply_slots(sum, OUT, x);
        store_sums(sum, 1, 0);
        meet();
        add_to_stream(1);
    }

    // A tile has 8 gates and the 8 values that they gate.
    __device__ __forceinline__ void gate() {
        uint4 x[STEPS];
        receive_values(a.x, true);
        load_operand(x);
#pragma unroll 1
        for (u32 tile = 0; tile < 2 * SEGMENTS; tile++) {
            float sum[2][4] = {};
            multiply_slots(sum, GATE + 2 * tile, x);
            store_sums(sum, 0, tile);
        }
        meet();
        if (warp == 0) {
            const float factor = norm_factor();
            const u32 segment = lane / 8 % SEGMENTS, at = segment * 32 + lane % 8 / 4 * 16 + lane % 4 * 2;
            float y[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float g = add_sums(0, at + i) * factor;
                y[i] = __fdividef(g, 1 + __expf(-g)) * (add_sums(0, at + 8 + i) * factor);
            }
            const u32 word = pack(y[0], y[1]);
            const u32 second = __shfl_down_sync(~0u, word, 8), third = __shfl_down_sync(~0u, word, 16);
#pragma unroll
            for (u32 c = 0; c < COPIES; c++)
                if (lane < 8) send(a.gated + c * (CTAS * 8) + 8 * cta + lane, word, second, third, tag + 1);
        }
        tag++;
    }

    __device__ __forceinline__ void map_mlp() {
        uint4 v[4];
        receive<4, 32>(v, a.gated + own_copy() * (CTAS * 8) + 128 * warp + lane, tag);
        u32* to = s.operand[warp] + lane;
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            to[32 * i] = v[i].x, to[32 * i + INPUTS / 2] = v[i].y, to[32 * i + INPUTS] = v[i].z;
        __syncwarp();
        float sum[2][4] = {};
#pragma unroll 1
        for (u32 segment = 0; segment < SEGMENTS; segment++) {
            uint4 x[STEPS];
            load_operand(x, segment);
            multiply_slots(sum, DOWN + 2 * segment, x);
        }
        store_sums(sum, 1, 0);
        meet();
        add_to_stream(1);
    }

    __device__ void compute() {
        const u32 kv_head = cta % KV_HEADS;
        if (warp == 0) {
            residual = widen(a.input[OWN * cta + lane % OWN]);
            send_copies(a.x + 4 * cta, residual);
        }
        tag++;
        for (u32 l = 0; l < a.count; l++) {
            u16* const keys = a.keys + l * a.layer_stride + kv_head * HEAD + 4 * lane;
            u16* const values = a.values + l * a.layer_stride + kv_head * HEAD + 4 * lane;
            uint2 k[KEYS], v[KEYS];
            load_keys(k, keys, first);
            load_keys(v, values, first);
            project();
            if (cta / KV_HEADS < parts) attend(keys, values, k, v);
            tag++;
            mix();
            map_attention();
            gate();
            map_mlp();
            taken += LAYER;
        }
        receive_values(a.x, true);
        meet();
        if (warp == 0 && lane < OWN) {
            const float value = low(pack(residual, residual)) * norm_factor() * widen(a.norm[OWN * cta + lane]);
            a.output[OWN * cta + lane] = (u16)pack(value, value);
        }
        if (thread == 0) a.tags[cta] = tag;
    }

    __device__ void run() {
        u32 old = a.context[0] > 1 ? a.context[0] - 1 : 0;  // positions of earlier steps
        if (old >= a.capacity) old = a.capacity - 1;        // a wrong context must not lead out of the cache
        span = (old + KEYS * PARTS - 1) / (KEYS * PARTS) * KEYS;
        parts = old ? (old + span - 1) / span : 1;
        first = cta / KV_HEADS * span, end = first + span;
        if (first > old) first = old;
        if (end > old) end = old;
        for (u32 i = thread; i < end - first; i += THREADS) {
            const u32 position = first + i;
            s.slots[i] = a.table[position / a.page_size] * a.page_size + position % a.page_size;
        }
        cos = make_float4(1, 1, 1, 1), sin = make_float4(0, 0, 0, 0);
        if (a.cos) {
            cos = ((const float4*)a.cos)[lane % 16], sin = ((const float4*)a.sin)[lane % 16];
            if (lane < 16) sin = make_float4(-sin.x, -sin.y, -sin.z, -sin.w);
        }
        tag = a.tags[cta];
        if (thread == 0) {
            for (u32 i = 0; i < SLOTS; i++) {
                for (u32 j = 0; j < PIECES; j++) init_barrier(shared_address(&s.full[i][j]), 1);
                init_barrier(shared_address(&s.empty[i]), WARPS);
            }
            fence_barriers();
        }
        __syncthreads();
        if (warp == WARPS) {
            if (lane == 0) copy_weights();
        } else {
            compute();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_layers(const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    char* const memory = dynamic + (-shared_address(dynamic) & 127);
    Decoder block(a, *(Shared*)memory, shared_address(memory) + RING);
    block.run();
}

// This is the attention of decode_rows.cu. A block attends to a part of the context of one sequence with the heads of a KV
// head.

#include "rows_block.cuh"

constexpr u32 KEYS = 16 * WARPS;    // keys at a time, 16 in a warp
constexpr float FACTOR = 1.4426950408889634f * 0.08838834764831845f;    // log2(e) / sqrt(HEAD)

// The packets come from two places, as in `receive`.
__device__ __forceinline__ void receive_two(uint4 (&packets)[2], const uint4* one, const uint4* two, u32 tag) {
    const long long start = clock64();
    packets[0] = load_packet(one), packets[1] = load_packet(two);
    while (__any_sync(~0u, packets[0].w != tag || packets[1].w != tag)) {
        if (packets[0].w != tag) packets[0] = load_packet(one);
        if (packets[1].w != tag) packets[1] = load_packet(two);
        if (clock64() - start > TIMEOUT) __trap();
    }
}

struct RowsAttention : RowsBlock {
    using RowsBlock::RowsBlock;

    u32 kv_head, sequence;          // this block's part of attention is that of this head and sequence
    u32 parts, first, end;          // parts with keys, keys of this block's part
    u32 mix_parts;                  // parts with keys of the sequence that this warp mixes
    float4 cos, sin;                // the channels 4 * lane to 4 * lane + 3 of a head have these

    // Key `at` is one of the 16 keys of a warp from `start` on. They are in one page.
    __device__ __forceinline__ size_t find_key(u32 start, u32 w, u32 at) const {
        return (size_t)(s.slots[(start - first) / 16 + w] + at) * (KV_HEADS * HEAD);
    }

    // Keys l / 4 and + 8 of this warp: channels 32 * i + 8 * (l % 4) to + 7. Zeros behind the part.
    __device__ __forceinline__ void load_keys(uint4 (&to)[2][4], const u16* keys, u32 start) const {
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) to[j][i] = make_uint4(0, 0, 0, 0);
            if (start + 16 * warp + 8 * j + group < end) {
                const uint4* from = (const uint4*)(keys + find_key(start, warp, 8 * j + group)) + pair;
#pragma unroll
                for (u32 i = 0; i < 4; i++) to[j][i] = from[4 * i];
            }
        }
    }

    // Channels 16 * warp + 2 * (l / 4) and + 1 of the values of keys 2 * (l % 4), + 1, + 8 and + 9 of each warp.
    __device__ __forceinline__ void load_values(u32 (&to)[WARPS][4], const u16* values, u32 start) const {
#pragma unroll
        for (u32 w = 0; w < WARPS; w++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 at = 2 * pair + j % 2 + j / 2 * 8;
                to[w][j] = 0;
                if (start + 16 * w + at < end) to[w][j] = *((const u32*)(values + find_key(start, w, at)) + 8 * warp + group);
            }
    }

    __device__ __forceinline__ static u32 scale_pair(u32 v, float factor) { return pack(low(v) * factor, high(v) * factor); }

    // Receives q of this block's sequence and KV head, and its new key and value if this block has the first part.
    __device__ __forceinline__ void receive_query(u16* keys, u16* values) {
        Attention& t = s.attention;
        const u32 head = kv_head * GROUP + warp;
        uint4 packet[1];
        receive<1, 1>(packet, a.q + ((head * 8 + lane / 4) * SEQUENCES + sequence) * 4 + lane % 4, tag);
        float q[4];
        widen4(q, make_uint2(packet[0].x, packet[0].y));
        rotate(q, cos, sin);
        const uint2 rounded = make_uint2(pack(q[0], q[1]), pack(q[2], q[3]));
        *(uint2*)(t.q[warp] + 4 * part(warp, lane / 2) + lane % 2 * 2) = rounded;
        if (cta >= KV_HEADS * SEQUENCES) return;
        uint4 fresh[2];
        receive<2, KV_HEADS * HEAD / 4 * SEQUENCES>(fresh, a.kv + (kv_head * (HEAD / 4) + lane) * SEQUENCES + sequence, tag);
        float key[4];
        widen4(key, make_uint2(fresh[0].x, fresh[0].y));
        rotate(key, cos, sin);
        const uint2 narrow = make_uint2(pack(key[0], key[1]), pack(key[2], key[3]));
        widen4(key, narrow);
        widen4(q, rounded);
        if (warp == 0) {
            const size_t at = (size_t)a.write[sequence] * (KV_HEADS * HEAD) + 4 * lane;
            *(uint2*)(keys + at) = narrow;
            *(uint2*)(values + at) = make_uint2(fresh[1].x, fresh[1].y);
            t.value[2 * lane] = fresh[1].x, t.value[2 * lane + 1] = fresh[1].y;
        }
        float score = q[0] * key[0] + q[1] * key[1] + q[2] * key[2] + q[3] * key[3];
#pragma unroll
        for (u32 i = 16; i; i /= 2) score += __shfl_xor_sync(~0u, score, i);
        if (lane == 0) t.fresh[warp] = score * FACTOR;
    }

    // The weights of 16 keys of this warp, for all heads, are relative to their largest exponent.
    __device__ __forceinline__ void weigh_keys(const uint4 (&k)[2][4], const uint4 (&q)[4], u32 start, u32 buffer) {
        Attention& t = s.attention;
        float c[2][4] = {};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            mma(c[0], make_uint4(k[0][i].x, k[1][i].x, k[0][i].y, k[1][i].y), q[i].x, q[i].y);
            mma(c[1], make_uint4(k[0][i].z, k[1][i].z, k[0][i].w, k[1][i].w), q[i].z, q[i].w);
        }
        float score[4], top[2], total[2];
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            score[i] = start + 16 * warp + i / 2 * 8 + group < end ? (c[0][i] + c[1][i]) * FACTOR : NONE;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            top[h] = fmaxf(score[h], score[2 + h]);
#pragma unroll
            for (u32 i = 4; i < 32; i *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], i));
            score[h] = exp2f(score[h] - top[h]), score[2 + h] = exp2f(score[2 + h] - top[h]);
            total[h] = score[h] + score[2 + h];
#pragma unroll
            for (u32 i = 4; i < 32; i *= 2) total[h] += __shfl_xor_sync(~0u, total[h], i);
        }
        t.weights[buffer][warp][0][lane] = transpose(pack(score[0], score[1]));
        t.weights[buffer][warp][1][lane] = transpose(pack(score[2], score[3]));
        if (lane < 4) {
            *(float2*)(t.tops[buffer][warp] + 2 * lane) = make_float2(top[0], top[1]);
            *(float2*)(t.totals[buffer][warp] + 2 * lane) = make_float2(total[0], total[1]);
        }
    }

    // A block computes the attention of all heads of a KV head over its part of the context. A warp weighs 16 keys, and adds
    // 16 channels of all values.
    __device__ __forceinline__ void attend(u16* keys, u16* values) {
        Attention& t = s.attention;
        uint4 k[2][4];
        u32 v[WARPS][4];
        load_keys(k, keys, first);
        load_values(v, values, first);
        receive_query(keys, values);
        meet();
        uint4 q[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) q[i] = ((const uint4*)t.q[group])[part(group, 4 * i + pair)];
        float sum[4] = {}, top = NONE, total = 0;  // heads 2 * pair and + 1 have the sums, head lane / 4 has the others
        if (cta < KV_HEADS * SEQUENCES) {
            const u32 word = t.value[8 * warp + group];
            sum[0] = sum[1] = low(word), sum[2] = sum[3] = high(word);
            top = t.fresh[group], total = 1;
        }
        u32 buffer = 0;
        for (u32 start = first; start < end; start += KEYS, buffer ^= 1) {
            const u32 warps = (end - start + 15) / 16;      // warps that have keys
            if (warp < warps) weigh_keys(k, q, start, buffer);
            if (start + KEYS < end) load_keys(k, keys, start + KEYS);
            meet();
            float best = top;
#pragma unroll
            for (u32 w = 0; w < WARPS; w++)
                if (w < warps) best = fmaxf(best, t.tops[buffer][w][group]);
            const float decay = exp2f(top - best);
            top = best, total *= decay;
            const float one = __shfl_sync(~0u, decay, 8 * pair), two = __shfl_sync(~0u, decay, 8 * pair + 4);
            sum[0] *= one, sum[1] *= two, sum[2] *= one, sum[3] *= two;
#pragma unroll
            for (u32 w = 0; w < WARPS; w++)
                if (w < warps) {
                    const float factor = exp2f(t.tops[buffer][w][group] - best);
                    total += factor * t.totals[buffer][w][group];
                    mma(sum, make_uint4(__byte_perm(v[w][0], v[w][1], 0x5410), __byte_perm(v[w][0], v[w][1], 0x7632),
                                        __byte_perm(v[w][2], v[w][3], 0x5410), __byte_perm(v[w][2], v[w][3], 0x7632)),
                        scale_pair(t.weights[buffer][w][0][lane], factor), scale_pair(t.weights[buffer][w][1][lane], factor));
                }
            if (start + KEYS < end) load_values(v, values, start + KEYS);
        }
        const float share = 1 / total, weight = top + __log2f(total);
        uint4* const to = a.parts + ((cta * GROUP + 2 * pair) * WARPS + warp) * 8 + group;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const float factor = __shfl_sync(~0u, share, 8 * pair + 4 * h), w = __shfl_sync(~0u, weight, 8 * pair + 4 * h);
            send(to + h * (WARPS * 8), __float_as_uint(sum[h] * factor), __float_as_uint(sum[2 + h] * factor),
                 __float_as_uint(w), tag + 1);
        }
    }

    // Adds the parts up for the 16 channels of attention that this block owns. A warp adds up eight parts of a sequence.
    __device__ __forceinline__ void mix() {
        constexpr u32 SHARES = WARPS / SEQUENCES;       // warps of a sequence
        const u32 head = cta / 8, from = warp % SHARES * 8;
        float2 sum = make_float2(0, 0);
        float top = NONE, weight = 0;
        if (from < mix_parts) {
            const u32 at = from + lane / 8;
            uint4 v[2];
            float own[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) own[i] = NONE;
            const u32 one = at < mix_parts ? at : 0, two = at + 4 < mix_parts ? at + 4 : 0;
            const uint4* packets = a.parts + ((warp / SHARES * KV_HEADS + head / GROUP) * GROUP + head % GROUP) * (WARPS * 8) +
                                   cta % 8 * 8 + lane % 8;
            constexpr u32 PART = SEQUENCES * HEADS * (WARPS * 8);
            receive_two(v, packets + one * PART, packets + two * PART, tag);
            if (at < mix_parts) own[0] = __uint_as_float(v[0].z);
            if (at + 4 < mix_parts) own[1] = __uint_as_float(v[1].z);
            top = fmaxf(own[0], own[1]);
#pragma unroll
            for (u32 i = 8; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
            const float w[2] = {exp2f(own[0] - top), exp2f(own[1] - top)};
            weight = w[0] + w[1];
            sum = make_float2(w[0] * __uint_as_float(v[0].x) + w[1] * __uint_as_float(v[1].x),
                              w[0] * __uint_as_float(v[0].y) + w[1] * __uint_as_float(v[1].y));
#pragma unroll
            for (u32 i = 8; i < 32; i *= 2) {
                weight += __shfl_xor_sync(~0u, weight, i);
                sum.x += __shfl_xor_sync(~0u, sum.x, i), sum.y += __shfl_xor_sync(~0u, sum.y, i);
            }
        }
        if (lane < 8) s.mixed[warp][lane] = sum;
        if (lane == 0) s.weight[warp] = make_float2(top, weight);
        meet();
        if (warp == 0) {
            const u32 r = lane / 4 % SEQUENCES;
            float best = NONE, value[4] = {}, total = 0;
#pragma unroll
            for (u32 i = 0; i < SHARES; i++) best = fmaxf(best, s.weight[r * SHARES + i].x);
#pragma unroll
            for (u32 i = 0; i < SHARES; i++) {
                const u32 w = r * SHARES + i;
                const float factor = exp2f(s.weight[w].x - best);
                const float2 low = s.mixed[w][2 * pair], high = s.mixed[w][2 * pair + 1];
                total += factor * s.weight[w].y;
                value[0] += factor * low.x, value[1] += factor * low.y, value[2] += factor * high.x, value[3] += factor * high.y;
            }
            const float share = 1 / total;
            if (lane < 4 * SEQUENCES)
                send(a.mixed + (cta * SEQUENCES + r) * 4 + pair, pack(value[0] * share, value[1] * share),
                     pack(value[2] * share, value[3] * share), 0, tag + 1);
        }
        tag++;
    }
};

// The kernels that run all layers in one launch share this of a layer of a language model: its sizes, the order of its
// weights in the ring of slots, and what they compute alike.

#include "exchange.cuh"
#include "product.cuh"

constexpr u32 HIDDEN = 2048, FFN = 6144, HEAD = 128, HEADS = 16, KV_HEADS = 2, GROUP = HEADS / KV_HEADS;
constexpr u32 CTAS = 128, OWN = HIDDEN / CTAS, SEGMENTS = FFN / HIDDEN;
constexpr u32 WARPS = 8, THREADS = 32 * WARPS + 32;
constexpr u32 OUT = 3, GATE = OUT + 2, DOWN = GATE + 4 * SEGMENTS, LAYER = DOWN + 2 * SEGMENTS;   // slots of a layer
constexpr float NONE = -1e30f;      // nothing has this exponent

struct Layer {
    const char *qkv, *out, *gate_up, *down;     // [outputs, inputs]; q, k, v and gate, up below each other
};

// Adds the products of 16 rows, eight in a slot.
template <u32 STEPS>
__device__ __forceinline__ void multiply(float (&sum)[2][4], const uint4 (&first)[STEPS], const uint4 (&second)[STEPS],
                                         const uint4 (&x)[STEPS]) {
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
        mma(sum[0], make_uint4(first[i].x, second[i].x, first[i].y, second[i].y), x[i].x, x[i].y);
        mma(sum[1], make_uint4(first[i].z, second[i].z, first[i].w, second[i].w), x[i].z, x[i].w);
    }
}

// Rotates the channels 4 * lane to 4 * lane + 3 of a head, which have these angles. The sines of the first half are negative.
__device__ __forceinline__ void rotate(float (&x)[4], const float4& cos, const float4& sin) {
    float other[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) other[i] = __shfl_xor_sync(~0u, x[i], 16);
    x[0] = x[0] * cos.x + other[0] * sin.x, x[1] = x[1] * cos.y + other[1] * sin.y;
    x[2] = x[2] * cos.z + other[2] * sin.z, x[3] = x[3] * cos.w + other[3] * sin.w;
}

__device__ __forceinline__ void widen4(float (&to)[4], uint2 v) {
    to[0] = low(v.x), to[1] = high(v.x), to[2] = low(v.y), to[3] = high(v.y);
}

// This maps the latent frames of a patch linearly from their channels to those of a transformer.

constexpr u32 PATCH = 4, LATENT = 64;

struct Frames {
    alignas(16) float latents[PATCH * LATENT];

    // Thread LATENT * f + d sets latent d of frame f.
    __device__ __forceinline__ void set(u32 thread, float x) {
        __syncthreads();
        latents[thread] = x;
        __syncthreads();
    }
};

// This is channel c at frame f of the linear map of the latents.
__device__ __forceinline__ float lift(const Frames& frames, const u16* weight, const u16* bias, u32 c, u32 f) {
    float sum = widen(bias[c]);
    const uint4* w = (const uint4*)(weight + c * LATENT);
    const float* x = frames.latents + f * LATENT;
#pragma unroll
    for (u32 i = 0; i < LATENT / 8; i++) {
        const uint4 v = w[i];
        const float4 y = *(const float4*)(x + 8 * i), z = *(const float4*)(x + 8 * i + 4);
        sum += low(v.x) * y.x + high(v.x) * y.y + low(v.y) * y.z + high(v.y) * y.w;
        sum += low(v.z) * z.x + high(v.z) * z.y + low(v.w) * z.z + high(v.w) * z.w;
    }
    return sum;
}

// The Euler loop of one stream runs in one launch: all evaluations of the diffusion transformer of a patch.

#include "exchange.cuh"
#include "product.cuh"
#include "block.cuh"
#include "stack.cuh"
#include "frames.cuh"

constexpr u32 TOKENS = 11;
constexpr u32 FIRST_LATENT = TOKENS - PATCH, FIRST_CONDITION = FIRST_LATENT - PATCH, TIME = FIRST_CONDITION - 1;
constexpr u32 VELOCITY = 16;           // slots of the velocities' weights

struct Arguments {
    Model model;
    Packets packets;
    const float* noise;     // [PATCH, LATENT]
    const u16* mu;          // [2, HIDDEN]
    const u16* condition;   // [PATCH, LATENT]
    const float* cfg;       // [1]
    const u16* time;        // [evaluations, HIDDEN]
    const float* size;      // [evaluations]
    const u16 *in_weight, *in_bias, *condition_weight, *condition_bias;  // [HIDDEN, LATENT], [HIDDEN]
    const u16* out_bias;    // [LATENT]
    const float2* rotation; // [HALF, HEAD / 2] cosine, sine
    float* out;             // [PATCH, LATENT]
};

struct Patch {
    Frames frames;
    float velocity[2][PATCH * LATENT];       // conditional, unconditional
    float dots[WARPS][2];
};

// One of the rows n, n + 8 and n + 16, n below 8, has a frame of the patch: rows 7 to 10 and 19 to 22.
__device__ __forceinline__ u32 patch_group(u32 n) { return n == 7 ? 0 : n < 3 ? 1 : 2; }

struct Flow : Stack {
    const Arguments& a;
    Patch& p;
    float fixed[GROUPS];       // the residual stream before the first layer has it: all evaluations share it

    __device__ Flow(const Arguments& a, Shared& s, Patch& p, u32 memory)
        : Stack(a.model, a.packets, s, memory), a(a), p(p) {}

    __device__ void find_fixed() {
        const u32 channel = 8 * cta + row;
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++) {
            const u32 n = 8 * j + 2 * pair + warp, half = n / HALF, token = n % HALF;
            fixed[j] = 0;
            if (token < TIME && half == 0) fixed[j] = widen(a.mu[token * HIDDEN + channel]);
            if (token >= FIRST_CONDITION && token < FIRST_LATENT)
                fixed[j] = lift(p.frames, a.condition_weight, a.condition_bias, channel, token - FIRST_CONDITION);
        }
    }

    __device__ void send_rows(u32 evaluation) {
        if (owner) {
            const u32 channel = 8 * cta + row, n = 2 * pair + warp;
            const u32 frame = (n + 8 * patch_group(n)) % HALF - FIRST_LATENT;
            const float latent = lift(p.frames, a.in_weight, a.in_bias, channel, frame);
            const float time = widen(a.time[evaluation * HIDDEN + channel]);
#pragma unroll
            for (u32 j = 0; j < GROUPS; j++)
                residual[j] = j == patch_group(n) ? latent : (8 * j + n) % HALF == TIME ? time : fixed[j];
        }
        send_stream();
    }

    // Every pair of blocks computes the velocities, and the latents after the step along them: thread 64 f + d has
    // latent d of frame f.
    __device__ float step(float x, float size, float cfg) {
        locate();
        refill_down(0);
        uint4 weight[16];
        take<2>(weight, 2 * warp);
        float sum[12];
        multiply_part(sum, weight, 2 * warp, 2);
        taken += VELOCITY, place = 0;
        float y[4];                // outputs `row` and `row` + 8 at two rows
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 j = patch_group(2 * pair + i % 2);
            y[i] = j == 0 ? sum[i] : j == 1 ? sum[4 + i] : sum[8 + i];
        }
        float4* inbox = &s.inbox[0][0][0] + tile * 3 * 32 + lane;  // sums of the other team, of the neighbour's teams
        const u32 other = in_block(shared_address(inbox + (1 + team) * 32), side ^ 1);
        deliver(other, y[0], y[1], y[2], y[3], in_block(shared_address(&s.inbox_full[tile]), side ^ 1));
        if (team) {
            deliver(in_block(shared_address(inbox), side), y[0], y[1], y[2], y[3],
                    in_block(shared_address(&s.inbox_full[tile]), side));
        } else {
            wait_inbox(3 * 32 * 16);
            const float4 mine = inbox[0], first = inbox[32], second = inbox[64];
            y[0] = (y[0] + mine.x) + (first.x + second.x), y[1] = (y[1] + mine.y) + (first.y + second.y);
            y[2] = (y[2] + mine.z) + (first.z + second.z), y[3] = (y[3] + mine.w) + (first.w + second.w);
            float factors[GROUPS];
            row_factors(factors);
            const u32 own = patch_group(lane % 8);
            const float factor = own == 0 ? factors[0] : own == 1 ? factors[1] : factors[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 n = 2 * pair + i + 8 * patch_group(2 * pair + i), frame = n % HALF - FIRST_LATENT;
                const float f = __shfl_sync(~0u, factor, 2 * pair + i);
#pragma unroll
                for (u32 r = 0; r < 2; r++) {
                    const u32 d = 16 * tile + 8 * r + row;
                    p.velocity[n / HALF][frame * LATENT + d] = y[2 * r + i] * f + widen(a.out_bias[d]);
                }
            }
        }
        __syncwarp();
        cluster_arrive();          // this warp has read what the neighbour's next deliveries overwrite
        __syncthreads();
        const float c = p.velocity[0][thread], u = p.velocity[1][thread];
        float cu = c * u, uu = u * u;
#pragma unroll
        for (u32 i = 16; i; i /= 2) {
            cu += __shfl_xor_sync(~0u, cu, i);
            uu += __shfl_xor_sync(~0u, uu, i);
        }
        if (lane == 0) p.dots[warp][0] = cu, p.dots[warp][1] = uu;
        __syncthreads();
        cu = uu = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) cu += p.dots[w][0], uu += p.dots[w][1];
        cluster_wait();
        const float fitted = u * (cu / (uu + 1e-8f));
        return x - size * (fitted + cfg * (c - fitted));
    }

    __device__ void run() {
        start(a.rotation);
        p.frames.set(thread, widen(a.condition[thread]));
        if (owner) find_fixed();
        float x = a.noise[thread];
        const float cfg = a.cfg[0];
        for (u32 e = 0; e < a.model.evaluations; e++) {
            p.frames.set(thread, low(pack(x, x)));
            send_rows(e);
            for (u32 l = 0; l < a.model.layers; l++) layer();
            x = step(x, a.size[e], cfg);
        }
        if (cta == 0) a.out[thread] = x;
        finish();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow(const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    char* const memory = dynamic + (-shared_address(dynamic) & 1023);
    Flow block(a, *(Shared*)(memory + RING_END), *(Patch*)(memory + RING_END + sizeof(Shared)), shared_address(memory));
    block.run();
}

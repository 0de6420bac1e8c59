// The encoder of patches runs for one patch in one launch.

#include "exchange.cuh"
#include "product.cuh"
#include "block.cuh"
#include "stack.cuh"
#include "frames.cuh"

struct Arguments {
    Model model;
    Packets packets;
    const u16* patch;                   // [PATCH, LATENT]
    const u16* token;                   // [HIDDEN] the special token in front of the frames
    const u16 *in_weight, *in_bias;     // [HIDDEN, LATENT], [HIDDEN]
    const u16* norm;                    // [HIDDEN]
    const float2* rotation;             // [HALF, HEAD / 2] cosine, sine
    u16* out;                           // [HIDDEN]
};

// The first of the rows has the special token and those behind it the frames. The others are zeros in all layers.
struct Encoder : Stack {
    const Arguments& a;
    Frames& frames;

    __device__ Encoder(const Arguments& a, Shared& s, Frames& frames, u32 memory)
        : Stack(a.model, a.packets, s, memory), a(a), frames(frames) {}

    __device__ void send_rows() {
        const u32 channel = 8 * cta + row, n = 2 * pair + warp;
        if (owner) {
            residual[0] = n == 0 ? widen(a.token[channel]) : n <= PATCH ? lift(frames, a.in_weight, a.in_bias, channel, n - 1) : 0;
            residual[1] = residual[2] = 0;
        }
        send_stream();
    }

    // The owners of the first row normalize it.
    __device__ void write_token() {
        locate();
        uint4 x[8];
        receive_stream(x);
        send_squares(x);
        float factors[GROUPS];
        row_factors(factors);
        const float factor = __shfl_sync(~0u, factors[0], 0);
        const u32 channel = 8 * cta + row;
        if (warp == 0 && pair == 0) {
            const float x = residual[0] * factor * widen(a.norm[channel]);
            a.out[channel] = (u16)pack(x, x);
        }
    }

    __device__ void run() {
        start(a.rotation);
        frames.set(thread, widen(a.patch[thread]));
        send_rows();
        for (u32 l = 0; l < a.model.layers; l++) layer();
        write_token();
        finish();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) encode(const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    char* const memory = dynamic + (-shared_address(dynamic) & 1023);
    Encoder block(a, *(Shared*)(memory + RING_END), *(Frames*)(memory + RING_END + sizeof(Shared)), shared_address(memory));
    block.run();
}

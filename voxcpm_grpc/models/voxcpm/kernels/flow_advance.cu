// This makes the Euler step of an evaluation of the diffusion transformer, and the input rows of the next evaluation.
//
// A cluster of PARTS blocks serves a stream. Each block multiplies its COLUMNS channels of the outputs of the layers with
// the weights of the velocity, and sends the sums to all blocks of the cluster. Each block then makes the whole step, and
// its COLUMNS channels of the next rows. Weights are read before the previous kernel has ended.
//
// All operands of products go from global memory to the registers in which the instructions expect them, 16 bytes at a
// time: sums admit any order of the inputs. Lane `quad` * 4 + `part` has frame `quad` of both halves of the batch, and the
// parts `part` + 4 i of eight inputs.
//
// The program is compiled with FRAMES (of a patch) and FIRST (tokens before the patches: 1 with one mu token, else 3).

#include "registers.cuh"

constexpr int HIDDEN = 1024, LATENTS = 64, COLUMNS = 128, PARTS = HIDDEN / COLUMNS, WARPS = 4;
constexpr int FIXED = FIRST + FRAMES, TOKENS = FIXED + FRAMES, MU = (FIRST + 1) / 2;
constexpr int UNITS = 32 * FRAMES;           // sums of four values: two latents of a frame, in both halves
constexpr int STEPS = COLUMNS / 32, LATENT_STEPS = LATENTS / 32;      // steps of two products each
constexpr int OWN = COLUMNS / WARPS / 8;      // tiles of eight columns of a warp
constexpr int PITCH = LATENTS + 8;            // elements; this avoids bank conflicts
constexpr int SENT = UNITS * 16 + FRAMES * 8;      // bytes of a block to each block

static_assert(UNITS <= 32 * WARPS && FIXED <= 2 * WARPS, "a thread has one sum, and 16 threads a token");

struct Arguments {
    const u16* made;                              // [FRAMES, 2 streams, HIDDEN], the outputs of the layers
    const u16 *norm, *out_weight, *out_bias;      // [HIDDEN], [LATENTS, HIDDEN], [LATENTS]
    const u16 *in_weight, *in_bias;               // [HIDDEN, LATENTS], [HIDDEN]
    const float *x, *sizes, *cfg;                 // [streams, FRAMES, LATENTS], [evaluations], [streams]
    const u16 *mu, *time, *condition;             // [streams, MU, HIDDEN], [HIDDEN], [streams, FRAMES, HIDDEN]
    float* next;                                  // [streams, FRAMES, LATENTS]
    u16* rows;                                    // [TOKENS, 2 streams, HIDDEN]
    float* squares;                               // [PARTS, TOKENS, 2 streams]
    int streams, i;
    float eps;
};

struct Shared {
    float4 sums[PARTS][UNITS];            // each block has two latents, of the conditional half and of the other
    float2 squares[PARTS][FRAMES];        // each block has those of the outputs of both halves
    float2 dots[WARPS];
    float patch[WARPS][FRAMES];           // squares of the rows of the patch
    alignas(16) u16 latents[FRAMES][PITCH];
    u64 received;
};

__device__ __forceinline__ float squares_of(u32 word) { return low(word) * low(word) + high(word) * high(word); }

__device__ __forceinline__ float rounded(float x) { return low(pack(x, x)); }

struct Block {
    const Arguments& a;
    Shared& s;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, part = lane % 4;
    const int rank = blockIdx.x, stream = blockIdx.y, column = rank * COLUMNS;

    __device__ __forceinline__ int row(int token, int half) const { return (token * 2 + half) * a.streams + stream; }

    __device__ __forceinline__ void start() const {
        if (thread == 0) {
            init_barrier(shared_address(&s.received), 1);
            fence_barriers();
            expect(shared_address(&s.received), PARTS * SENT);
        }
        __syncwarp();
        cluster_arrive();
    }

    // Sixteen threads have a token that is not of the new patch: eight channels each.
    __device__ __forceinline__ void read_fixed(u32 (&value)[4], u32 (&hidden)[4]) const {
        const int token = thread / 16, at = column + thread % 16 * 8;
#pragma unroll
        for (int w = 0; w < 4; w++) value[w] = hidden[w] = 0;
        if (token >= FIRST && token < FIXED)
            load(value, a.condition + (size_t)(stream * FRAMES + token - FIRST) * HIDDEN + at);
        if (token == FIRST - 1) load(value, a.time + at);
        if (token < MU) load(hidden, a.mu + (size_t)(stream * MU + token) * HIDDEN + at);
    }

    __device__ __forceinline__ void write_fixed(const u32 (&value)[4], const u32 (&hidden)[4]) const {
        const int token = thread / 16, at = column + thread % 16 * 8;
        u32 words[2][4];
        float squares[2] = {};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            words[0][w] = pack(low(value[w]) + low(hidden[w]), high(value[w]) + high(hidden[w])), words[1][w] = value[w];
#pragma unroll
            for (int half = 0; half < 2; half++) squares[half] += squares_of(words[half][w]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            squares[half] = across<8>(squares[half], plus);
            if (token < FIXED) write(token, half, at, words[half]);
            if (token < FIXED && thread % 16 == 0) a.squares[rank * TOKENS * 2 * a.streams + row(token, half)] = squares[half];
        }
    }

    __device__ __forceinline__ void write(int token, int half, int at, const u32 (&words)[4]) const {
        *(uint4*)(a.rows + (size_t)row(token, half) * HIDDEN + at) = make_uint4(words[0], words[1], words[2], words[3]);
    }

    // The sums are those of this block's channels, of latents 16 warp to 16 warp + 15, and the squares of these channels.
    __device__ __forceinline__ void multiply_outputs(const u32 (&y)[2][STEPS][4], const u32 (&norm)[STEPS][4],
                                                     const u32 (&weight)[2][STEPS][4], float (&sums)[2][4],
                                                     float (&squares)[2]) const {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 scaled[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const u32 v = y[half][i][w];
                    squares[half] += squares_of(v);
                    scaled[half][w] = pack(low(v) * low(norm[i][w]), high(v) * high(norm[i][w]));
                }
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const u32 rows[4] = {scaled[0][w], scaled[1][w], scaled[0][w + 1], scaled[1][w + 1]};
#pragma unroll
                for (int j = 0; j < 2; j++) multiply(sums[j], rows, weight[j][i][w], weight[j][i][w + 1]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) squares[half] = across<2>(squares[half], plus);
    }

    // Sends the sums to all blocks of the cluster, this one included. Each block begins with another receiver.
    __device__ __forceinline__ void send(const float (&sums)[2][4], const float (&squares)[2]) const {
        if (quad >= FRAMES) return;
        const u32 own = shared_address(&s.sums[rank][(2 * warp * FRAMES + quad) * 4 + part]);
        const u32 own_squares = shared_address(&s.squares[rank][quad]);
#pragma unroll
        for (int n = 1; n <= PARTS; n++) {
            const int to = (rank + n) % PARTS;
            const u32 barrier = in_block(shared_address(&s.received), to);
#pragma unroll
            for (int j = 0; j < 2; j++)
                asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                             ::"r"(in_block(own + j * FRAMES * 4 * 16, to)), "f"(sums[j][0]), "f"(sums[j][1]),
                               "f"(sums[j][2]), "f"(sums[j][3]), "r"(barrier) : "memory");
            if (warp == 0 && part == 0)
                asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                             ::"r"(in_block(own_squares, to)), "f"(squares[0]), "f"(squares[1]), "r"(barrier) : "memory");
        }
    }

    // Returns two latents of a frame after the step.
    __device__ __forceinline__ float2 step(float2 x, float2 bias, float size, float cfg) const {
        float2 c = {}, u = {};
        if (thread < UNITS) {
            const int frame = thread / 4 % FRAMES;
            float4 sum = {};
            float2 squares = {};
#pragma unroll
            for (int r = 0; r < PARTS; r++) {
                const float4 v = s.sums[r][thread];
                const float2 q = s.squares[r][frame];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                squares.x += q.x, squares.y += q.y;
            }
            const float first = rsqrtf(squares.x / HIDDEN + a.eps), second = rsqrtf(squares.y / HIDDEN + a.eps);
            c = make_float2(rounded(sum.x * first + bias.x), rounded(sum.y * first + bias.y));
            u = make_float2(rounded(sum.z * second + bias.x), rounded(sum.w * second + bias.y));
        }
        const float cu = across(c.x * u.x + c.y * u.y, plus), uu = across(u.x * u.x + u.y * u.y, plus);
        if (lane == 0) s.dots[warp] = make_float2(cu, uu);
        __syncthreads();
        float2 dots = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) dots.x += s.dots[w].x, dots.y += s.dots[w].y;
        const float fit = dots.x / (dots.y + 1e-8f);
        u.x *= fit, u.y *= fit;
        return make_float2(x.x - size * (u.x + cfg * (c.x - u.x)), x.y - size * (u.y + cfg * (c.y - u.y)));
    }

    // Writes the rows of the new patch. Each lane has eight channels of a frame.
    __device__ __forceinline__ void write_patch(const u32 (&weight)[OWN][LATENT_STEPS][4], const u32 (&bias)[4]) const {
        float sums[OWN][4] = {};
#pragma unroll
        for (int i = 0; i < LATENT_STEPS; i++) {
            uint4 x = {};
            if (quad < FRAMES) x = *(const uint4*)(s.latents[quad] + 32 * i + 8 * part);
            const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const u32 rows[4] = {words[w], 0, words[w + 1], 0};
#pragma unroll
                for (int j = 0; j < OWN; j++) multiply(sums[j], rows, weight[j][i][w], weight[j][i][w + 1]);
            }
        }
        u32 words[4];
        float squares = 0;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            words[j] = pack(sums[j][0] + low(bias[j]), sums[j][1] + high(bias[j]));
            squares += squares_of(words[j]);
        }
        squares = across<2>(squares, plus);
        if (quad < FRAMES) {
#pragma unroll
            for (int half = 0; half < 2; half++) write(FIXED + quad, half, column + 32 * warp + 8 * part, words);
            if (part == 0) s.patch[warp][quad] = squares;
        }
        __syncthreads();
        if (thread < 2 * FRAMES) {
            const int frame = thread / 2;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += s.patch[w][frame];
            a.squares[rank * TOKENS * 2 * a.streams + row(FIXED + frame, thread % 2)] = sum;
        }
    }

    __device__ __forceinline__ void run() const {
        start();
        u32 norm[STEPS][4], out_weight[2][STEPS][4], in_weight[OWN][LATENT_STEPS][4], in_bias[4];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int at = column + 32 * i + 8 * part;
            load(norm[i], a.norm + at);
#pragma unroll
            for (int j = 0; j < 2; j++) load(out_weight[j][i], a.out_weight + (16 * warp + 8 * j + quad) * HIDDEN + at);
        }
        // Columns are assigned to tiles so that a lane has eight neighbours.
        const int own = column + 32 * warp;
#pragma unroll
        for (int j = 0; j < OWN; j++)
#pragma unroll
            for (int i = 0; i < LATENT_STEPS; i++)
                load(in_weight[j][i], a.in_weight + (own + 8 * (quad / 2) + 2 * j + quad % 2) * LATENTS + 32 * i + 8 * part);
        load(in_bias, a.in_bias + own + 8 * part);
        const int frame = thread / 4 % FRAMES, latent = thread / 4 / FRAMES * 8 + 2 * part;
        const bool known = thread < UNITS;
        const u32 bias = known ? *(const u32*)(a.out_bias + latent) : 0;

        await_previous_kernel();
        u32 y[2][STEPS][4], value[4], hidden[4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
#pragma unroll
                for (int w = 0; w < 4; w++) y[half][i][w] = 0;
                if (quad < FRAMES) load(y[half][i], a.made + (size_t)row(quad, half) * HIDDEN + column + 32 * i + 8 * part);
            }
        const size_t place = (size_t)(stream * FRAMES + frame) * LATENTS + latent;
        const float2 x = known ? *(const float2*)(a.x + place) : float2{};
        const float size = a.sizes[a.i], cfg = a.cfg[stream];
        read_fixed(value, hidden);

        float sums[2][4] = {}, squares[2] = {};
        multiply_outputs(y, norm, out_weight, sums, squares);
        cluster_wait();
        send(sums, squares);
        write_fixed(value, hidden);
        wait(shared_address(&s.received), 0);
        const float2 next = step(x, make_float2(low(bias), high(bias)), size, cfg);
        if (known) {
            if (rank == 0) *(float2*)(a.next + place) = next;
            *(u32*)(s.latents[frame] + latent) = pack(next.x, next.y);
        }
        __syncthreads();
        write_patch(in_weight, in_bias);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS) flow_advance(const __grid_constant__ Arguments a) {
    __shared__ Shared s;
    let_next_kernel_start();
    Block{a, s}.run();
}

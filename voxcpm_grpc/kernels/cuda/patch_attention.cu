// Attention inside short sequences, with norm and rotation, in registers.
//
// A warp computes HEADS query heads of a sequence of TOKENS rows, which is one tile of the matrix unit of 16 x 16 scores.
// All operands go from global memory to the registers in which the instructions expect them, 16 bytes at a time: the sums
// over the inputs of a head, and the order of its outputs, admit any order of the inputs. Lane `quad` * 4 + `part` has
// tokens `quad` and `quad` + 8, and the parts `part` + 4 i of eight inputs of each, i = 0 to 3. So both inputs of a
// rotation, 64 apart, are in one lane, and queries and keys of a token have the same angles.
//
// The program is compiled with TOKENS, REPEAT (query heads of a KV head), COUNT (query heads), HEADS, WARPS, INPUTS (of the
// rows whose norm is applied, 0: none) and ROTATE.

#include "attention.cuh"

constexpr int HALVES = (TOKENS + 7) / 8;                    // eights of tokens
constexpr int OWN = (TOKENS + WARPS - 1) / WARPS;           // rows that a warp measures, at most
constexpr int READS = INPUTS ? INPUTS / 256 : 1;            // reads of 16 bytes a lane, for each row
constexpr int TABLE = TOKENS * SIZE / 8;                      // parts of four cosines of all tokens
constexpr int ANGLES = ROTATE ? (2 * TABLE + 32 * WARPS - 1) / (32 * WARPS) : 1;      // parts that a thread copies

static_assert(TOKENS <= 16 && REPEAT % HEADS == 0 && COUNT % (HEADS * WARPS) == 0 && INPUTS % 256 == 0);

struct Arguments {
    const u16 *q, *k, *v;        // [TOKENS, sequences, heads, SIZE], rows q_row and kv_row values apart
    const float *cos, *sin;      // [TOKENS, SIZE / 2]
    const u16* rows;             // [TOKENS, sequences, INPUTS]
    u16* out;                    // [end - begin, sequences, COUNT, SIZE]
    u32 q_row, kv_row;
    int begin, end;
    float eps, scale;
};

struct Shared {
    float zero;
    float norm[OWN * WARPS > 16 ? OWN * WARPS : 16];      // each token has a factor
    alignas(16) float cos[TOKENS][SIZE / 2 + 4], sin[TOKENS][SIZE / 2 + 4];      // four more avoid bank conflicts
};

// Weights of the keys, as the first operand of their product with the values.
struct Weights {
    u32 words[4];
};

struct Warp {
    const Arguments& a;
    Shared& s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, part = lane % 4;
    const int sequence = blockIdx.x, sequences = gridDim.x;
    const int head = (blockIdx.y * WARPS + warp) * HEADS, group = head / REPEAT;

    // The row of a token. Tokens that do not exist read the last one: they are not stored, and have no weight.
    __device__ __forceinline__ u32 row(int token) const { return min(token, TOKENS - 1) * sequences + sequence; }

    // Four parts of a token.
    __device__ __forceinline__ void read(u32 (&to)[4][4], const u16* row) const {
#pragma unroll
        for (int i = 0; i < 4; i++) load(to[i], row + 8 * (part + 4 * i));
    }

    // A part of the angles, which no kernel writes.
    __device__ __forceinline__ void read_angles(float4 (&to)[ANGLES]) const {
#pragma unroll
        for (int n = 0; n < ANGLES; n++) {
            const int i = threadIdx.x + 32 * WARPS * n;
            if (i < 2 * TABLE) to[n] = __ldg((const float4*)(i < TABLE ? a.cos : a.sin) + i % TABLE);
        }
    }

    __device__ __forceinline__ void share(const float4 (&angles)[ANGLES]) const {
#pragma unroll
        for (int n = 0; n < ANGLES; n++) {
            const int i = threadIdx.x + 32 * WARPS * n, at = i % TABLE;
            if (i < 2 * TABLE) *(float4*)((i < TABLE ? s.cos : s.sin)[at / (SIZE / 8)] + at % (SIZE / 8) * 4) = angles[n];
        }
    }

    // Rotates the same token of N heads.
    template <int N> __device__ __forceinline__ void rotate(u32 (*const (&x)[N])[4], int token) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const int at = 8 * (part + 4 * i) + 2 * w;
                const float4 c = *(const float4*)(s.cos[token] + at), d = *(const float4*)(s.sin[token] + at);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    ::rotate(x[n][i][w], x[n][i + 2][w], c.x, c.y, d.x, d.y);
                    ::rotate(x[n][i][w + 1], x[n][i + 2][w + 1], c.z, c.w, d.z, d.w);
                }
            }
    }

    __device__ __forceinline__ void measure(const u32 (&x)[OWN][READS][4]) const {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            float squares = s.zero;
#pragma unroll
            for (int i = 0; i < READS; i++)
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    squares += low(x[n][i][w]) * low(x[n][i][w]);
                    squares += high(x[n][i][w]) * high(x[n][i][w]);
                }
            squares = across(squares, plus);
            if (lane == 0) s.norm[warp + n * WARPS] = rsqrtf(squares / INPUTS + a.eps);
        }
    }

    __device__ __forceinline__ Weights weigh(const u32 (&q)[HALVES][4][4], const u32 (&k)[HALVES][4][4]) const {
        float scores[2][4] = {};
#pragma unroll
        for (int t = 0; t < HALVES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int w = 0; w < 4; w += 2) {
                    const u32 rows[4] = {q[0][i][w], HALVES > 1 ? q[HALVES - 1][i][w] : 0, q[0][i][w + 1],
                                         HALVES > 1 ? q[HALVES - 1][i][w + 1] : 0};
                    multiply(scores[t], rows, k[t][i][w], k[t][i][w + 1]);
                }
        Weights weights = {};
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const float own = INPUTS ? s.norm[quad + 8 * h] * a.scale : a.scale;
            float top = NEVER, total = 0, key_norm[HALVES][2];
#pragma unroll
            for (int t = 0; t < HALVES; t++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = 8 * t + 2 * part + e;
                    key_norm[t][e] = !INPUTS ? 1 : key < TOKENS ? s.norm[key] : 0;
                    float& score = scores[t][2 * h + e];
                    score = key < TOKENS ? score * (own * key_norm[t][e]) : NEVER;
                    top = fmaxf(top, score);
                }
            top = across<2>(top, larger);
#pragma unroll
            for (int t = 0; t < HALVES; t++)
#pragma unroll
                for (int e = 0; e < 2; e++) total += scores[t][2 * h + e] = power_of_two(scores[t][2 * h + e] - top);
            const float whole = reciprocal(across<2>(total, plus));
#pragma unroll
            for (int t = 0; t < HALVES; t++)
                weights.words[2 * t + h] =
                    pack(scores[t][2 * h] * (whole * key_norm[t][0]), scores[t][2 * h + 1] * (whole * key_norm[t][1]));
        }
        return weights;
    }

    // v: the values of keys 2 part, + 1, + 8 and + 9, of which a lane has the parts `quad` / 2 + `quad` % 2 * 4 + 8 j.
    __device__ __forceinline__ void mix(const Weights& weights, const u32 (&v)[2 * HALVES][2][4], int head) const {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float o[8][4] = {};
#pragma unroll
            for (int t = 0; t < 8; t++) {
                u32 b[2] = {};
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    b[h] = __byte_perm(v[2 * h][j][t / 2], v[2 * h + 1][j][t / 2], t % 2 ? 0x7632 : 0x5410);
                multiply(o[t], weights.words, b[0], b[1]);
            }
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                const int token = quad + 8 * h;
                if (token < a.begin || token >= a.end) continue;
                u16* to = a.out + (size_t)(((token - a.begin) * sequences + sequence) * COUNT + head) * SIZE + 8 * (part + 8 * j);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int c = 2 * h + e;
                    *(uint4*)(to + 32 * e) =
                        make_uint4(pack(o[0][c], o[1][c]), pack(o[2][c], o[3][c]), pack(o[4][c], o[5][c]), pack(o[6][c], o[7][c]));
                }
            }
        }
    }

    __device__ __forceinline__ void attend() const {
        float4 angles[ANGLES];
        if (ROTATE) read_angles(angles);
        await_previous_kernel();
        u32 x[OWN][READS][4], k[HALVES][4][4], q[HEADS][HALVES][4][4], v[2 * HALVES][2][4];
#pragma unroll
        for (int n = 0; n < OWN && INPUTS; n++)
#pragma unroll
            for (int i = 0; i < READS; i++)
                load(x[n][i], a.rows + row(warp + n * WARPS) * INPUTS + 8 * (lane + 32 * i));
#pragma unroll
        for (int h = 0; h < HALVES; h++) read(k[h], a.k + row(quad + 8 * h) * a.kv_row + group * SIZE);
#pragma unroll
        for (int n = 0; n < HEADS; n++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) read(q[n][h], a.q + row(quad + 8 * h) * a.q_row + head * SIZE + n * SIZE);
        if (ROTATE) share(angles);
        if (INPUTS) {
            if (threadIdx.x == 0) s.zero = 0;
            __syncthreads();      // the compiler moves no load behind it, so all wait for memory at the same time
            measure(x);
        }
#pragma unroll
        for (int e = 0; e < 2 * HALVES; e++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                load(v[e][j], a.v + row(2 * part + e % 2 + e / 2 * 8) * a.kv_row + group * SIZE +
                                  8 * (quad / 2 + quad % 2 * 4 + 8 * j));
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HALVES && ROTATE; h++) {
            u32 (*same[1 + HEADS])[4] = {k[h]};
#pragma unroll
            for (int n = 0; n < HEADS; n++) same[1 + n] = q[n][h];
            rotate(same, min(quad + 8 * h, TOKENS - 1));
        }
        Weights weights[HEADS];
#pragma unroll
        for (int n = 0; n < HEADS; n++) weights[n] = weigh(q[n], k);
#pragma unroll
        for (int n = 0; n < HEADS; n++) mix(weights[n], v, head + n);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
patch_attention(const __grid_constant__ Arguments a) {
    __shared__ Shared s;
    let_next_kernel_start();
    Warp{a, s}.attend();
}

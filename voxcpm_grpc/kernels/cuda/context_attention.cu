// Attention of one new row of each sequence over its paged context, with rotation and the write of its key and value.
//
// A cluster of SPLITS blocks computes the eight query heads of a KV head of a sequence. Its warps divide the positions in
// tiles of 16, tile `t` for warp t % STEP. Keys are the first operand of the matrix unit, and the eight heads the second;
// then values are the first one, and the weights of the heads, transposed, the second. All operands go from memory to the
// registers in which the instructions expect them (see `attention.cuh`). The keys and values of AHEAD tiles of each warp,
// which earlier steps wrote, are requested before the previous kernel has ended. At the end the blocks add up the parts
// of all warps, each for a share of the outputs, in a fixed order.
//
// The program is compiled with GROUPS (KV heads), PAGE (positions of a page), ROTATE, WARPS, SPLITS, AHEAD and RESIDENT.

#include "attention.cuh"

constexpr int HEADS = 8, TILE = 16;                  // query heads of a KV head; positions of a tile
constexpr int PITCH = SIZE + 4;                      // floats of a head: this avoids bank conflicts
constexpr int STRIDE = GROUPS * SIZE;                // values of a position of the cache
constexpr int UNITS = HEADS * SIZE / 4;              // units of four outputs
constexpr int STEP = SPLITS * WARPS;                 // tiles from one of a warp to its next one

static_assert(PAGE % TILE == 0);

struct Arguments {
    const u16 *q, *k, *v;                // [sequences, heads, SIZE], rows q_row, k_row and v_row values apart
    const float *cos, *sin;              // [sequences, SIZE / 2]
    u16 *keys, *values;                  // [pages, PAGE, GROUPS, SIZE]
    u16* out;                            // [sequences, GROUPS, HEADS, SIZE]
    const int *context, *table;          // positions of each sequence with the new one; [sequences, table_row] pages
    const long long* write;              // the position of the cache for the new row
    u32 q_row, k_row, v_row, table_row;
    float scale;
};

struct Shared {
    float top[WARPS][HEADS], total[WARPS][HEADS];
    alignas(16) float sums[WARPS][HEADS][PITCH];
};

// The transpose of 8 x 8 values of 16 bits in a warp.
__device__ __forceinline__ u32 transposed(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ float4 read_shared(u32 address, int rank) {
    float4 v;
    if (SPLITS == 1)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
    else
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(in_block(address, rank)));
    return v;
}

__device__ __forceinline__ float read_shared_one(u32 address, int rank) {
    float v;
    if (SPLITS == 1) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    else asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(in_block(address, rank)));
    return v;
}

// Keys `quad` and `quad` + 8 of a tile, and values of the keys 2 part, + 1, + 8 and + 9, of which a lane has the parts
// `quad` + 8 j.
struct Tile {
    u32 k[2][4][4], v[4][2][4];
};

struct Warp {
    const Arguments& a;
    Shared& s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, part = lane % 4;
    const int split = blockIdx.x, sequence = blockIdx.y / GROUPS, group = blockIdx.y % GROUPS;
    const int first = split + SPLITS * warp;      // tile
    const int old = __ldg(a.context + sequence) - 1;      // positions that earlier steps wrote; -1 without a sequence
    const int tiles = old > 0 ? (old + TILE - 1) / TILE : 0;
    int requested = 0, pages = 0;      // tiles of this warp, and the pages of 32 of them, one in each lane
    float top[2] = {NEVER, NEVER}, total[2] = {};      // heads 2 part and + 1 have these
    float sums[8][4] = {};  // values summed: [4 j + u]: inputs 2 u and 2 u + 1 of part `quad` + 8 j, each of both heads

    // Requests the next tile of this warp, if it exists.
    __device__ __forceinline__ void request(Tile& tile) {
        if (requested % 32 == 0) {
            const int t = first + (requested + lane) * STEP;
            if (t < tiles) pages = __ldg(a.table + (size_t)sequence * a.table_row + t * TILE / PAGE);
        }
        const int page = __shfl_sync(~0u, pages, requested % 32), t = first + requested++ * STEP;
        if (t >= tiles) return;
        const size_t at = ((size_t)page * PAGE + t * TILE % PAGE) * STRIDE + group * SIZE;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) load(tile.k[h][i], a.keys + at + (quad + 8 * h) * STRIDE + 8 * (part + 4 * i));
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                load(tile.v[e][j], a.values + at + (2 * part + e % 2 + e / 2 * 8) * STRIDE + 8 * (quad + 8 * j));
    }

    // Adds a tile of which `count` keys exist.
    __device__ __forceinline__ void add(Tile& tile, int count, const u32 (&q)[4][4]) {
        float c[4] = {};      // keys `quad` and `quad` + 8, each of heads 2 part and + 1
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const u32 keys[4] = {tile.k[0][i][w], tile.k[1][i][w], tile.k[0][i][w + 1], tile.k[1][i][w + 1]};
                multiply(c, keys, q[i][w], q[i][w + 1]);
            }
        if (count < TILE) {      // what lies behind the context may be no number
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (2 * part + e % 2 + e / 2 * 8 >= count)
#pragma unroll
                    for (int j = 0; j < 2; j++)
#pragma unroll
                        for (int w = 0; w < 4; w++) tile.v[e][j][w] = 0;
        }
        float decay[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            c[n] = quad < count ? c[n] * a.scale : NEVER;
            c[n + 2] = quad + 8 < count ? c[n + 2] * a.scale : NEVER;
            float most = fmaxf(c[n], c[n + 2]);
#pragma unroll
            for (int d = 4; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            most = fmaxf(most, top[n]);
            decay[n] = power_of_two(top[n] - most);
            top[n] = most;
            c[n] = power_of_two(c[n] - most), c[n + 2] = power_of_two(c[n + 2] - most);
            total[n] = total[n] * decay[n] + c[n] + c[n + 2];
        }
        const u32 w0 = transposed(pack(c[0], c[1])), w1 = transposed(pack(c[2], c[3]));
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int u = 0; u < 4; u++) {
                float (&o)[4] = sums[4 * j + u];
#pragma unroll
                for (int n = 0; n < 4; n++) o[n] *= decay[n % 2];
                const u32 values[4] = {__byte_perm(tile.v[0][j][u], tile.v[1][j][u], 0x5410),
                                       __byte_perm(tile.v[0][j][u], tile.v[1][j][u], 0x7632),
                                       __byte_perm(tile.v[2][j][u], tile.v[3][j][u], 0x5410),
                                       __byte_perm(tile.v[2][j][u], tile.v[3][j][u], 0x7632)};
                multiply(o, values, w0, w1);
            }
    }

    __device__ __forceinline__ static void rotate_head(u32 (&x)[4][4], const float4 (&cos)[2][2], const float4 (&sin)[2][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const float4 c = cos[i][w / 2], d = sin[i][w / 2];
                rotate(x[i][w], x[i + 2][w], c.x, c.y, d.x, d.y);
                rotate(x[i][w + 1], x[i + 2][w + 1], c.z, c.w, d.z, d.w);
            }
    }

    // Writes the key and the value of the new row to the cache. As a tile they are its first key, if it is in the context.
    __device__ __forceinline__ void add_new(bool inside, size_t at, const u32 (&q)[4][4], const u32 (&key)[4][4],
                                            const u32 (&value)[2][4]) {
        Tile tile = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int w = 0; w < 4; w++) tile.k[0][i][w] = key[i][w];
            if (quad == 0)
                *(uint4*)(a.keys + at + 8 * (part + 4 * i)) = make_uint4(key[i][0], key[i][1], key[i][2], key[i][3]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int w = 0; w < 4; w++) tile.v[0][j][w] = value[j][w];
            if (part == 0)
                *(uint4*)(a.values + at + 8 * (quad + 8 * j)) = make_uint4(value[j][0], value[j][1], value[j][2], value[j][3]);
        }
        if (inside) add(tile, 1, q);
    }

    __device__ __forceinline__ void publish() {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int head = 2 * part + n;
#pragma unroll
            for (int d = 4; d < 32; d *= 2) total[n] += __shfl_xor_sync(~0u, total[n], d);
            if (quad == 0) s.top[warp][head] = top[n], s.total[warp][head] = total[n];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int u = 0; u < 4; u += 2)
                    *(float4*)(s.sums[warp][head] + 8 * (quad + 8 * j) + 2 * u) =
                        float4{sums[4 * j + u][n], sums[4 * j + u][2 + n], sums[4 * j + u + 1][n], sums[4 * j + u + 1][2 + n]};
        }
    }

    // Adds up the parts of all warps for four outputs of a head.
    __device__ __forceinline__ void finish(int unit) const {
        const int head = unit / (SIZE / 4), output = unit % (SIZE / 4) * 4;
        float tops[STEP], most = NEVER, whole = 0;
        float4 sum = {};
#pragma unroll
        for (int p = 0; p < STEP; p++) {
            tops[p] = read_shared_one(shared_address(&s.top[p % WARPS][head]), p / WARPS);
            most = fmaxf(most, tops[p]);
        }
#pragma unroll
        for (int p = 0; p < STEP; p++) {
            const float f = power_of_two(tops[p] - most);
            const float4 v = read_shared(shared_address(&s.sums[p % WARPS][head][output]), p / WARPS);
            whole += f * read_shared_one(shared_address(&s.total[p % WARPS][head]), p / WARPS);
            sum.x += f * v.x, sum.y += f * v.y, sum.z += f * v.z, sum.w += f * v.w;
        }
        const float f = whole > 0 ? reciprocal(whole) : 0;
        *(uint2*)(a.out + ((size_t)(sequence * GROUPS + group) * HEADS + head) * SIZE + output) =
            make_uint2(pack(sum.x * f, sum.y * f), pack(sum.z * f, sum.w * f));
    }

    __device__ __forceinline__ void attend() {
        Tile tile[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) request(tile[n]);
        const bool owns_new = tiles % STEP == first;      // this warp would have the next tile
        const size_t at = (size_t)a.write[sequence] * STRIDE + group * SIZE;
        float4 cos[2][2], sin[2][2];
#pragma unroll
        for (int i = 0; i < 2 && ROTATE; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const size_t angle = (size_t)sequence * (SIZE / 2) + 8 * (part + 4 * i) + 4 * j;
                load(cos[i][j], a.cos + angle), load(sin[i][j], a.sin + angle);
            }
        await_previous_kernel();
        u32 q[4][4], key[4][4], value[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load(q[i], a.q + (size_t)sequence * a.q_row + (group * HEADS + quad) * SIZE + 8 * (part + 4 * i));
        if (owns_new) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                load(key[i], a.k + (size_t)sequence * a.k_row + group * SIZE + 8 * (part + 4 * i));
#pragma unroll
            for (int j = 0; j < 2; j++)
                load(value[j], a.v + (size_t)sequence * a.v_row + group * SIZE + 8 * (quad + 8 * j));
        }
        if (ROTATE) rotate_head(q, cos, sin);
        if (owns_new) {
            if (ROTATE) rotate_head(key, cos, sin);
            add_new(old >= 0, at, q, key, value);
        }
        for (int t = first; t < tiles; t += AHEAD * STEP)
#pragma unroll
            for (int n = 0; n < AHEAD && t + n * STEP < tiles; n++) {
                add(tile[n], min(TILE, old - (t + n * STEP) * TILE), q);
                request(tile[n]);
            }
        publish();
        if (SPLITS == 1) __syncthreads();
        else cluster_sync();
        for (int unit = split * 32 * WARPS + threadIdx.x; unit < UNITS; unit += 32 * STEP) finish(unit);
        if (SPLITS > 1) cluster_sync();      // a block must not exit while others read its parts
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
context_attention(const __grid_constant__ Arguments a) {
    __shared__ Shared s;
    let_next_kernel_start();
    Warp{a, s}.attend();
}
